"""The bubble plot: areas proportional to counts, nothing overlaps, nothing leaves the image."""

from __future__ import annotations

from itertools import pairwise

import matplotlib
import numpy as np
import pytest
from PIL import Image

from consilience.errors import UserError
from consilience.report.bubbles import bubble_figure, bubble_plot

SHAPES = [(1, 1), (2, 10), (10, 2), (10, 10), (50, 10), (100, 10), (101, 10), (200, 10), (10, 100), (700, 62)]


def counts_of(clients: int, classes: int) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 500, size=(clients, classes)) + 1


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bubbles_are_proportional_and_apart(shape):
    counts = counts_of(*shape)
    figure = bubble_figure(counts, "title")
    shown = []
    for axes in figure.axes:
        (bubbles,) = axes.collections
        places, areas = bubbles.get_offsets().astype(int), bubbles.get_sizes()
        shown.extend(map(tuple, places))
        held = counts[places[:, 0], places[:, 1]]
        np.testing.assert_allclose(areas / held, areas[0] / held[0])
        corner, beside, above = axes.transData.transform([(0, 0), (1, 0), (0, 1)]) * 72 / figure.dpi
        assert np.sqrt(areas.max()) < min(beside[0] - corner[0], above[1] - corner[1])
    assert sorted(shown) == sorted(np.ndindex(shape))


@pytest.mark.parametrize("names", [None, ["a rather long name"]], ids=["numbers", "names"])
@pytest.mark.parametrize("shape", SHAPES[:-1], ids=str)
def test_everything_stays_inside_the_image(shape, names):
    figure = bubble_figure(counts_of(*shape), "title", names and names * shape[1])
    figure.draw_without_rendering()
    box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
    assert box.x0 >= 0
    assert box.y0 >= 0
    assert box.x1 <= width
    assert box.y1 <= height


def test_tick_labels_do_not_touch():
    for shape in SHAPES:
        figure = bubble_figure(counts_of(*shape))
        figure.draw_without_rendering()
        for axis, low, high in (("xaxis", "x0", "x1"), ("yaxis", "y0", "y1")):
            labels = getattr(figure.axes[0], axis).get_ticklabels()
            boxes = [label.get_window_extent() for label in labels]
            ends = [(getattr(box, low), getattr(box, high)) for box in boxes]
            assert all(before[1] < after[0] for before, after in pairwise(ends))


def test_empty_cells_have_no_bubble():
    counts = np.array([[3, 0], [0, 0], [0, 12]])
    figure = bubble_figure(counts, class_names=["cat", "dog"])
    (bubbles,) = figure.axes[0].collections
    assert bubbles.get_offsets().tolist() == [[0, 0], [2, 1]]
    assert [label.get_text() for label in figure.axes[0].get_yticklabels()] == ["cat", "dog"]


@pytest.mark.parametrize(
    ("largest", "references"), [(6742, ["6,000", "1,000", "400"]), (1, ["1"]), (0, ["1"])]
)
def test_reference_bubbles_have_the_scale_of_the_plot(largest, references):
    figure = bubble_figure(np.array([[largest, 0]]))
    legend = figure.axes[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == references
    if largest:
        (area,) = figure.axes[0].collections[0].get_sizes()
        handle = legend.legend_handles[0]
        reference = int(references[0].replace(",", ""))
        assert handle.get_markersize() ** 2 == pytest.approx(area * reference / largest)


def test_the_file_repeats_and_settings_stay(tmp_path):
    before = dict(matplotlib.rcParams)
    for name in ("a.png", "b.png"):
        bubble_plot(counts_of(10, 10), tmp_path / name, "ten clients")
    assert (tmp_path / "a.png").read_bytes() == (tmp_path / "b.png").read_bytes()
    assert dict(matplotlib.rcParams) == before
    with Image.open(tmp_path / "a.png") as image:
        assert image.width > 500
        assert len(image.convert("RGB").getcolors(1 << 20)) > 10


@pytest.mark.parametrize(
    ("counts", "names", "message"),
    [
        (np.zeros(3, dtype=int), None, r"shape \[clients, classes\], not \[3\]"),
        (np.zeros((0, 3), dtype=int), None, r"not \[0, 3\]"),
        (np.zeros((2, 3), dtype=int), ["a", "b"], "2 class names for 3 classes"),
    ],
)
def test_wrong_input_is_refused(counts, names, message):
    with pytest.raises(UserError, match=message):
        bubble_figure(counts, class_names=names)
