"""`consilience topology`: the graphs of a configuration, in numbers and drawn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from consilience.cli import showing
from consilience.config import load_config
from consilience.engine.build import simulate
from consilience.experiment import execution as experiment
from consilience.report.graphs import graph_statistics

GRAPH = "topology={name: erdos_renyi, p: 0.3}"


def rows(text: str) -> list[list[str]]:
    """The rows of all tables, cell by cell."""
    return [line.strip("│").replace("│", " ").split() for line in text.splitlines() if line.startswith("│")]


def test_a_row_a_seed_and_a_drawing(command: Callable[..., Any], tiny: Path, out: Path):
    answer = command("topology", tiny, GRAPH, "clients=12", "seeds=[3, 0]")
    assert (answer.code, answer.err) == (0, "")
    assert "erdos_renyi: erdos_renyi, 12 nodes" in answer.out
    assert [row[0] for row in rows(answer.out)] == ["3", "0"]
    (path,) = out.iterdir()
    assert path.name == "tiny-erdos_renyi-topology.png"
    assert f"plot: {path}\n" in answer.out
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        assert min(picture.size) >= 500


def test_the_graphs_are_those_of_a_run(
    command: Callable[..., Any], tiny: Path, monkeypatch: pytest.MonkeyPatch
):
    words = [GRAPH, "clients=12", "seeds=[3, 0]", "partition={name: dirichlet_class, alpha: 0.3}"]
    drawn: list[Any] = []
    monkeypatch.setattr(showing, "graph_plot", lambda *given: drawn.append(given))
    answer = command("topology", tiny, *words)
    (arm,) = experiment.plan(load_config(tiny, words))
    replicas = simulate(arm.scene, arm.variants).world.replicas
    for replica, row in zip(replicas, rows(answer.out), strict=True):
        assert replica.adjacency is not None
        found = graph_statistics(replica.adjacency)
        assert row == [
            str(replica.seed),
            str(found.edges),
            str(found.degree_min),
            f"{found.degree_mean:.2f}",
            str(found.degree_max),
            "1",
            str(found.diameter),
            f"{found.spectral_gap:.4f}",
            f"{found.clustering:.3f}",
        ]
    ((adjacency, sizes, _, title, names),) = drawn
    assert not names
    np.testing.assert_array_equal(adjacency, replicas[0].adjacency)
    assert sizes == [len(shard) for shard in replicas[0].shards]
    assert title == "erdos_renyi, mnist-sample, seed 3"


def test_every_setting_that_has_a_graph(command: Callable[..., Any], tiny: Path, out: Path):
    settings = "compare=[{label: a b, topology: ring}, {label: c, topology: star}, {topology: star_graph}]"
    answer = command("topology", tiny, settings)
    assert (answer.code, answer.err) == (0, "")
    assert "a b: ring, 3 nodes" in answer.out
    assert "star_graph: star_graph, 3 nodes" in answer.out
    assert {path.name for path in out.iterdir()} == {"tiny-a-b-topology.png", "tiny-star_graph-topology.png"}


def test_a_graph_from_a_file_shows_and_runs(command: Callable[..., Any], tiny: Path, tmp_path: Path):
    path = tmp_path / "graph.edges"
    path.write_text("a b\nb c\nd d\n")
    topology = f"topology={{name: file, path: {path}, allow_disconnected: true}}"
    shown = command("topology", tiny, topology, "clients=")
    assert (shown.code, shown.err) == (0, "")
    assert "file: file, 4 nodes" in shown.out
    assert rows(shown.out)[0][:7] == ["0", "2", "0", "1.00", "2", "2", "2"]
    run = command("run", tiny, topology, "clients=", "rounds=1", "method=dechomo")
    assert (run.code, run.err) == (0, "")
    assert command("resume", tmp_path / "out" / "tiny").code == 0


REFUSED = [
    # (overrides, what the line says)
    ([], "tiny has no graph to show: its topology is a star; set another, e.g. topology=ring"),
    (["compare=[{rounds: 1}, {rounds: 2}]"], "tiny has no graph to show"),
    (["topology=watts_strogatz"], "watts_strogatz: k must be below the 3 nodes, not 4"),
    (["topology={name: watts_strogatz, k: 3}"], "watts_strogatz: k must be even and at least 2, not 3"),
    (["topology=random_regular"], "random_regular: degree must be from 1 to 2 for 3 nodes, not 4"),
    (["topology={name: random_regular, degree: 1}"], "3 nodes of degree 1 have 3 ends of edges"),
    (["topology=grid", "clients=7"], "grid: 7 nodes make no rectangle"),
    (["topology={name: grid, rows: 2}"], "grid: 3 nodes do not make 2 rows"),
    (["topology={name: grid, row: 2}"], "unknown option of topology grid 'row'; did you mean 'rows'?"),
    (
        ["topology={name: ring, allow_disconnected: maybe}"],
        "allow_disconnected: Input should be a valid boolean",
    ),
    (["topology=file"], "topology file: a path is missing"),
    (["topology={name: file, path: none.txt}"], "cannot read none.txt: No such file or directory"),
    (["topology={name: file, path: tiny.yaml}"], "tiny.yaml does not end in any of .edges"),
    (["topology={name: file, path: two.edges}"], "topology has 4 nodes, but clients is 3"),
    (["topology={name: file, path: two.edges}", "clients="], "2 components (of 2, 2 nodes)"),
]


@pytest.mark.parametrize(
    ("overrides", "line"), REFUSED, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_refused(
    overrides: list[str],
    line: str,
    command: Callable[..., Any],
    tiny: Path,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
):
    (tiny.parent / "two.edges").write_text("0 1\n2 3\n")
    monkeypatch.chdir(tiny.parent)
    for verb in ("topology", "run") if "no graph" not in line else ("topology",):
        answer = command(verb, tiny.name, *overrides)
        assert (answer.code, answer.out) == (2, "")
        assert answer.err.startswith("consilience: ")
        assert answer.err.count("\n") == 1
        assert line in answer.err
        assert not out.exists()
