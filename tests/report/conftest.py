"""Records about nodes, graphs of them, and what can be read from a figure."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from consilience.report.node_records import Peers


def _record(number=1, seed=0, method="dechw", setting="ring", **nodes):
    return {"setting": setting, "method": method, "seed": seed, "round": number} | (
        {"nodes": nodes} if nodes else {}
    )


@pytest.fixture
def record():
    """A metrics record with lists over nodes, if any are given."""
    return _record


@pytest.fixture
def ring():
    """So many peers in a ring, of which each holds a row more than the one before it."""

    def build(nodes: int, seed: int = 0) -> Peers:
        here = np.arange(nodes)
        adjacency = np.zeros((nodes, nodes), bool)
        adjacency[here, (here + 1) % nodes] = nodes > 1
        return Peers(seed, adjacency | adjacency.T, tuple(range(100, 100 + nodes)))

    return build


@pytest.fixture
def many(ring):
    """Records of random numbers with the graphs of their settings; coordinates for the first methods."""

    def build(settings=1, methods=1, seeds=1, rounds=5, nodes=4, curved=1, coordinates=0):
        random = np.random.default_rng(0)
        labels = [f"method {number}" for number in range(methods - 1)]
        labels.append("a rather long one mu=0.01 lr=0.1 beta=1")

        def lists(label):
            names = [f"layers.{number}.weight[{number}, 17, 2, 2]" for number in range(coordinates)]
            powers = {
                "consensus": random.uniform(-1, 1, nodes),
                **{f"curvature {name}": random.uniform(-9, 2, nodes) for name in names},
            }
            shares = ["accuracy", "trained_accuracy", "curvature", *(f"weight {name}" for name in names)]
            found = {key: random.uniform(0, 1, nodes) for key in shares} | {
                k: 10**v for k, v in powers.items()
            }
            of_all = ("accuracy", "trained_accuracy", "consensus")
            return {k: v.tolist() for k, v in found.items() if label in labels[:curved] or k in of_all}

        records = [
            _record(number, seed, label, f"setting {setting}", **lists(label))
            for setting in range(settings)
            for label in labels
            for seed in range(seeds)
            for number in range(1, rounds + 1)
        ]
        return records, {f"setting {setting}": ring(nodes) for setting in range(settings)}

    return build


@pytest.fixture
def legends():
    """Of a figure: by title, the labels."""

    def read(figure):
        found = [artist for axes in figure.axes for artist in axes.artists]
        return {one.get_title().get_text(): [text.get_text() for text in one.get_texts()] for one in found}

    return read


@pytest.fixture
def legible():
    """Asserts that nothing is cut off and that nothing lies on something else."""

    def check(figure, *headings):
        figure.draw_without_rendering()
        box, (width, height) = figure.get_tightbbox(), figure.get_size_inches()
        assert box.x0 >= 0
        assert box.y0 >= 0
        assert box.x1 <= width
        assert box.y1 <= height
        titles = [title for axes in figure.axes for title in (axes.title, axes._left_title)]
        seen = [
            *(text.get_window_extent() for text in [*titles, *headings] if text.get_text()),
            *(artist.get_window_extent() for axes in figure.axes for artist in axes.artists),
            *(axes.get_window_extent() for axes in figure.axes if axes.axison),
        ]
        assert not [pair for pair in combinations(seen, 2) if pair[0].overlaps(pair[1])]

    return check
