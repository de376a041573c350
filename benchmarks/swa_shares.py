"""How unevenly SWA weighs clients: `python benchmarks/swa_shares.py [--rounds N]`.

SWA's Table III (its recipe's setting, seed 0), a minute a round on two cores. In every round and layer: for
how many clients' mean the merged weights could pass (1 / sum of squared weights; ten for a plain mean), by
distances as they are and of standardised weights, and the largest weight.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar, final

from torch import Tensor

import consilience as cs
from consilience import tree
from consilience.algorithm import Inbox
from consilience.reproduce import find_recipe
from consilience.rules.gaussianity import Gaussianity
from consilience.types import Params

RESULTS = Path(__file__).parent / "results" / "swa_shares.json"


@final
@dataclass(frozen=True)
class Noted(Gaussianity):
    """SWA's rule, which notes how it weighs."""

    name: ClassVar[str] = "noted"
    ordinary: ClassVar[bool] = True
    notes: ClassVar[list[dict[str, Any]]] = []

    def merge(self, old: Params, inbox: Inbox) -> Params:
        both = ("raw", self), ("standardised", replace(self, standardise=True))
        for layer, samples in _layers(inbox["params"]):
            found = {kind: rule.coefficients(samples, inbox.weights) for kind, rule in both}
            effective = {kind: round(1 / float(shares.square().sum()), 2) for kind, shares in found.items()}
            self.notes.append({"layer": layer, **effective, "largest": round(float(found["raw"].max()), 3)})
        return super().merge(old, inbox)


def _layers(params: Params) -> Iterator[tuple[str, Tensor]]:
    """The layers' weights, [messages, size], as the rule takes them."""
    for names in tree.weight_layers(params, dimensions=3):
        name = max(names, key=lambda one: params[one].ndim)
        yield name, params[name].reshape(len(params[name]), -1)


def main() -> None:
    """Run some rounds and keep what was noted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    rounds = parser.parse_args().rounds
    (cell,) = (one for one in find_recipe("swa-table3").study(out=Path("runs")).cells if one.name == "swa")
    kept = ("data", "augment", "partition", "model", "clients", "local", "solver")
    setting = {key: cell.values[key] for key in kept}
    cs.run(
        cs.Composed(rule=Noted()),
        **setting,
        seeds=[0],
        rounds=rounds,
        evaluate={"clients": False, "every": rounds},
        on_round=lambda state: print(state.metrics["round"], Noted.notes[-1], flush=True),
    )
    layers = len(Noted.notes) // rounds
    found = [{"round": 1 + number // layers, **note} for number, note in enumerate(Noted.notes)]
    RESULTS.write_text(json.dumps({"setting": setting, "rounds": found}, indent=1) + "\n")


if __name__ == "__main__":
    main()
