"""Plots of nodes: the right numbers, the right nodes, everything legible and inside the image."""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
import pytest
from matplotlib.collections import PathCollection
from PIL import Image

from consilience.errors import UserError
from consilience.report.node_plots import (
    Peers,
    map_figure,
    map_plot,
    nodes_figure,
    nodes_plot,
    settings_with_nodes,
)


def record(number=1, seed=0, method="dechw", setting="ring", **nodes):
    return {"setting": setting, "method": method, "seed": seed, "round": number} | (
        {"nodes": nodes} if nodes else {}
    )


def ring(nodes: int, seed: int = 0) -> Peers:
    here = np.arange(nodes)
    adjacency = np.zeros((nodes, nodes), bool)
    adjacency[here, (here + 1) % nodes] = nodes > 1
    return Peers(seed, adjacency | adjacency.T, tuple(range(100, 100 + nodes)))


def many(settings=1, methods=1, seeds=1, rounds=5, nodes=4, curved=1):
    random = np.random.default_rng(0)
    labels = [f"method {number}" for number in range(methods - 1)] + [
        "a rather long one mu=0.01 lr=0.1 beta=1"
    ]
    return [
        record(
            number,
            seed,
            label,
            f"setting {setting}",
            accuracy=random.uniform(0, 1, nodes).tolist(),
            trained_accuracy=random.uniform(0, 1, nodes).tolist(),
            consensus=random.uniform(0.1, 9, nodes).tolist(),
            **({"curvature": random.uniform(0, 9, nodes).tolist()} if label in labels[:curved] else {}),
        )
        for setting in range(settings)
        for label in labels
        for seed in range(seeds)
        for number in range(1, rounds + 1)
    ]


def graphs(records, nodes=4):
    return dict.fromkeys(settings_with_nodes(records), ring(nodes))


def panels(figure):
    """By y label and title, the axes that are not there for a legend."""
    return {(axes.get_ylabel(), axes.get_title(loc="left")): axes for axes in figure.axes if axes.axison}


def legends(figure):
    """By title, the labels."""
    found = [artist for axes in figure.axes for artist in axes.artists]
    return {one.get_title().get_text(): [text.get_text() for text in one.get_texts()] for one in found}


def test_accuracy_over_nodes_and_seeds_by_hand():
    # Round 1: 20, 40, 40, 60 %, so 40 ± sqrt(200); round 2: 50 % at the only node that was evaluated.
    records = [
        record(1, 0, accuracy=[0.2, 0.4], trained_accuracy=[0.1, 0.3]),
        record(1, 1, accuracy=[0.4, 0.6], trained_accuracy=[0.1, None]),
        record(2, 0, accuracy=[None, 0.5]),
        record(2, 1, accuracy=[None, math.nan]),
        record(3, 0),
    ]
    figure = nodes_figure(records, {"ring": ring(2)}, "title")
    assert figure.get_suptitle() == "title"
    axes = panels(figure)["test accuracy (%)", "dechw"]
    trained, mean = axes.lines
    np.testing.assert_allclose(mean.get_xydata(), [[1, 40], [2, 50]])
    np.testing.assert_allclose(trained.get_xydata(), [[1, 50 / 3]])
    assert (mean.get_linestyle(), trained.get_linestyle()) == ("-", "--")
    low, high = 40 - math.sqrt(200), 40 + math.sqrt(200)
    for band, edges in zip(axes.collections, [(20, 60), (low, high)], strict=True):
        corners = {tuple(corner) for corner in band.get_paths()[0].vertices.round(6)}
        assert corners == {(1, round(edges[0], 6)), (1, round(edges[1], 6)), (2, 50)}
    light, dark = axes.collections
    assert light.get_alpha() < dark.get_alpha()


def test_trained_accuracy_is_in_the_legend_only_where_it_is_drawn():
    titles = []
    for more in ({}, {"trained_accuracy": [0.5]}):
        figure = nodes_figure([record(accuracy=[0.5], **more)], {"ring": ring(1)}, "")
        titles.append(legends(figure)["over nodes and seeds"])
    assert titles[0] == ["mean", "± 1 standard deviation", "worst to best node"]
    assert titles[1] == [titles[0][0], "mean after\nlocal training", *titles[0][1:]]


def test_curvature_of_nodes_that_hold_least_medium_and_most():
    sizes = (50, 10, 90, 20, 60, 80, 40, 30, 70)
    peers = Peers(4, ring(9).adjacency, sizes)
    records = [
        record(number, seed, accuracy=[0.5] * 9, curvature=[seed + number + node for node in range(9)])
        for seed in (4, 2)
        for number in (1, 2)
    ]
    figure = nodes_figure(records, {"ring": peers}, "")
    nodes = [1, 3, 6, 0, 5, 2]  # 10 and 20 rows, 40 and 50, 80 and 90
    assert legends(figure)["curvature, seed 4"] == [f"node {node}, {sizes[node]} rows" for node in nodes]
    lines = panels(figure)["curvature norm", "dechw"].lines
    np.testing.assert_allclose([line.get_ydata() for line in lines], [[5 + n, 6 + n] for n in nodes])
    assert len({line.get_color() for line in lines}) == 6

    chosen = nodes_figure(records, {"ring": peers}, "", nodes=[8, 0])
    assert legends(chosen)["curvature, seed 4"] == ["node 0, 50 rows", "node 8, 70 rows"]
    with pytest.raises(UserError, match="no node 9: nodes are numbered from 0 to 8"):
        nodes_figure(records, {"ring": peers}, "", nodes=[9])


def test_curvature_where_it_was_sent():
    records = [
        record(1, curvature=[1.0, None], accuracy=[0.5, 0.5]),
        record(2, curvature=[2.0, None], accuracy=[0.5, 0.5]),
        record(3, accuracy=[0.5, 0.5]),  # it stopped
        *(record(number, method="dechetero", accuracy=[0.5, 0.5]) for number in (1, 2, 3)),
        *(record(number, method="silent", accuracy=[0.5, 0.5], curvature=[None] * 2) for number in (1, 2, 3)),
    ]
    figure = nodes_figure(records, {"ring": ring(2)}, "")
    assert [key for key in panels(figure) if key[0] == "curvature norm"] == [("curvature norm", "dechw")]
    sent, silent = panels(figure)["curvature norm", "dechw"].lines
    np.testing.assert_allclose(sent.get_xydata(), [[1, 1], [2, 2]])
    assert len(silent.get_xydata()) == 0


def test_consensus_is_a_mean_on_a_logarithmic_scale():
    records = [
        record(1, 0, consensus=[1.0, 3.0]),
        record(1, 1, consensus=[None, 5.0]),
        record(2, 0, consensus=[0.0, 0.0]),  # they agree: no such point
        record(1, 0, "dechetero", consensus=[0.5, 0.5]),
        record(1, 0, "agreed", consensus=[0.0, 0.0]),
    ]
    figure = nodes_figure(records, {"ring": ring(2)}, "")
    axes = panels(figure)["distance from mean model", "consensus"]
    np.testing.assert_allclose([line.get_xydata() for line in axes.lines], [[[1, 3]], [[1, 0.5]]])
    assert axes.get_yscale() == "log"
    assert legends(figure)["consensus"] == ["dechw", "dechetero"]


@pytest.mark.parametrize(("low", "high"), [(0.7, 0.7), (1, 1), (0.3, 4), (0.002, 9), (1e-17, 30)])
def test_ticks_of_consensus_are_few_and_seen(low, high):
    records = [record(1, consensus=[low]), record(2, consensus=[high])]
    axes = panels(nodes_figure(records, {"ring": ring(1)}, ""))["distance from mean model", "consensus"]
    bottom, top = axes.get_ylim()
    assert 2 <= len(axes.get_yticks()) <= 7
    assert all(bottom < value < top for value in (low, high, *axes.get_yticks()))


def test_the_map_shows_the_last_accuracies_of_its_seed():
    records = [
        record(1, 7, accuracy=[0.1, 0.1, 0.1]),
        record(2, 7, accuracy=[0.5, None, 0.9]),
        record(3, 7),
        record(3, 0, accuracy=[0.3, 0.3, 0.3]),
        record(2, 7, "dechetero", accuracy=[0.4, 0.6, 0.8]),
    ]
    figure = map_figure(records, {"ring": ring(3, seed=7)}, "title")
    left, right, bar = figure.axes
    assert [axes.get_title(loc="left") for axes in (left, right)] == [
        "dechw, mean 70.0 %",
        "dechetero, mean 60.0 %",
    ]
    assert bar.get_ylabel() == "final test accuracy (%), seed 7"
    (one,), (other,) = (
        [c for c in axes.collections if isinstance(c, PathCollection)] for axes in (left, right)
    )
    np.testing.assert_allclose(np.ma.filled(one.get_array(), -1), [50, -1, 90])
    np.testing.assert_allclose(other.get_array(), [40, 60, 80])
    assert one.get_clim() == other.get_clim() == pytest.approx((40, 90))
    np.testing.assert_allclose(one.get_offsets(), other.get_offsets())
    figure.draw_without_rendering()
    assert one.get_facecolors()[1].tolist() == [1, 1, 1, 1]  # nothing known: white
    assert [text.get_text() for text in left.texts] == ["0", "1", "2"]


@pytest.mark.parametrize("accuracy", [[None], [0.5], [math.nan]])
def test_one_node_one_round(accuracy):
    records = [record(accuracy=accuracy, consensus=[0.0])]
    figure = nodes_figure(records, {"ring": ring(1)}, "")
    (axes,) = panels(figure).values()  # a single node always agrees
    note = [] if accuracy == [0.5] else ["no accuracy recorded"]
    assert [text.get_text() for text in axes.texts] == note
    shown = map_figure(records, {"ring": ring(1)}, "")
    assert shown.axes[0].get_title(loc="left") == f"dechw, {'' if note else 'mean 50.0 %'}{''.join(note)}"
    for drawn in (figure, shown):
        drawn.draw_without_rendering()


def test_settings_without_nodes_or_a_graph_are_left_out():
    records = [
        record(setting="star"),
        record(setting="ring", accuracy=[0.5]),
        record(setting="grid", accuracy=[0.5]),
        record(setting="complete", method="other"),
    ]
    assert settings_with_nodes(records) == ["ring", "grid"]
    figure = nodes_figure(records, {"grid": ring(1), "complete": ring(1)}, "")
    assert list(panels(figure)) == [("test accuracy (%)", "dechw")]
    for draw in (nodes_figure, map_figure):
        with pytest.raises(UserError, match="no metrics records with lists over nodes"):
            draw(records, {"star": ring(1)}, "")


SHAPES = [
    {"rounds": 1, "nodes": 1},
    {"methods": 2, "seeds": 2, "rounds": 15, "nodes": 12},
    {"methods": 3, "nodes": 12, "curved": 3},
    {"settings": 2, "methods": 3, "nodes": 8, "curved": 2},
    {"methods": 14, "rounds": 2, "nodes": 30, "curved": 4},
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("draw", [nodes_figure, map_figure])
def test_everything_stays_inside_and_apart(draw, shape):
    records = many(**shape)
    figure = draw(records, graphs(records, shape["nodes"]), "a title of ordinary length")
    figure.draw_without_rendering()
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert box.x0 >= 0
    assert box.y0 >= 0
    assert box.x1 <= width
    assert box.y1 <= height
    titles = [axes.title for axes in figure.axes] + [axes._left_title for axes in figure.axes]
    seen = [
        *(title.get_window_extent() for title in titles if title.get_text()),
        *(artist.get_window_extent() for axes in figure.axes for artist in axes.artists),
        *(axes.get_window_extent() for axes in figure.axes if axes.axison),
    ]
    assert not [pair for pair in combinations(seen, 2) if pair[0].overlaps(pair[1])]


@pytest.mark.parametrize("draw", [nodes_plot, map_plot])
def test_the_file_repeats(draw, tmp_path):
    records = many(methods=2, nodes=5)
    for name in ("a.png", "b.png"):
        draw(records, graphs(records, 5), tmp_path / name, "title")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    with Image.open(tmp_path / "a.png") as image:
        assert "Software" not in image.info
        assert image.info["dpi"] == pytest.approx((150, 150), abs=0.1)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ({"accuracy": [0.5, 0.5]}, "accuracies of 2 nodes; the graph has 3"),
        ([0.5], r"'nodes': \[0.5\]; it must hold lists by name"),
    ],
)
def test_wrong_records_are_refused(nodes, message):
    with pytest.raises(UserError, match=message):
        map_figure([record() | {"nodes": nodes}], {"ring": ring(3)}, "")
