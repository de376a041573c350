"""What `mutated_configurations` begins with, and what it puts in place of something."""

from __future__ import annotations

from typing import Any

from consilience.algorithms import ALIASES, METHODS
from consilience.config import Config
from consilience.data.partitioners import PARTITIONERS
from consilience.graphs import TOPOLOGIES
from consilience.learning.schedules import SCHEDULES
from consilience.learning.solvers import SOLVERS
from consilience.models import MODELS
from consilience.objectives import OBJECTIVES
from consilience.rules import RULES
from consilience.server_steps import SERVER_STEPS
from consilience.transforms import TRANSFORMS

Values = dict[str, Any]

BASES: dict[str, Values] = {
    "graph": {
        "method": ["dechw", {"name": "fedavg", "label": "plain"}],
        "topology": {"name": "erdos_renyi", "nodes": 4, "p": 0.8},
        "network": {"loss": 0.1, "wake": [0.5, 1.0], "staleness": 2},
        "evaluate": {"every": 2, "clients": True, "nodes": True, "trained": False},
        "init": "different",
        "seeds": [0, 1],
    },
    "parts": {
        "method": [
            {
                "objective": {"name": "proximal", "mu": [0.1, 1]},
                "rule": {"name": "trimmed_mean", "fraction": 0.3},
                "label": "mine",
            },
            {"name": "fedavg", "transforms": [{"name": "noised", "sigma": 0.1}], "label": "noisy"},
            {"name": "fedavg", "then": {"method": "fedprox", "after": 2}, "label": "both"},
        ],
        "solver": {"name": "adam", "lr": [0.1, 0.01]},
        "schedule": {"name": "cosine", "warmup": 1},
        "local": {"steps": 2, "batch_size": 8, "clip": 1.0},
        "partition": {"name": "dirichlet_class", "alpha": [0.5, 1.0]},
        "metrics": ["f1_macro"],
        "stop_when": {"accuracy": 0.9, "patience": 3},
        "targets": {"accuracy": [0.5, 0.8]},
    },
    "everything": {
        "name": "all",
        "note": "what there is",
        "out": "runs",
        "data": {"name": "mnist-sample", "normalize": "standard", "resident": "always"},
        "augment": ["flip", {"name": "crop", "padding": 2}],
        "problem": {"name": "classification"},
        "clients": [3, 4],
        "participation": 0.5,
        "failure_rate": 0.1,
        "l2": 0.01,
        "executor": "sequential",
        "lanes": 2,
        "memory": "2GB",
        "device": "cpu",
        "dtype": "float64",
        "precision": "fp32",
        "compile": "never",
        "checkpoint": {"every": 2},
        "memories": {"resident": "never"},
        "deploy": {"quorum": 0.5, "deadline": 10, "secret": "seed"},
        "compare": [{"label": "a", "partition": "iid"}, {"label": "b", "rounds": 2}],
    },
}
"""What the examples do not show."""
SMALL: Values = {"model": {"name": "mlp", "hidden": [8, 4]}, "clients": 4, "rounds": 3}

STUDY: Values = {
    "name": "study",
    "base": {**SMALL, "method": "fedprox"},
    "grid": {"method.mu": [0.1, 1.0], "partition.alpha": [0.5], "partition": ["dirichlet_class"]},
    "cells": [{"label": "one", "rounds": 2, "solver.lr": 0.5}],
    "apart": True,
}

RECIPE: Values = {
    "title": "A table",
    "paper": "Somebody",
    "open": ["How pixels are scaled."],
    "base": {**SMALL, "method": "fedavg", "seeds": [0, 1]},
    "cells": [{"label": "first", "method": ["fedavg", "hwa"]}, {"label": "second", "clients": 3}],
    "quick": {"rounds": 1, "seeds": [0]},
    "tables": [
        {
            "title": "scores",
            "where": {"cell": "first"},
            "rows": {"FedAvg": "fedavg*", "HWA": {"method": "hwa*"}},
            "columns": {"end": "star", "20 %": {"target": 0.2}},
            "paper": {"FedAvg": [90.5, 3], "HWA": [91, None]},
        }
    ],
    "claims": [
        {"says": "HWA is ahead", "tables": "scores", "ahead": "HWA", "of": ["FedAvg"]},
        {"says": "Both are alike", "columns": "end", "alike": 1.0},
    ],
}

NUMBERS: list[Any] = [
    0, -1, 1, 2, 3, 7, 100, 999, 2**31, 2**62, 2**63, 2**64, 10**18, -(10**18), 10**30,
    0.5, -0.5, 1e-320, 1e308, float("inf"), float("-inf"), float("nan"),
    "1e-3", "1e400", "-0", "\u0663", "\uff11\uff12", "0x_", "12:30:45", "9" * 5000,
]  # fmt: skip
TEXTS: list[Any] = [
    "", " ", "auto", "none", "null", "x", "a" * 300, "a" * 20_000, "ä" * 150, "a\0b", "\x1b[31mred",
    "\u202eback", "two\nlines", "2020-02-30", "../../x", "/dev/null", "/dev/zero", "no.such:Thing",
    "json:loads", "<python>", "cuda:" + "9" * 5000, "cuda:99", "cuda:\u0663", "8GB", "{}", "&a", "*a", "%s%n",
]  # fmt: skip
OTHERS: list[Any] = [
    None, True, False, [], {}, [[]], [None], [True], {"name": None}, {"name": 5}, {"name": "<python>"},
    {"own": 1}, {"name": "mnist-sample", "own": {"clients": 3}}, [1, 1], ["a", "b"], list(range(10_000)),
    [0.1] * 2000, [[1, 2], [3]], {"a": {"b": {"c": 1}}}, {"": 1}, {"x" * 500: 1}, [{}],
    [{"name": "fedavg"}] * 3, list(range(1, 60)), {f"k{number}": number for number in range(300)},
]  # fmt: skip
NAMES = [*METHODS, *ALIASES, *PARTITIONERS, *TOPOLOGIES, *SOLVERS, *SCHEDULES, "logistic", "mnist_cnn", "mlp"]
PARTS = [*NAMES, *RULES, *OBJECTIVES, *SERVER_STEPS, *TRANSFORMS, *MODELS]
KEYS = [
    *Config.model_fields,
    "lr",
    "epochs",
    "label",
    "name",
    "own",
    "nodes",
    "alpha",
    "hidden",
    "_x",
    "a b",
    "ü",
]
