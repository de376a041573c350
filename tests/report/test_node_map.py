"""The map of nodes: the last accuracies at the right places, everything legible and inside the image."""

from __future__ import annotations

import math

import numpy as np
import pytest
from matplotlib.collections import PathCollection
from PIL import Image

from consilience.errors import UserError
from consilience.problems import Classification, NextToken, Regression
from consilience.report.bubbles import INK
from consilience.report.node_map import map_figure, map_plot

ACCURACY, R2, PERPLEXITY = Classification.metric, Regression.metric, NextToken.metric


def test_the_map_shows_the_last_accuracies_of_its_seed(record, ring):
    records = [
        record(1, 7, accuracy=[0.1, 0.1, 0.1]),
        record(2, 7, accuracy=[0.5, None, 0.9]),
        record(3, 7),
        record(3, 0, accuracy=[0.3, 0.3, 0.3]),
        record(2, 7, "dechetero", accuracy=[0.4, 0.6, 0.8]),
    ]
    figure = map_figure(records, {"ring": ring(3, seed=7)}, ACCURACY, "title")
    left, right, bar = figure.axes
    assert [axes.get_title(loc="left") for axes in (left, right)] == [
        "dechw, mean 70.00 %",
        "dechetero, mean 60.00 %",
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


@pytest.mark.parametrize(
    ("metric", "values", "mean"), [(R2, [-1.0, 0.5], "-0.2500"), (PERPLEXITY, [500.0, 120.0], "310.0")]
)
def test_the_better_node_is_darker_and_carries_light_letters(metric, values, mean, record, ring):
    figure = map_figure([record(**{metric.name: values})], {"ring": ring(2)}, metric, "")
    figure.draw_without_rendering()
    axes, bar = figure.axes
    assert axes.get_title(loc="left") == f"dechw, mean {mean}"
    assert bar.get_ylabel() == f"final test {metric.name}, seed 0"
    (nodes,) = [c for c in axes.collections if isinstance(c, PathCollection)]
    np.testing.assert_allclose(nodes.get_array(), values)
    worse, better = nodes.get_facecolors()[:, :3].sum(1)
    assert better < 1.5 < worse
    assert [text.get_color() for text in axes.texts] == [INK, "white"]


def test_equal_nodes_are_as_far_apart_as_is_worth_seeing(record, ring):
    for metric, value, apart in ((ACCURACY, 0.5, 1), (R2, 0.5, 0.01), (PERPLEXITY, 500.0, 5)):
        figure = map_figure([record(**{metric.name: [value] * 2})], {"ring": ring(2)}, metric, "")
        low, high = figure.axes[1].get_ylim()
        assert (low + high) / 2 == pytest.approx(metric.scale * value)
        assert high - low == pytest.approx(apart)


@pytest.mark.parametrize("accuracy", [[None], [0.5], [math.nan]])
def test_one_node_one_round(accuracy, record, ring):
    figure = map_figure([record(accuracy=accuracy)], {"ring": ring(1)}, ACCURACY, "")
    known = "mean 50.00 %" if accuracy == [0.5] else "no accuracy recorded"
    assert figure.axes[0].get_title(loc="left") == f"dechw, {known}"
    figure.draw_without_rendering()


def test_settings_without_nodes_or_a_graph_are_left_out(record, ring):
    records = [record(setting="star"), *(record(setting=name, accuracy=[0.5]) for name in ("ring", "grid"))]
    assert (
        len(map_figure(records, {"grid": ring(1), "star": ring(1)}, ACCURACY, "").axes) == 2
    )  # one is a scale
    with pytest.raises(UserError, match="no metrics records with lists over nodes"):
        map_figure(records, {"star": ring(1)}, ACCURACY, "")


SHAPES = [
    {"rounds": 1, "nodes": 1},
    {"methods": 2, "seeds": 2, "rounds": 15, "nodes": 12},
    {"methods": 3, "nodes": 12, "curved": 3},
    {"settings": 2, "methods": 3, "nodes": 8, "curved": 2},
    {"methods": 14, "rounds": 2, "nodes": 30, "curved": 4},
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_everything_stays_inside_and_apart(shape, many, legible):
    legible(map_figure(*many(**shape), ACCURACY, "a title of ordinary length"))


def test_the_file_repeats(many, tmp_path):
    for name in ("a.png", "b.png"):
        map_plot(*many(methods=2, nodes=5), ACCURACY, tmp_path / name, "title")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    with Image.open(tmp_path / "a.png") as image:
        assert "Software" not in image.info
        assert image.info["dpi"] == pytest.approx((150, 150), abs=0.1)


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        ({"accuracy": [0.5, 0.5]}, "accuracy of 2 nodes; the graph has 3"),
        ([0.5], r"'nodes': \[0.5\]; it must hold lists by name"),
    ],
)
def test_wrong_records_are_refused(nodes, message, record, ring):
    with pytest.raises(UserError, match=message):
        map_figure([record() | {"nodes": nodes}], {"ring": ring(3)}, ACCURACY, "")
