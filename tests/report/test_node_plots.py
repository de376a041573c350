"""Plots of nodes over rounds: the right numbers, the right nodes, everything legible and inside the image."""

from __future__ import annotations

import math

import numpy as np
import pytest
from PIL import Image

from consilience.errors import UserError
from consilience.problems import Classification, NextToken, Regression
from consilience.report.node_plots import nodes_figure, nodes_plot
from consilience.report.node_records import Peers

ACCURACY, R2, PERPLEXITY = Classification.metric, Regression.metric, NextToken.metric


def panels(figure):
    """By y label and title, the axes that are not there for a legend."""
    return {(axes.get_ylabel(), axes.get_title(loc="left")): axes for axes in figure.axes if axes.axison}


def test_accuracy_over_nodes_and_seeds_by_hand(record, ring):
    # Round 1: 20, 40, 40, 60 %, so 40 ± sqrt(200); round 2: 50 % at the only node that was evaluated.
    records = [
        record(1, 0, accuracy=[0.2, 0.4], trained_accuracy=[0.1, 0.3]),
        record(1, 1, accuracy=[0.4, 0.6], trained_accuracy=[0.1, None]),
        record(2, 0, accuracy=[None, 0.5]),
        record(2, 1, accuracy=[None, math.nan]),
        record(3, 0),
    ]
    figure = nodes_figure(records, {"ring": ring(2)}, ACCURACY, "title")
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


def test_trained_accuracy_is_in_the_legend_only_where_it_is_drawn(record, ring, legends):
    titles = []
    for more in ({}, {"trained_accuracy": [0.5]}):
        figure = nodes_figure([record(accuracy=[0.5], **more)], {"ring": ring(1)}, ACCURACY, "")
        titles.append(legends(figure)["over nodes and seeds"])
    assert titles[0] == ["mean", "± 1 standard deviation", "worst to best node"]
    assert titles[1] == [titles[0][0], "mean after\nlocal training", *titles[0][1:]]


def test_curvature_of_nodes_that_hold_least_medium_and_most(record, ring, legends):
    sizes = (50, 10, 90, 20, 60, 80, 40, 30, 70)
    peers = Peers(4, ring(9).adjacency, sizes)
    records = [
        record(number, seed, accuracy=[0.5] * 9, curvature=[seed + number + node for node in range(9)])
        for seed in (4, 2)
        for number in (1, 2)
    ]
    figure = nodes_figure(records, {"ring": peers}, ACCURACY, "")
    nodes = [1, 3, 6, 0, 5, 2]  # 10 and 20 rows, 40 and 50, 80 and 90
    assert legends(figure)["curvature, seed 4"] == [f"node {node}, {sizes[node]} rows" for node in nodes]
    lines = panels(figure)["curvature norm", "dechw"].lines
    np.testing.assert_allclose([line.get_ydata() for line in lines], [[5 + n, 6 + n] for n in nodes])
    assert len({line.get_color() for line in lines}) == 6

    chosen = nodes_figure(records, {"ring": peers}, ACCURACY, "", nodes=[8, 0])
    assert legends(chosen)["curvature, seed 4"] == ["node 0, 50 rows", "node 8, 70 rows"]
    with pytest.raises(UserError, match="no node 9: nodes are numbered from 0 to 8"):
        nodes_figure(records, {"ring": peers}, ACCURACY, "", nodes=[9])


def test_curvature_where_it_was_sent(record, ring):
    records = [
        record(1, curvature=[1.0, None], accuracy=[0.5, 0.5]),
        record(2, curvature=[2.0, None], accuracy=[0.5, 0.5]),
        record(3, accuracy=[0.5, 0.5]),  # it stopped
        *(record(number, method="dechetero", accuracy=[0.5, 0.5]) for number in (1, 2, 3)),
        *(record(number, method="silent", accuracy=[0.5, 0.5], curvature=[None] * 2) for number in (1, 2, 3)),
    ]
    figure = nodes_figure(records, {"ring": ring(2)}, ACCURACY, "")
    assert [key for key in panels(figure) if key[0] == "curvature norm"] == [("curvature norm", "dechw")]
    sent, silent = panels(figure)["curvature norm", "dechw"].lines
    np.testing.assert_allclose(sent.get_xydata(), [[1, 1], [2, 2]])
    assert len(silent.get_xydata()) == 0


def test_consensus_is_a_mean_on_a_logarithmic_scale(record, ring, legends):
    records = [
        record(1, 0, consensus=[1.0, 3.0]),
        record(1, 1, consensus=[None, 5.0]),
        record(2, 0, consensus=[0.0, 0.0]),  # they agree: no such point
        record(1, 0, "dechetero", consensus=[0.5, 0.5]),
        record(1, 0, "agreed", consensus=[0.0, 0.0]),
    ]
    figure = nodes_figure(records, {"ring": ring(2)}, ACCURACY, "")
    axes = panels(figure)["distance from mean model", "consensus"]
    np.testing.assert_allclose([line.get_xydata() for line in axes.lines], [[[1, 3]], [[1, 0.5]]])
    assert axes.get_yscale() == "log"
    assert legends(figure)["consensus"] == ["dechw", "dechetero"]


@pytest.mark.parametrize(("low", "high"), [(0.7, 0.7), (1, 1), (0.3, 4), (0.002, 9), (1e-17, 30)])
def test_ticks_of_consensus_are_few_and_seen(low, high, record, ring):
    records = [record(1, consensus=[low]), record(2, consensus=[high])]
    axes = panels(nodes_figure(records, {"ring": ring(1)}, ACCURACY, ""))[
        "distance from mean model", "consensus"
    ]
    bottom, top = axes.get_ylim()
    assert 2 <= len(axes.get_yticks()) <= 7
    assert all(bottom < value < top for value in (low, high, *axes.get_yticks()))


@pytest.mark.parametrize("accuracy", [[None], [0.5], [math.nan]])
def test_one_node_one_round(accuracy, record, ring):
    figure = nodes_figure([record(accuracy=accuracy, consensus=[0.0])], {"ring": ring(1)}, ACCURACY, "")
    (axes,) = panels(figure).values()  # a single node always agrees
    note = [] if accuracy == [0.5] else ["no accuracy recorded"]
    assert [text.get_text() for text in axes.texts] == note
    figure.draw_without_rendering()


def test_settings_without_nodes_or_a_graph_are_left_out(record, ring):
    records = [
        record(setting="star"),
        record(setting="ring", accuracy=[0.5]),
        record(setting="grid", accuracy=[0.5]),
        record(setting="complete", method="other"),
    ]
    figure = nodes_figure(records, {"grid": ring(1), "complete": ring(1)}, ACCURACY, "")
    assert list(panels(figure)) == [("test accuracy (%)", "dechw")]
    with pytest.raises(UserError, match="no metrics records with lists over nodes"):
        nodes_figure(records, {"star": ring(1)}, ACCURACY, "")


SHAPES = [
    {"rounds": 1, "nodes": 1},
    {"methods": 2, "seeds": 2, "rounds": 15, "nodes": 12},
    {"methods": 3, "nodes": 12, "curved": 3},
    {"settings": 2, "methods": 3, "nodes": 8, "curved": 2},
    {"methods": 14, "rounds": 2, "nodes": 30, "curved": 4},
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_everything_stays_inside_and_apart(shape, many, legible):
    legible(nodes_figure(*many(**shape), ACCURACY, "a title of ordinary length"))


def test_the_file_repeats(many, tmp_path):
    for name in ("a.png", "b.png"):
        nodes_plot(*many(methods=2, nodes=5), ACCURACY, tmp_path / name, "title")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    with Image.open(tmp_path / "a.png") as image:
        assert "Software" not in image.info
        assert image.info["dpi"] == pytest.approx((150, 150), abs=0.1)


@pytest.mark.parametrize(
    ("metric", "values", "label"),
    [(R2, [-3.0, 0.5], "test r2"), (PERPLEXITY, [120.0, 500.0], "test perplexity")],
    ids=["r2", "perplexity"],
)
def test_other_metrics(metric, values, label, record, ring, legends):
    lists = {metric.name: values, f"trained_{metric.name}": [values[0], None]}
    figure = nodes_figure([record(**lists)], {"ring": ring(2)}, metric, "")
    axes = panels(figure)[label, "dechw"]
    trained, mean = axes.lines
    np.testing.assert_allclose(mean.get_xydata(), [[1, sum(values) / 2]])
    np.testing.assert_allclose(trained.get_xydata(), [[1, values[0]]])
    bottom, top = axes.get_ylim()
    assert bottom < values[0] < values[1] < top
    assert "mean after\nlocal training" in legends(figure)["over nodes and seeds"]


def test_one_node_has_a_scale_of_its_size(record, ring):
    for metric, value, margin in ((ACCURACY, 0.5, 1), (R2, 0.5, 0.01), (PERPLEXITY, 500.0, 5)):
        figure = nodes_figure([record(**{metric.name: [value]})], {"ring": ring(1)}, metric, "")
        (axes,) = panels(figure).values()
        shown = metric.scale * value
        assert axes.get_ylim() == pytest.approx((shown - margin, shown + margin))


def test_nothing_recorded_of_another_metric(record, ring):
    (axes,) = panels(nodes_figure([record(r2=[None])], {"ring": ring(1)}, R2, "")).values()
    assert [text.get_text() for text in axes.texts] == ["no r2 recorded"]
    assert axes.get_ylim() == pytest.approx((-0.05, 1.05))
