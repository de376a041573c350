"""What a configuration does before anything is trained: how it splits the data, and who hears whom.

Both are drawn. It is imported when somebody asks for them: matplotlib takes half a second.
"""

from __future__ import annotations

import numpy as np
from rich.table import Table
from rich.text import Text

from consilience.cli.screen import console
from consilience.config.config import Config
from consilience.data import load
from consilience.data.heterogeneity import class_counts, effective_classes, label_distance, quantity_gini
from consilience.data.partition import Partition
from consilience.errors import UserError, printable
from consilience.experiment import split
from consilience.graphs.base import Adjacency
from consilience.learning.randomness import Purpose, generator
from consilience.report.bubbles import bubble_plot
from consilience.report.graphs import graph_plot, graph_statistics


def show_partitions(config: Config, kind: str = "png") -> None:
    """How the data of every setting and seed are split: measures and a hash; the first seed is drawn."""
    screen = console()
    for setting, one in config.settings():
        dataset = one.data.own or load(one.data.name)
        known = (one.problem or dataset.problem).has_classes
        labels = dataset.targets.numpy() if known else np.zeros(len(dataset.targets), dtype=np.int64)
        classes = dataset.outputs if known else 1
        table = Table(title=f"{setting}: {one.partition.name}, {one.population} clients of {one.data.name}")
        for column in (
            "seed",
            "smallest",
            "median",
            "largest",
            "dropped",
            "label distance",
            "classes a client",
        ):
            table.add_column(column, justify="right")
        table.add_column("size Gini", justify="right")
        table.add_column("hash")
        parts = split(one, dataset)
        for seed, part in parts.items():
            sizes = [len(rows) for rows in part.shards]
            table.add_row(
                str(seed),
                str(min(sizes)),
                f"{np.median(sizes):g}",
                str(max(sizes)),
                str(part.dropped),
                f"{label_distance(labels, part.shards, classes):.3f}" if known else "–",
                f"{effective_classes(labels, part.shards, classes):.2f}" if known else "–",
                f"{quantity_gini(sizes):.3f}",
                str(part.manifest()["sha256"])[:12],
            )
        screen.print(table)
        first = parts[one.seeds[0]]
        if first.names:
            screen.print(_clients(first))
        path = one.out / f"{one.name}-{setting.replace(' ', '-')}-partition.{kind}"
        path.parent.mkdir(parents=True, exist_ok=True)
        title = f"{one.partition.name}, {one.data.name}, seed {one.seeds[0]}"
        counts = class_counts(labels, first.shards, classes)
        bubble_plot(counts, path, title, None if known else ["all"], first.names)
        print(f"plot: {path}")


def _clients(part: Partition) -> Table:
    """Who holds how much, of clients that have names."""
    table = Table("client")
    for column in ("training rows", "own test rows"):
        table.add_column(column, justify="right")
    for name, rows, tests in zip(part.names, part.shards, part.holdouts, strict=True):
        table.add_row(Text(printable(name)), str(len(rows)), str(len(tests)))
    return table


def show_topologies(config: Config, kind: str = "png") -> None:
    """The graph of every setting and seed: measures of its shape; the first seed's is drawn."""
    settings = [(setting, one, graphs) for setting, one in config.settings() if (graphs := _graphs(one))]
    if not settings:
        raise UserError(
            f"{config.name} has no graph to show: its topology is a star; set another, e.g. topology=ring"
        )
    screen = console()
    for setting, one, graphs in settings:
        table = Table(title=f"{setting}: {one.topology.name}, {one.population} nodes")
        for column in (
            "seed",
            "edges",
            "smallest degree",
            "mean degree",
            "largest degree",
            "components",
            "diameter",
            "spectral gap",
            "clustering",
        ):
            table.add_column(column, justify="right")
        for seed, graph in graphs.items():
            found = graph_statistics(graph)
            table.add_row(
                str(seed),
                str(found.edges),
                str(found.degree_min),
                f"{found.degree_mean:.2f}",
                str(found.degree_max),
                str(found.components),
                str(found.diameter),
                f"{found.spectral_gap:.4f}",
                f"{found.clustering:.3f}",
            )
        screen.print(table)
        first = one.seeds[0]
        held = split(one, one.data.own or load(one.data.name))[first]
        sizes = [len(rows) for rows in held.shards]
        path = one.out / f"{one.name}-{setting.replace(' ', '-')}-topology.{kind}"
        path.parent.mkdir(parents=True, exist_ok=True)
        title = f"{one.topology.name}, {one.data.name}, seed {first}"
        graph_plot(graphs[first], sizes, path, title, held.names)
        print(f"plot: {path}")


def _graphs(config: Config) -> dict[int, Adjacency]:
    """The graphs that a run uses, by seed; none for a star."""
    drawn = {
        seed: config.topology.adjacency(config.population, generator(seed, Purpose.TOPOLOGY))
        for seed in config.seeds
    }
    return {seed: graph for seed, graph in drawn.items() if graph is not None}
