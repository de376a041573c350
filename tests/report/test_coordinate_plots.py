"""Plots of single parameters: the right numbers, on scales on which they are seen, inside the image."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from PIL import Image

from consilience.errors import UserError
from consilience.problems import Classification
from consilience.report.coordinate_plots import coordinates_figure, coordinates_plot, has_coordinates
from consilience.report.node_plots import nodes_figure
from consilience.report.node_records import Peers

NAMES = ["fc1.weight[3, 17]", "fc2.bias[0]"]


def of(curvature, share=(0.5,), name=NAMES[0]):
    """Lists over nodes of a coordinate."""
    return {f"curvature {name}": list(curvature), f"share {name}": list(share)}


def headings(figure):
    """What stands above the panels of each method."""
    return [text for axes in figure.axes if not axes.axison for text in axes.texts]


def panels(figure):
    """Curvature and share of each coordinate, in the order in which they are drawn."""
    drawn = [axes for axes in figure.axes if axes.axison]
    return list(zip(drawn[::2], drawn[1::2], strict=True))


def points(axes):
    return [line.get_xydata().tolist() for line in axes.lines]


def test_lines_by_hand(record, ring, legends):
    records = [
        record(1, 7, accuracy=[0.5] * 2, **of([1, 2], [0.25, 0.5]), **of([3, 4], [0, 1], NAMES[1])),
        record(2, 7, **of([5, 6], [0.75, 1]), **of([7, 8], [0.1, 0.2], NAMES[1])),
        record(1, 0, **of([90, 90], [0, 0])),  # of another seed
    ]
    figure = coordinates_figure(records, {"ring": ring(2, seed=7)}, "title")
    assert figure.get_suptitle() == "title"
    assert [text.get_text() for text in headings(figure)] == ["dechw"]
    (first, share), (second, other) = panels(figure)
    assert [axes.get_title(loc="left") for axes in (first, second)] == NAMES
    assert points(first) == [[[1, 1], [2, 5]], [[1, 2], [2, 6]]]
    assert points(share) == [[[1, 0.25], [2, 0.75]], [[1, 0.5], [2, 1]]]
    assert points(second) == [[[1, 3], [2, 7]], [[1, 4], [2, 8]]]
    assert points(other) == [[[1, 0], [2, 0.1]], [[1, 1], [2, 0.2]]]
    assert (first.get_ylabel(), share.get_ylabel()) == ("curvature", "own share")
    assert (share.get_xlabel(), other.get_xlabel()) == ("round", "round")
    assert share.get_ylim() == other.get_ylim() == pytest.approx((0, 1), abs=0.1)
    assert first.get_xlim() == share.get_xlim()
    assert legends(figure) == {"seed 7": ["node 0, 100 rows", "node 1, 101 rows"]}


def test_nodes_look_as_in_the_plot_of_nodes(record, ring, legends):
    sizes = (50, 10, 90, 20, 60, 80, 40, 30, 70)
    peers = {"ring": Peers(4, ring(9).adjacency, sizes)}
    records = [record(1, 4, curvature=range(9), **of(range(9), np.linspace(0, 1, 9)))]
    for nodes, count in ((None, 6), ([8, 0], 2)):
        figure = coordinates_figure(records, peers, "", nodes)
        other = nodes_figure(records, peers, Classification.metric, "", nodes)
        assert legends(figure)["seed 4"] == legends(other)["curvature, seed 4"]
        (known,) = [axes for axes in other.axes if axes.get_ylabel() == "curvature norm"]
        looks = [
            [(one.get_color(), one.get_marker(), list(one.get_ydata())) for one in axes.lines]
            for axes in (panels(figure)[0][0], known)
        ]
        assert looks[0] == looks[1]
        assert len(looks[0]) == count
    with pytest.raises(UserError, match="no node 9: nodes are numbered from 0 to 8"):
        coordinates_figure(records, peers, "", nodes=[9])


def test_what_is_not_known_is_skipped(record, ring):
    records = [
        record(1, **of([1, None], [None, None])),
        record(2, accuracy=[0.5, 0.5]),
        record(3, **of([math.nan, None], [0.5, None])),
        record(4, **of([4, None], [math.inf, None])),
        record(5),
    ]
    figure = coordinates_figure(records, {"ring": ring(2)}, "")
    ((curvature, share),) = panels(figure)
    assert points(curvature) == [[[1, 1], [4, 4]]]
    assert points(share) == [[[3, 0.5]]]
    assert share.get_xlim()[1] >= 5


def test_a_coordinate_without_curvature_is_noted(record, ring):
    records = [record(1, **of([1]), **of([None], name=NAMES[1])), record(1, 0, "other", **of([2]))]
    notes = [
        [text.get_text() for text in axes.texts]
        for pair in panels(coordinates_figure(records, {"ring": ring(1)}, ""))
        for axes in pair
    ]
    assert notes == [
        [],
        [],
        ["no curvature recorded"],
        [],
        [],
        [],
        ["no curvature recorded"],
        ["no share recorded"],
    ]


@pytest.mark.parametrize(
    "nodes", [{}, {"accuracy": [0.5], "curvature": [1.0]}, of([None], [None]), of([], [])]
)
def test_records_without_coordinates_are_refused(nodes, record, ring):
    records = [record(1, **nodes)]
    assert not has_coordinates(records)
    with pytest.raises(
        UserError, match=r"run on a graph with evaluate\.coordinates, with a method that sends"
    ):
        coordinates_figure(records, {"ring": ring(1)}, "")


def test_settings_without_a_graph_are_left_out(record, ring):
    records = [record(1, setting=name, **of([1])) for name in ("star", "ring")]
    assert has_coordinates(iter(records))
    assert len(panels(coordinates_figure(records, {"ring": ring(1)}, ""))) == 1
    with pytest.raises(UserError, match="no metrics records with lists of coordinates"):
        coordinates_figure(records, {"grid": ring(1)}, "")


def test_methods_and_settings_that_have_them(record, ring, legends):
    records = [
        record(1, 0, "dechetero", "a", accuracy=[0.5]),
        record(1, 0, "dechw", "a", **of([1])),
        record(1, 0, "dechw theta=5", "a", **of([2])),
        record(1, 0, "dechetero", "b", accuracy=[0.5]),
        record(1, 3, "dechw", "c", **of([3]), **of([4], name=NAMES[1])),
    ]
    peers = {"a": ring(1), "b": ring(1), "c": ring(1, seed=3)}
    figure = coordinates_figure(records, peers, "")
    assert [part.get_suptitle() for part in figure.subfigs] == ["a", "c"]
    assert [text.get_text() for text in headings(figure)] == ["dechw", "dechw theta=5", "dechw"]
    assert [points(curvature) for curvature, _ in panels(figure)] == [
        [[[1, value]]] for value in (1, 2, 3, 4)
    ]
    assert list(legends(figure)) == ["seed 0", "seed 3"]
    alone = coordinates_figure(records, {"c": peers["c"]}, "")
    assert [part.get_suptitle() for part in alone.subfigs] == [""]


@pytest.mark.parametrize(
    ("rounds", "scale"),
    [
        ([[1e-9, 2e-9], [5, 9]], "linear"),  # far apart over rounds only
        ([[0, 1], [0, 2]], "linear"),
        ([[0, 0], [0, 0]], "linear"),
        ([[7, 7], [7, 7]], "linear"),
        ([[1e-5, 1], [2e-5, 3]], "log"),
        ([[0, 1], [2e-5, 3]], "symlog"),
        ([[1e-30, 1e9], [0, 1e9]], "symlog"),
    ],
    ids=str,
)
def test_nodes_far_apart_are_on_a_logarithmic_scale(rounds, scale, record, ring):
    records = [record(number, **of(row, [0.5] * 2)) for number, row in enumerate(rounds, start=1)]
    figure = coordinates_figure(records, {"ring": ring(2)}, "")
    ((axes, _),) = panels(figure)
    assert axes.get_yscale() == scale
    bottom, top = axes.get_ylim()
    assert all(bottom < value < top for row in rounds for value in row)
    figure.draw_without_rendering()
    labels = [label for label in axes.get_yticklabels() if bottom <= label.get_position()[1] <= top]
    assert 2 <= len(labels) <= 8
    assert (labels[0].get_text() == "0") is (scale != "log")
    assert axes.yaxis.get_offset_text().get_text() == ""
    heights = [label.get_window_extent().intervaly for label in labels]
    assert all(below[1] <= above[0] for below, above in pairwise(heights))


def test_all_panels_of_a_setting_have_the_same_kind_of_scale(record, ring):
    apart, near, nothing = ([1, 1e6], [1, 2], [0, 0])
    records = [
        record(1, 0, "one", **of(apart, [0.5] * 2), **of(nothing, [0.5] * 2, NAMES[1])),
        record(1, 0, "two", **of(near, [0.5] * 2), **of(near, [0.5] * 2, NAMES[1])),
    ]
    figure = coordinates_figure(records, {"ring": ring(2)}, "")
    assert [axes.get_yscale() for axes, _ in panels(figure)] == ["log", "linear", "log", "log"]


@pytest.mark.parametrize(("count", "rows"), [(1, [1]), (4, [4]), (5, [3, 2]), (8, [4, 4]), (9, [3, 3, 3])])
def test_many_coordinates_are_in_rows(count, rows, many):
    figure = coordinates_figure(*many(coordinates=count, rounds=1), "")
    figure.draw_without_rendering()
    uppers = [axes.get_position().y0.round(3) for axes, _ in panels(figure)]
    assert [uppers.count(height) for height in dict.fromkeys(uppers)] == rows
    assert sorted(uppers, reverse=True) == uppers
    assert all(lower.get_position().y1 < upper.get_position().y0 for upper, lower in panels(figure))


@pytest.mark.parametrize(
    "shape",
    [
        {"rounds": 1, "nodes": 1, "coordinates": 1},
        {"methods": 2, "seeds": 2, "rounds": 15, "nodes": 12, "coordinates": 4},
        {"methods": 3, "nodes": 12, "curved": 3, "coordinates": 5},
        {"settings": 2, "methods": 3, "nodes": 8, "curved": 3, "coordinates": 2},
    ],
    ids=str,
)
def test_everything_stays_inside_and_apart(shape, many, legible):
    figure = coordinates_figure(*many(**shape), "a title of ordinary length")
    legible(figure, *headings(figure))


def test_a_long_legend_and_a_long_label_fit(record, ring, legible):
    values = [0.5] * 40
    records = [record(1, 0, "dechw " + " ".join(f"option={n}" for n in range(9)), **of(values, values))]
    figure = coordinates_figure(records, {"ring": ring(40)}, "", nodes=range(40))
    legible(figure, *headings(figure))


def test_the_file_repeats(many, tmp_path):
    for name in ("a.png", "b.png"):
        coordinates_plot(*many(methods=2, nodes=5, coordinates=2), tmp_path / name, "title")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    with Image.open(tmp_path / "a.png") as image:
        assert "Software" not in image.info
        assert image.info["dpi"] == pytest.approx((150, 150), abs=0.1)
