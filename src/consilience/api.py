"""The library from Python: a function that runs things, and one that loads what came out."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from consilience.algorithm import Algorithm
from consilience.config.config import read_config
from consilience.engine.spread.joining import begin
from consilience.errors import UserError, kind_of
from consilience.experiment import Listener, Result
from consilience.experiment import run as run_experiment
from consilience.experiment.folder import Existing, RunFolder
from consilience.experiment.stopping import Functions
from consilience.experiment.weights import load_model

__all__ = ["load_model", "run"]

Method = Algorithm | str | dict[str, Any]


def run(
    method: Method | Sequence[Method],
    *,
    out: str | Path | None = None,
    existing: Existing = "refuse",
    listener: Listener | None = None,
    on_round: Functions = (),
    **settings: Any,
) -> Result:
    """Run one method, or compare several, and return what came out.

    >>> result = run("fedavg", data="mnist-sample", clients=5, rounds=1, model={"name": "mlp", "hidden": [9]})
    >>> result.accuracy > 0.1
    True

    Args:
        method: An Algorithm, a name, a mapping as in a configuration file, or several of these.
        out: Where to write the run's folder; by default nothing is written.
        existing: What to do if the folder holds a run: refuse, overwrite, or resume it.
        listener: What is told about every round; by default bars in a notebook, and nothing elsewhere.
        on_round: A function, or several, called after every round with a RoundState for each seed and
            variant, whose models and metrics it sees; one that returns "stop" ends that seed and variant.
        settings: The keys of a configuration file (`consilience schema`). `data` may also be a Dataset,
            `model` any `torch.nn.Module` or what makes one, and `problem`, `model`, `partition`, `topology`
            and `solver` may be objects of this library.
    """
    if not isinstance(listener, Listener | None):
        raise UserError(f"listener: a Listener is wanted, not {kind_of(listener)}")
    begin(settings)
    place = {} if out is None else {"out": out}
    config = read_config({**settings, **place, "method": method}, "run")
    folder = None if out is None else RunFolder(config.out / config.name)
    return run_experiment(config, folder=folder, existing=existing, listener=listener, on_round=on_round)
