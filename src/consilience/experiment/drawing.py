"""The plots in a run's folder. It is imported when it is needed: matplotlib takes half a second."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from consilience.config import load_config
from consilience.errors import UserError, unknown
from consilience.experiment.folder import (
    CONFIG,
    COORDINATE_PLOT,
    MAP,
    METRICS,
    NODE_PLOT,
    SUMMARY,
    SWEEP_PLOT,
    RunFolder,
    plots_of,
)
from consilience.experiment.planning import Arm, plan
from consilience.experiment.reading import known_metric
from consilience.experiment.records import peers_of
from consilience.experiment.sealing import read_sealed
from consilience.problems import Metric
from consilience.report.choosing import CURVES, best_records
from consilience.report.coordinate_plots import coordinates_plot
from consilience.report.node_map import MAPPED, map_plot
from consilience.report.node_plots import nodes_plot
from consilience.report.node_records import has_coordinates, settings_with_nodes
from consilience.report.plots import score_plot
from consilience.report.saving import FORMATS
from consilience.report.summary import Record, summarise
from consilience.report.sweep_plots import is_sweep, sweep_plot


def draw(
    records: Sequence[Record],
    arms: Sequence[Arm],
    metric: Metric,
    path: Path,
    name: str,
    kind: str = "png",
) -> list[Path]:
    """Draw scores over rounds, sweeps and, of graphs, what is recorded about their nodes; the files' paths.

    Args:
        records: as in a metrics file.
        arms: of the run; those that are not given have no graphs to draw.
        metric: the score.
        path: the folder.
        name: what stands above plots.
        kind: the format of the files.
    """
    drawn: list[Path] = []

    def file(plot: str) -> Path:
        drawn.append((path / plot).with_suffix(f".{kind}"))
        return drawn[-1]

    score_plot(records, metric, file(plots_of(metric)[0]), name)
    summaries = summarise(records, (), metric)
    if is_sweep(summaries):
        sweep_plot(summaries, metric, file(SWEEP_PLOT), name)
    settings = {arm.setting: arm for arm in arms}
    found = {
        setting: peers_of(settings[setting])
        for setting in settings_with_nodes(records)
        if setting in settings
    }
    peers = {setting: graph for setting, graph in found.items() if graph is not None}
    mapped = {setting: graph for setting, graph in peers.items() if len(graph.sizes) <= MAPPED}
    shown = best_records(records, metric) if peers else records
    if len(shown) < len(records):
        records, name = shown, f"{name}: the best {CURVES} of each setting"
    if peers:
        nodes_plot(records, peers, metric, file(NODE_PLOT), name)
    if mapped:
        map_plot(records, mapped, metric, file(MAP), name)
    if peers and has_coordinates(records):
        coordinates_plot(records, peers, file(COORDINATE_PLOT), name)
    return drawn


def redraw(path: Path, kind: str = "png", to: Path | None = None) -> list[Path]:
    """Draw the plots of a run that has ended once more, in some format, into its folder or another.

    Graphs of nodes need the data to be there, since they show how much each node holds.
    """
    if kind not in FORMATS:
        raise unknown("format", kind, FORMATS)
    if not (path / SUMMARY).exists():
        raise UserError(f"{path} does not hold a run that has ended: there is no {SUMMARY}")
    summary, folder = read_sealed(path / SUMMARY), RunFolder(path)
    records = folder.read_lines(METRICS, summary["files"][METRICS])
    folder.check_config()
    try:
        arms = plan(load_config(path / CONFIG).resolved())
        metric = arms[0].scene.task_problem.metric
    except UserError:  # data or a model of the user's own, which are not in the folder
        arms, metric = [], known_metric(summary["metric"])
    if to is not None:
        to.mkdir(parents=True, exist_ok=True)
    return draw(records, arms, metric, to or path, summary["name"], kind)
