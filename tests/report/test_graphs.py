"""Graphs in numbers, against networkx and by hand, and their drawing."""

from __future__ import annotations

import matplotlib
import networkx as nx
import numpy as np
import pytest
from PIL import Image

from consilience.errors import UserError
from consilience.graphs.barabasi_albert import BarabasiAlbert
from consilience.graphs.base import Topology, metropolis
from consilience.graphs.complete import Complete
from consilience.graphs.erdos_renyi import ErdosRenyi
from consilience.graphs.grid import Grid
from consilience.graphs.line import Line
from consilience.graphs.random_regular import RandomRegular
from consilience.graphs.ring import Ring
from consilience.graphs.star_graph import StarGraph
from consilience.graphs.watts_strogatz import WattsStrogatz
from consilience.report.graphs import GraphStatistics, graph_figure, graph_plot, graph_statistics

GRAPHS: list[tuple[Topology, int]] = [
    (Line(), 1),
    (Line(), 2),
    (Ring(), 10),
    (Complete(), 10),
    (StarGraph(), 10),
    (Grid(), 50),
    (ErdosRenyi(p=0.2), 50),
    (ErdosRenyi(p=0.03, allow_disconnected=True), 50),
    (ErdosRenyi(p=1e-9, allow_disconnected=True), 10),
    (RandomRegular(degree=2, allow_disconnected=True), 60),
    (BarabasiAlbert(m=2), 100),
    (WattsStrogatz(), 200),
]


def draw(topology: Topology, nodes: int) -> np.ndarray:
    return topology.adjacency(nodes, np.random.default_rng(0))


def sizes_of(nodes: int) -> list[int]:
    return np.random.default_rng(1).integers(0, 500, nodes).tolist()


@pytest.mark.parametrize(("topology", "nodes"), GRAPHS, ids=str)
def test_statistics_are_those_of_networkx(topology, nodes):
    adjacency = draw(topology, nodes)
    graph = nx.from_numpy_array(adjacency)
    found = graph_statistics(adjacency)
    degrees = [degree for _, degree in graph.degree]
    assert (found.nodes, found.edges) == (len(graph), graph.number_of_edges())
    assert (found.degree_min, found.degree_max) == (min(degrees), max(degrees))
    assert found.degree_mean == pytest.approx(sum(degrees) / nodes)
    assert found.components == nx.number_connected_components(graph)
    assert found.diameter == nx.diameter(graph.subgraph(max(nx.connected_components(graph), key=len)))
    assert found.clustering == pytest.approx(nx.average_clustering(graph))


def test_statistics_by_hand():
    lollipop = nx.to_numpy_array(nx.Graph([(0, 1), (1, 2), (2, 0), (2, 3)])) > 0
    found = graph_statistics(lollipop)
    assert (found.degree_min, found.degree_mean, found.degree_max) == (1, 2.0, 3)
    assert (found.components, found.diameter) == (1, 2)
    assert found.clustering == pytest.approx((1 + 1 + 1 / 3 + 0) / 4)


@pytest.mark.parametrize(
    ("topology", "nodes", "gap"),
    [
        (Complete(), 7, 1),
        (Ring(), 10, 1 - (1 + 2 * np.cos(2 * np.pi / 10)) / 3),
        (Line(), 2, 1),
        (Line(), 1, 1),
        (StarGraph(), 5, 1 / 5),
        (RandomRegular(degree=1, allow_disconnected=True), 6, 0),
        (ErdosRenyi(p=1e-9, allow_disconnected=True), 6, 0),
    ],
    ids=str,
)
def test_spectral_gaps_that_are_known(topology, nodes, gap):
    found = graph_statistics(draw(topology, nodes)).spectral_gap
    assert found == pytest.approx(gap, abs=1e-12)
    assert found >= 0


def test_the_spectral_gap_is_how_much_nearer_nodes_come():
    adjacency = draw(ErdosRenyi(p=0.2), 30)
    values, weights = np.random.default_rng(0).normal(size=30), metropolis(adjacency)
    apart = [np.std(np.linalg.matrix_power(weights, rounds) @ values) for rounds in (60, 61)]
    assert apart[1] / apart[0] == pytest.approx(1 - graph_statistics(adjacency).spectral_gap, rel=1e-3)


def test_statistics_are_plain_numbers():
    found = graph_statistics(draw(Ring(), 10))
    assert found == GraphStatistics(10, 10, 2, 2.0, 2, 1, 5, found.spectral_gap, 0.0)
    assert {type(value) for value in vars(found).values()} == {int, float}


@pytest.mark.parametrize(("topology", "nodes"), GRAPHS, ids=str)
def test_every_node_and_edge_is_drawn_inside_the_image(topology, nodes):
    adjacency, sizes = draw(topology, nodes), sizes_of(nodes)
    figure = graph_figure(adjacency, sizes, "title")
    axes, bar = figure.axes
    edges, shown = axes.collections
    places = shown.get_offsets()
    assert places.shape == (nodes, 2)
    assert len(np.unique(places.round(3), axis=0)) == nodes
    ends = np.argwhere(np.triu(adjacency))
    np.testing.assert_allclose(np.array(edges.get_segments()).reshape(-1, 2, 2), places[ends])
    np.testing.assert_array_equal(shown.get_array(), sizes)
    assert [text.get_text() for text in axes.texts] == [str(node) for node in range(nodes)]
    assert bar.get_title(loc="left") == "rows"
    figure.draw_without_rendering()
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert min(box.x0, box.y0) >= 0
    assert box.x1 <= width
    assert box.y1 <= height


@pytest.mark.parametrize(("topology", "nodes"), GRAPHS, ids=str)
def test_nodes_are_apart_and_numbers_fit_into_them(topology, nodes):
    figure = graph_figure(draw(topology, nodes), sizes_of(nodes))
    figure.draw_without_rendering()
    axes = figure.axes[0]
    shown = axes.collections[1]
    points = axes.transData.transform(shown.get_offsets()) * 72 / figure.dpi
    diameters = np.sqrt(shown.get_sizes())
    gaps = np.linalg.norm(points[:, None] - points, axis=-1) + np.diag(np.full(nodes, np.inf))
    assert (gaps > (diameters[:, None] + diameters) / 2).all()
    for text, diameter in zip(axes.texts, diameters, strict=True):
        assert text.get_window_extent().width * 72 / figure.dpi < diameter
        assert text.get_fontsize() >= 4


def test_a_ring_is_round_and_larger_nodes_hold_more():
    figure = graph_figure(draw(Ring(), 40), list(range(40)))
    shown = figure.axes[0].collections[1]
    places = shown.get_offsets()
    radii = np.linalg.norm(places - places.mean(0), axis=1)
    assert radii.min() > 0.7 * radii.max()
    assert (np.diff(shown.get_sizes()) > 0).all()
    assert shown.get_clim() == (0, 39)


def test_nobody_has_data():
    shown = graph_figure(draw(Ring(), 4), [0] * 4).axes[0].collections[1]
    assert shown.get_clim() == (0, 1)


def test_the_file_repeats_and_settings_stay(tmp_path):
    before, state = dict(matplotlib.rcParams), np.random.get_state()[1].tolist()
    for name in ("a.png", "b.png"):
        graph_plot(draw(ErdosRenyi(p=0.2), 50), sizes_of(50), tmp_path / name, "fifty nodes")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert dict(matplotlib.rcParams) == before
    assert np.random.get_state()[1].tolist() == state
    with Image.open(tmp_path / "a.png") as image:
        assert image.width > 500
        assert len(image.convert("RGB").getcolors(1 << 20)) > 50


def test_wrong_input_is_refused():
    with pytest.raises(UserError, match="3 sizes for 4 nodes"):
        graph_figure(draw(Ring(), 4), [1, 2, 3])
