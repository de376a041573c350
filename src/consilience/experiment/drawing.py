"""The plots in a run's folder. It is imported when it is needed: matplotlib takes half a second."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from consilience.experiment.folder import COORDINATE_PLOT, MAP, NODE_PLOT, plots_of
from consilience.experiment.planning import Arm
from consilience.experiment.records import peers_of
from consilience.problems import Metric
from consilience.report.coordinate_plots import coordinates_plot
from consilience.report.node_map import MAPPED, map_plot
from consilience.report.node_plots import nodes_plot
from consilience.report.node_records import has_coordinates, settings_with_nodes
from consilience.report.plots import score_plot
from consilience.report.summary import Record


def draw(records: Sequence[Record], arms: Sequence[Arm], metric: Metric, path: Path, name: str) -> None:
    """Draw scores over rounds and, of graphs, what is recorded about their nodes."""
    score_plot(records, metric, path / plots_of(metric)[0], name)
    settings = {arm.setting: arm for arm in arms}
    drawn = {setting: peers_of(settings[setting]) for setting in settings_with_nodes(records)}
    peers = {setting: graph for setting, graph in drawn.items() if graph is not None}
    mapped = {setting: graph for setting, graph in peers.items() if len(graph.sizes) <= MAPPED}
    if peers:
        nodes_plot(records, peers, metric, path / NODE_PLOT, name)
    if mapped:
        map_plot(records, mapped, metric, path / MAP, name)
    if peers and has_coordinates(records):
        coordinates_plot(records, peers, path / COORDINATE_PLOT, name)
