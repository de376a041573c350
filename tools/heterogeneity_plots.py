"""Draw the plots of docs/heterogeneity.md from the MNIST sample: splits, measures over alpha, what it costs.

python tools/heterogeneity_plots.py
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

import consilience as cs
from consilience.data import Dataset, load
from consilience.data.heterogeneity import class_counts, effective_classes, label_distance, quantity_gini
from consilience.data.partition import partition
from consilience.data.partitioners import DirichletClass, DirichletClient, Iid, Partitioner, ShardsTwoClasses
from consilience.report.bubbles import BUBBLE, FONT, GRID, INK
from consilience.report.plots import COLOURS, MARKERS
from consilience.report.saving import save

IMAGES = Path(__file__).parents[1] / "docs" / "images"
CLIENTS = 10
ALPHAS = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0)
DRAWS = range(20)
TRAINED = (0.03, 0.1, 0.3, 1.0, 10.0)
METHODS = ("fedavg", "fedprox", "hwa")
SEEDS = range(5)


def main() -> None:
    """Write the three images."""
    data = load("mnist-sample")
    draw_splits(data)
    draw_measures(data)
    draw_cost(data)


def shards_of(data: Dataset, partitioner: Partitioner, seed: int) -> tuple[np.ndarray, ...]:
    """The rows of every client."""
    return partition(partitioner, data.targets.numpy(), CLIENTS, seed).shards


def draw_splits(data: Dataset) -> None:
    """Draw who holds how much of which class, by three partitioners."""
    labels = data.targets.numpy()
    chosen = {
        "iid": Iid(),
        "dirichlet_class, alpha 0.1": DirichletClass(alpha=0.1),
        "shards_two_classes": ShardsTwoClasses(),
    }
    figure, panels = panels_of(len(chosen), 3.1)
    for axes, (title, partitioner) in zip(panels, chosen.items(), strict=True):
        shards = shards_of(data, partitioner, 0)
        counts = class_counts(labels, shards, 10)
        client, label = np.nonzero(counts)
        axes.scatter(
            client,
            label,
            s=170 * counts[client, label] / 600,
            color=BUBBLE,
            linewidths=0,
            zorder=2,
            clip_on=False,
        )
        axes.set_xticks(range(CLIENTS))
        axes.set_yticks(range(10))
        axes.set_xlabel("client", fontsize=FONT, color=INK)
        found = (
            f"label distance {label_distance(labels, shards, 10):.2f}, "
            f"{effective_classes(labels, shards, 10):.1f} classes, "
            f"Gini {quantity_gini([len(rows) for rows in shards]):.2f}"
        )
        axes.set_title(f"{title}\n{found}", fontsize=FONT, color=INK, loc="left")
    panels[0].set_ylabel("class", fontsize=FONT, color=INK)
    save(figure, IMAGES / "heterogeneity-splits.png")


def draw_measures(data: Dataset) -> None:
    """Draw the three measures over alpha: means over draws, in bands from the least to the most."""
    labels = data.targets.numpy()
    kinds = {"dirichlet_class": DirichletClass, "dirichlet_client": DirichletClient}
    figure, panels = panels_of(3, 2.9)
    titles = ("label distance", "effective classes a client", "Gini coefficient of sizes")
    for number, (name, kind) in enumerate(kinds.items()):
        found = np.array(
            [
                [measures(labels, shards_of(data, kind(alpha=alpha), seed)) for seed in DRAWS]
                for alpha in ALPHAS
            ]
        )
        for place, axes in enumerate(panels):
            values = found[:, :, place]
            axes.fill_between(
                ALPHAS, values.min(1), values.max(1), color=COLOURS[number], alpha=0.15, linewidth=0
            )
            axes.plot(
                ALPHAS,
                values.mean(1),
                color=COLOURS[number],
                marker=MARKERS[number],
                markersize=4,
                label=name,
            )
    for axes, title in zip(panels, titles, strict=True):
        axes.set_xscale("log")
        axes.set_ylim(bottom=0)
        axes.set_xlabel("alpha", fontsize=FONT, color=INK)
        axes.set_title(title, fontsize=FONT, color=INK, loc="left")
    panels[0].legend(fontsize=FONT - 1, frameon=False, labelcolor=INK)
    save(figure, IMAGES / "heterogeneity-measures.png")


def measures(labels: np.ndarray, shards: Sequence[np.ndarray]) -> tuple[float, float, float]:
    """The label distance, the effective number of classes and the Gini coefficient of a split."""
    sizes = [len(rows) for rows in shards]
    return label_distance(labels, shards, 10), effective_classes(labels, shards, 10), quantity_gini(sizes)


def draw_cost(data: Dataset) -> None:
    """Draw the accuracy of three methods over the label distance: means and deviations over seeds."""
    figure, (axes,) = panels_of(1, 3.2)
    distances = [mean_distance(data, alpha) for alpha in TRAINED]
    found = np.stack([accuracies(alpha) for alpha in TRAINED])  # [alphas, methods, seeds], in per cent
    print("label distance", *(f"{distance:.2f}" for distance in distances))
    for number, method in enumerate(METHODS):
        means, spreads = found[:, number].mean(1), found[:, number].std(1, ddof=1)
        print(method, *(f"{mean:.1f}+-{spread:.1f}" for mean, spread in zip(means, spreads, strict=True)))
        apart = [distance + 0.006 * (number - 1) for distance in distances]  # so that bars can be told apart
        axes.errorbar(
            apart,
            means,
            spreads,
            color=COLOURS[number],
            marker=MARKERS[number],
            markersize=4,
            capsize=2,
            label=method,
        )
    low, high = axes.get_ylim()
    axes.set_ylim(low - 0.08 * (high - low), high)  # room for the words below
    for distance, alpha in zip(distances, TRAINED, strict=True):
        place = {"xycoords": ("data", "axes fraction"), "ha": "center", "color": INK}
        axes.annotate(f"alpha {alpha:g}", (distance, 0.02), fontsize=FONT - 2, **place)
    axes.set_xlabel("label distance, mean of five seeds", fontsize=FONT, color=INK)
    axes.set_ylabel("test accuracy after 20 rounds, %", fontsize=FONT, color=INK)
    axes.legend(fontsize=FONT - 1, frameon=False, labelcolor=INK, loc="center left")
    save(figure, IMAGES / "heterogeneity-cost.png")


def mean_distance(data: Dataset, alpha: float) -> float:
    """The mean label distance of the splits on which `accuracies` trains."""
    labels, split = data.targets.numpy(), DirichletClass(alpha=alpha, min_size=10)
    return float(np.mean([label_distance(labels, shards_of(data, split, seed), 10) for seed in SEEDS]))


def accuracies(alpha: float) -> np.ndarray:
    """[methods, seeds] the test accuracy after 20 rounds, with the solver of the HWA paper."""
    result = cs.run(
        METHODS,
        data="mnist-sample",
        partition={"name": "dirichlet_class", "alpha": alpha, "min_size": 10},
        model={"name": "mlp", "hidden": [64, 64]},
        clients=CLIENTS,
        rounds=20,
        local={"epochs": 5, "batch_size": 32},
        solver={"name": "sgd", "lr": 0.001, "momentum": 0.9, "weight_decay": 0.001},
        evaluate={"every": 20, "clients": False},
        seeds=list(SEEDS),
    )
    found = np.zeros((len(METHODS), len(SEEDS)))
    for line in result.records:
        if line["round"] == 20:
            found[METHODS.index(line["method"]), line["seed"]] = 100 * line["test_accuracy"]
    return found


def panels_of(number: int, height: float) -> tuple[Figure, list[Axes]]:
    """A figure with panels side by side, in the manner of the library's own plots."""
    figure = Figure(
        figsize=(3.4 * number if number > 1 else 5.6, height), facecolor="white", layout="constrained"
    )
    FigureCanvasAgg(figure)
    panels = [figure.add_subplot(1, number, place + 1) for place in range(number)]
    for axes in panels:
        axes.tick_params(which="both", length=0, labelsize=FONT - 1, labelcolor=INK)
        axes.grid(color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)
        axes.spines[:].set_visible(False)
    return figure, panels


if __name__ == "__main__":
    main()
