"""Graphs of peers: connected, symmetric, without self-loops, the same for the same seed."""

from __future__ import annotations

import json
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
import torch

from consilience.algorithms.dechw import DecHW
from consilience.algorithms.fedavg import FedAvg
from consilience.algorithms.hwa import HWA
from consilience.config.config import read_config
from consilience.errors import UserError
from consilience.graphs import TOPOLOGIES
from consilience.graphs.barabasi_albert import BarabasiAlbert
from consilience.graphs.base import Topology, metropolis
from consilience.graphs.complete import Complete
from consilience.graphs.erdos_renyi import ErdosRenyi
from consilience.graphs.from_file import FromFile
from consilience.graphs.grid import Grid
from consilience.graphs.line import Line
from consilience.graphs.random_regular import RandomRegular
from consilience.graphs.ring import Ring
from consilience.graphs.star import Star
from consilience.graphs.star_graph import StarGraph
from consilience.graphs.watts_strogatz import WattsStrogatz
from consilience.testing import prepare
from consilience.testing.federation import Layout, simulation_of

GRAPHS: list[tuple[Topology, int]] = [
    (kind(), nodes) for kind in (Complete, Ring, Line, StarGraph) for nodes in (1, 2, 3, 10)
] + [
    (Grid(), 1),
    (Grid(), 3),
    (Grid(), 12),
    (Grid(periodic=True), 2),
    (Grid(periodic=True), 12),
    (Grid(rows=1), 7),
    (WattsStrogatz(), 5),
    (WattsStrogatz(), 40),
    (WattsStrogatz(k=2, p=1.0), 10),
    (RandomRegular(), 5),
    (RandomRegular(), 40),
    (RandomRegular(degree=2), 9),
    (RandomRegular(degree=1), 2),
    (ErdosRenyi(), 1),
    (ErdosRenyi(), 30),
    (ErdosRenyi(p=0.6), 5),
    (ErdosRenyi(p=1.0), 2),
    (BarabasiAlbert(), 20),
    (BarabasiAlbert(m=1), 2),
    (BarabasiAlbert(m=2), 50),
]


def adjacency(topology: Topology, nodes: int, seed: int = 0) -> np.ndarray:
    return topology.adjacency(nodes, np.random.default_rng(seed))


@pytest.mark.parametrize(("topology", "nodes"), GRAPHS, ids=str)
def test_graphs_are_connected_symmetric_and_loop_free(topology, nodes):
    for seed in range(5):
        matrix = adjacency(topology, nodes, seed)
        assert matrix.shape == (nodes, nodes)
        assert matrix.dtype == np.bool_
        assert not matrix.diagonal().any()
        np.testing.assert_array_equal(matrix, matrix.T)
        assert nx.is_connected(nx.from_numpy_array(matrix))
        np.testing.assert_array_equal(adjacency(topology, nodes, seed), matrix)


@pytest.mark.parametrize(
    "topology", [ErdosRenyi(), BarabasiAlbert(m=2), WattsStrogatz(), RandomRegular()], ids=str
)
def test_random_graphs_differ_between_seeds(topology):
    assert len({adjacency(topology, 30, seed).tobytes() for seed in range(5)}) == 5


@pytest.mark.parametrize(
    ("topology", "degrees"),
    [
        (Complete(), [5] * 6),
        (Ring(), [2] * 6),
        (Line(), [1, 2, 2, 2, 2, 1]),
        (StarGraph(), [5, 1, 1, 1, 1, 1]),
        (Grid(), [2, 3, 2, 2, 3, 2]),
        (Grid(rows=3), [2, 2, 3, 3, 2, 2]),
        (Grid(rows=1), [1, 2, 2, 2, 2, 1]),
        (Grid(periodic=True), [3] * 6),
        (Grid(rows=6, periodic=True), [2] * 6),
        (WattsStrogatz(p=0.0), [4] * 6),
        (RandomRegular(degree=3), [3] * 6),
    ],
    ids=str,
)
def test_degrees(topology, degrees):
    assert adjacency(topology, 6).sum(1).tolist() == degrees


def test_random_graphs_have_their_number_of_edges():
    assert adjacency(BarabasiAlbert(m=3), 40).sum() == 2 * 3 * 37
    edges = sum(int(adjacency(ErdosRenyi(p=0.3), 40, seed).sum()) // 2 for seed in range(20))
    pairs = 20 * 40 * 39 / 2
    assert edges / pairs == pytest.approx(0.3, abs=5 * (0.3 * 0.7 / pairs) ** 0.5)


def test_the_first_option_is_the_one_that_shapes_the_graph():
    assert ErdosRenyi(0.3, 40) == ErdosRenyi(p=0.3, nodes=40)
    assert BarabasiAlbert(3, 40) == BarabasiAlbert(m=3, nodes=40)
    assert WattsStrogatz(6, 0.3, 40) == WattsStrogatz(k=6, p=0.3, nodes=40)
    assert RandomRegular(3, 40) == RandomRegular(degree=3, nodes=40)
    assert Grid(2, True, 40) == Grid(rows=2, periodic=True, nodes=40)
    assert Ring(40) == Ring(nodes=40)
    with pytest.raises(TypeError):
        Ring(40, True)


def test_a_small_world_is_between_a_ring_and_chance():
    ring, chance = (adjacency(WattsStrogatz(p=p), 60) for p in (0.0, 1.0))
    small = adjacency(WattsStrogatz(p=0.2), 60)
    assert ring.sum() == chance.sum() == small.sum() == 4 * 60
    assert 0 < (small & ~ring).sum() < (chance & ~ring).sum()


@pytest.mark.parametrize(("nodes", "rows"), [(4, 2), (6, 2), (12, 3), (16, 4), (30, 5), (200, 10)])
def test_a_grid_is_as_square_as_possible(nodes, rows):
    expected = nx.convert_node_labels_to_integers(nx.grid_2d_graph(rows, nodes // rows))
    np.testing.assert_array_equal(adjacency(Grid(), nodes), nx.to_numpy_array(expected) > 0)


def test_a_star_has_no_graph():
    assert adjacency(Star(), 10) is None


@pytest.mark.parametrize("p", [0.0, -0.1, 1.1, float("nan")])
def test_erdos_renyi_refuses_impossible_probabilities(p):
    with pytest.raises(UserError, match=rf"p must be in \(0, 1\], not {p}"):
        ErdosRenyi(p=p)


def test_a_graph_that_will_not_be_connected_is_refused_with_the_numbers():
    with pytest.raises(UserError, match=r"60 nodes and p = 0\.001 .* p above 0\.068"):
        adjacency(ErdosRenyi(p=0.001), 60)


IMPOSSIBLE = [
    # (topology, nodes, what the line says)
    (lambda: BarabasiAlbert(m=0), 5, "m must be from 1 to 4 for 5 nodes, not 0"),
    (lambda: BarabasiAlbert(m=5), 5, "m must be from 1 to 4 for 5 nodes, not 5"),
    (lambda: BarabasiAlbert(m=9), 5, "m must be from 1 to 4 for 5 nodes, not 9"),
    (lambda: WattsStrogatz(k=3), 5, "k must be even and at least 2, not 3"),
    (lambda: WattsStrogatz(k=0), 5, "k must be even and at least 2, not 0"),
    (lambda: WattsStrogatz(k=6), 6, "k must be below the 6 nodes, not 6"),
    (lambda: WattsStrogatz(p=1.5), 6, r"p must be in \[0, 1\], not 1.5"),
    (lambda: WattsStrogatz(p=float("nan")), 6, r"p must be in \[0, 1\], not nan"),
    (lambda: RandomRegular(degree=3), 7, "7 nodes of degree 3 have 21 ends of edges, an odd number"),
    (lambda: RandomRegular(degree=6), 6, "degree must be from 1 to 5 for 6 nodes, not 6"),
    (lambda: RandomRegular(degree=0), 6, "degree must be from 1 to 5 for 6 nodes, not 0"),
    (lambda: RandomRegular(degree=1), 6, "none of 1000 graphs with 6 nodes and degree = 1 was connected"),
    (Grid, 7, "7 nodes make no rectangle, as 7 is prime; take 6 or 8, or set rows: 1"),
    (lambda: Grid(rows=3), 10, "10 nodes do not make 3 rows"),
    (lambda: Grid(rows=4), 2, "2 nodes do not make 4 rows"),
    (lambda: Grid(rows=0), 10, "rows must be at least 1, not 0"),
    (FromFile, 3, "a path is missing"),
]


@pytest.mark.parametrize(("make", "nodes", "line"), IMPOSSIBLE)
def test_impossible_options_are_refused_with_the_numbers(make, nodes, line):
    with pytest.raises(UserError, match=line):
        adjacency(make(), nodes)


class Islands(Topology):
    name = "islands"

    def graph(self, nodes, random):
        return nx.empty_graph(nodes)


@pytest.mark.parametrize(
    ("nodes", "line"),
    [
        (3, r"islands graph on 3 nodes is not connected, it has 3 components \(of 1, 1, 1 nodes\)"),
        (9, r"it has 9 components \(of 1, 1, 1, 1, 1, \.\.\. nodes\); set allow_disconnected: true"),
    ],
)
def test_a_disconnected_graph_is_refused(nodes, line):
    with pytest.raises(UserError, match=line):
        adjacency(Islands(), nodes)


def test_a_graph_may_fall_apart_if_asked():
    sparse = ErdosRenyi(p=0.01, allow_disconnected=True)
    first = nx.gnp_random_graph(60, 0.01, seed=np.random.default_rng(0))
    assert not nx.is_connected(first)
    np.testing.assert_array_equal(adjacency(sparse, 60), nx.to_numpy_array(first) > 0)
    assert adjacency(RandomRegular(degree=1, allow_disconnected=True), 6).sum(1).tolist() == [1] * 6


# Weights.


@pytest.mark.parametrize(("topology", "nodes"), GRAPHS, ids=str)
def test_metropolis_weights_are_symmetric_and_doubly_stochastic(topology, nodes):
    graph = adjacency(topology, nodes)
    weights = metropolis(graph)
    np.testing.assert_array_equal(weights, weights.T)
    np.testing.assert_allclose(weights.sum(0), 1, rtol=0, atol=1e-12)
    assert (weights >= 0).all()
    np.testing.assert_array_equal(weights - np.diag(weights.diagonal()) > 0, graph)


def test_metropolis_weights_by_hand():
    third, quarter = 1 / 3, 1 / 4
    line = [[1 - third, third, 0], [third, third, third], [0, third, 1 - third]]
    np.testing.assert_allclose(metropolis(adjacency(Line(), 3)), line)
    np.testing.assert_allclose(metropolis(adjacency(Complete(), 4)), np.full((4, 4), quarter))
    np.testing.assert_array_equal(metropolis(np.zeros((2, 2), dtype=np.bool_)), np.eye(2))


# Files.

PATH = nx.path_graph(4)
TEXT = {  # all of them hold the path 1 - 2 - 10 - 11
    "a.edges": "# a path\n2 1\n\n10\t2 # the middle\n11 10\n1 2\n",
    "a.txt": "\ufeff1 2\n2 2\n2,10\n  10 11  \n",
    "a.csv": "1,2\r\n2, 10\r\n10,11\r\n",
    "a.json": '{"10": [2, "11"], "11": [10, 11], "2": [10, 1], "1": [2]}',
    "b.json": json.dumps(nx.adjacency_data(nx.Graph([(10, 2), (2, 1), (10, 11)]))),
    "c.json": json.dumps(
        nx.adjacency_data(nx.MultiGraph([("10", "2"), ("2", "1"), ("1", "2"), ("10", "11")]))
    ),
    "a.graphml": "\n".join(
        nx.generate_graphml(nx.Graph([(11, 10), (2, 1, {"weight": -3.0}), (2, 10), (1, 1)]))
    ),
    "b.graphml": "\n".join(nx.generate_graphml(nx.MultiGraph([(11, 10), (2, 1), (2, 1), (2, 10)]))),
}


def graph_file(folder: Path, name: str, content: str | bytes) -> str:
    path = folder / name
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return str(path)


@pytest.mark.parametrize("name", TEXT)
def test_files_of_every_kind(name, tmp_path):
    topology = FromFile(graph_file(tmp_path, name, TEXT[name]))
    assert topology.nodes == 4
    np.testing.assert_array_equal(adjacency(topology, 4), nx.to_numpy_array(PATH) > 0)


@pytest.mark.parametrize(
    ("edges", "order"),
    [
        ("b a\nb c", ["a", "b", "c"]),
        ("10 9\n9 -1", ["-1", "9", "10"]),
        ("x 10\n10 9", ["9", "10", "x"]),
        ("new york,old town\nold town,a", ["a", "new york", "old town"]),
    ],
)
def test_nodes_are_numbered_in_the_order_of_their_names(edges, order, tmp_path):
    graph = nx.Graph(
        [[name.strip() for name in line.split("," if "," in line else None)] for line in edges.split("\n")]
    )
    found = adjacency(FromFile(graph_file(tmp_path, "a.txt", edges)), 3)
    np.testing.assert_array_equal(found, nx.to_numpy_array(graph, nodelist=order) > 0)


def test_nodes_may_be_alone_in_a_file_if_asked(tmp_path):
    for name, content in (("a.json", '{"0": [1], "1": [0], "2": []}'), ("a.txt", "0 1\n2 2")):
        path = graph_file(tmp_path, name, content)
        with pytest.raises(UserError, match=r"file graph on 3 nodes .* 2 components \(of 2, 1 nodes\)"):
            adjacency(FromFile(path), 3)
        assert adjacency(FromFile(path, allow_disconnected=True), 3).sum(1).tolist() == [1, 1, 0]


MALFORMED = [
    # (file, content, what the line says)
    ("a.txt", "", "holds no nodes"),
    ("a.txt", "# nothing\n\n", "holds no nodes"),
    ("a.edges", "1 2\n3\n", "line 2 is no pair of nodes: '3'"),
    ("a.edges", "1 2 0.5\n", "line 1 is no pair of nodes: '1 2 0.5'"),
    ("a.csv", "1,2\n3,\n", "line 2 is no pair of nodes: '3,'"),
    ("a.csv", b"\xff\xfe\x00", "is not text in UTF-8"),
    ("a.gml", "graph []", "does not end in any of .edges, .txt, .csv, .graphml, .json"),
    ("a", "1 2", "does not end in any of .edges"),
    ("a.json", "", "not valid JSON (Expecting value"),
    ("a.json", "{}", "holds no nodes"),
    ("a.json", "[[0, 1]]", 'expected {"0": [1, 2], ...}'),
    ("a.json", '{"0": 1}', "the neighbours of '0' are no list: 1"),
    ("a.json", '{"0": [1.5]}', "a node's name must be a number or text, not 1.5"),
    ("a.json", '{"0": [true]}', "a node's name must be a number or text, not True"),
    ("a.json", '{"nodes": [{}], "adjacency": [[]]}', "a node's name must be a number or text, not None"),
    ("a.json", '{"nodes": [{"id": 1}], "adjacency": [3]}', "the neighbours of '1' are no list: 3"),
    ("a.json", '{"0": [1], "1": []}', "'0' lists '1' but not the other way round; the graph is directed"),
    ("a.json", '{"0": [1]}', "'0' lists '1' but not the other way round"),
    ("a.json", json.dumps(nx.adjacency_data(nx.DiGraph([(0, 1)]))), "the graph is directed"),
    ("a.graphml", "\n".join(nx.generate_graphml(nx.DiGraph([(0, 1)]))), "the graph is directed"),
    ("a.graphml", "", "not valid GraphML (no element found"),
    ("a.graphml", "<x/>", "not valid GraphML (file not successfully read"),
    ("a.graphml", "<graphml>\n<graph>\n</x>", "not valid GraphML (mismatched tag"),
]


@pytest.mark.parametrize(("name", "content", "line"), MALFORMED)
def test_a_file_without_a_graph_is_one_clear_line(name, content, line, tmp_path):
    path = graph_file(tmp_path, name, content)
    with pytest.raises(UserError) as refused:
        read_config({"topology": {"name": "file", "path": path}})
    assert str(refused.value).startswith(f"config: topology file: {path}")
    assert line in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_cannot_be_read(tmp_path):
    (tmp_path / "folder.txt").mkdir()
    for name, reason in (("none.txt", "No such file or directory"), ("folder.txt", "Is a directory")):
        with pytest.raises(UserError, match=f"topology file: cannot read .*{name}: {reason}"):
            FromFile(str(tmp_path / name))


def test_a_configuration_has_as_many_clients_as_the_file_has_nodes(tmp_path):
    path = graph_file(tmp_path, "a.edges", TEXT["a.edges"])
    topology = {"name": "file", "path": path}
    config = read_config({"topology": topology})
    assert config.population == 4
    assert config.written()["topology"] == {**topology, "nodes": 4, "allow_disconnected": False}
    assert read_config(config.written()) == config
    for values, line in (
        ({"topology": topology, "clients": 5}, "topology has 4 nodes, but clients is 5"),
        ({"topology": {**topology, "nodes": 5}}, "a.edges holds 4 nodes, not 5"),
    ):
        with pytest.raises(UserError, match=line):
            read_config(values)
    graph_file(tmp_path, "a.edges", "0 1")  # in the meantime
    with pytest.raises(UserError, match=r"a\.edges holds 2 nodes, not 4"):
        adjacency(config.topology, 4)


# Nodes that hear nobody.


@pytest.mark.parametrize("lanes", [0, 3])
@pytest.mark.parametrize(
    "algorithm", [FedAvg(), HWA(), DecHW(), DecHW(preset="released")], ids=lambda one: f"{one.name} {one}"
)
def test_a_node_alone_hears_itself(algorithm, lanes, tmp_path):
    """It ends where it would without all others, and sends nothing."""
    alone = graph_file(tmp_path, "alone.json", json.dumps({str(node): [] for node in range(5)}))
    some = graph_file(tmp_path, "some.txt", "0 1\n1 2\n3 3\n4 4")
    subject = prepare(algorithm)
    hubs, sent = [], []
    for path in (alone, some):
        simulation = simulation_of(subject, Layout(FromFile(path, allow_disconnected=True), lanes=lanes))
        start = torch.cat([value[0].flatten(1) for value in simulation.hub["params"].values()], 1)
        records = [simulation.step()[0] for _ in range(2)]
        sent.append(sum(sum(record.bytes_up.values()) for record in records))
        hubs.append(torch.cat([value[0].flatten(1) for value in simulation.hub["params"].values()], 1))
    apart, together = hubs
    torch.testing.assert_close(apart[3:], together[3:], rtol=1e-12, atol=1e-12)
    assert (apart[:3] - together[:3]).abs().amax(1).min() > 1e-3
    assert (apart - start).abs().amax(1).min() > 1e-3
    assert apart.isfinite().all()
    assert sent[0] == 0 < sent[1]


def test_topologies_are_listed_by_name():
    assert all(TOPOLOGIES[name].name == name for name in TOPOLOGIES)
    assert set(TOPOLOGIES.values()) == {
        Star,
        Complete,
        Ring,
        Line,
        StarGraph,
        Grid,
        ErdosRenyi,
        BarabasiAlbert,
        WattsStrogatz,
        RandomRegular,
        FromFile,
    }
