"""Graphs of peers: connected, symmetric, without self-loops, the same for the same seed."""

from __future__ import annotations

import networkx as nx
import numpy as np
import pytest

from consilience.errors import UserError
from consilience.topology import TOPOLOGIES, BarabasiAlbert, Complete, ErdosRenyi, Line, Ring, Star, Topology

GRAPHS: list[tuple[Topology, int]] = [
    (kind(), nodes) for kind in (Complete, Ring, Line) for nodes in (1, 2, 3, 10)
] + [
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


@pytest.mark.parametrize("topology", [ErdosRenyi(), BarabasiAlbert(m=2)], ids=str)
def test_random_graphs_differ_between_seeds(topology):
    assert len({adjacency(topology, 30, seed).tobytes() for seed in range(5)}) == 5


@pytest.mark.parametrize(
    ("topology", "degrees"),
    [(Complete(), [5] * 6), (Ring(), [2] * 6), (Line(), [1, 2, 2, 2, 2, 1])],
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


def test_a_star_has_no_graph():
    assert adjacency(Star(), 10) is None


@pytest.mark.parametrize("p", [0.0, -0.1, 1.1, float("nan")])
def test_erdos_renyi_refuses_impossible_probabilities(p):
    with pytest.raises(UserError, match=rf"p must be in \(0, 1\], not {p}"):
        ErdosRenyi(p=p)


def test_a_graph_that_will_not_be_connected_is_refused_with_the_numbers():
    with pytest.raises(UserError, match=r"60 nodes and p = 0\.001 .* p above 0\.068"):
        adjacency(ErdosRenyi(p=0.001), 60)


@pytest.mark.parametrize(("m", "nodes"), [(0, 5), (5, 5), (9, 5)])
def test_barabasi_albert_refuses_impossible_degrees(m, nodes):
    with pytest.raises(UserError, match=f"from 1 to {nodes - 1} for {nodes} nodes, not {m}"):
        adjacency(BarabasiAlbert(m=m), nodes)


def test_a_disconnected_graph_is_refused():
    class Islands(Topology):
        name = "islands"

        def graph(self, nodes, random):
            return nx.empty_graph(nodes)

    with pytest.raises(UserError, match="islands graph on 4 nodes is not connected"):
        adjacency(Islands(), 4)


def test_topologies_are_listed_by_name():
    assert all(TOPOLOGIES[name].name == name for name in TOPOLOGIES)
    assert set(TOPOLOGIES.values()) == {Star, Complete, Ring, Line, ErdosRenyi, BarabasiAlbert}
