"""Stopping before the last round: who stops and why, and what is kept of who has stopped.

Seeds and variants train as one computation, whose numbers depend, in their last bits, on who takes part. One
that has stopped therefore trains on, so that the others get the bits that they would get without it; what it
was when it stopped is kept, and nothing more is recorded of it.
"""

from __future__ import annotations

import inspect
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch import nn

from consilience import tree
from consilience.config.stopping import OPTIONS, StopWhen
from consilience.engine.rounds.simulation import Simulation
from consilience.engine.scene import Scene
from consilience.errors import UserError, unknown
from consilience.experiment.planning import Arm, check_target
from consilience.experiment.weights import filled, network_of
from consilience.plugins import place_of
from consilience.problems import Metric
from consilience.transfer import to_device
from consilience.types import State

Line = Mapping[str, Any]
"""A line of the metrics."""

PREFIXES = ("test_", "trained_", "personal_train_", "personal_")
STOPPED = "stopped."
"""What stands before the names of what is kept of a replica that has stopped, in a checkpoint."""
PERSONAL = "personal."
"""What follows that of clients' own models."""


@dataclass(frozen=True)
class RoundState:
    """What a function that is called after every round sees of one seed of one variant."""

    setting: str
    method: str
    seed: int
    round: int
    """The round that is over, counted from 1."""
    rounds: int
    """How many there will be, unless something stops them."""
    metrics: Line
    """The line of metrics.jsonl about the round; scores are there in rounds with an evaluation."""
    _models: Callable[[], State] = field(repr=False)
    _module: Callable[[State], nn.Module] = field(repr=False)

    @cached_property
    def models(self) -> State:
        """`params` and `buffers`: the server's model, or those of all nodes or clients, stacked."""
        return self._models()

    def module(self, number: int = 0) -> nn.Module:
        """One of the models as a module in evaluation mode: that of a node or client where each has one."""
        count = len(next(iter(self.models["params"].values())))
        if not 0 <= number < count:
            raise UserError(
                f"there is no model {number} of {self.method}: they are counted from 0 to {count - 1}"
            )
        return self._module(tree.index(self.models, number)).eval()


OnRound = Callable[[RoundState], "str | None"]
"""A function that is called after every round; what it returns is None, or "stop"."""


Functions = OnRound | Sequence[OnRound]
"""One such function, or several."""


Pause = Callable[[], bool]
"""Asked after every round whether the run shall save its state and end for now."""


def never() -> bool:
    """A run that does not pause."""
    return False


def read_functions(given: Functions) -> tuple[OnRound, ...]:
    """The functions; what cannot be called with the state of a round is refused before the first one."""
    functions = tuple(given) if isinstance(given, Sequence) and not isinstance(given, str) else (given,)
    for one in functions:
        if not callable(one):
            raise UserError(f"on_round: a function of the state of a round is wanted, not {one!r}")
        try:
            inspect.signature(one).bind(None)
        except TypeError as error:
            raise UserError(f"on_round: {place_of(one)} is to take the state of a round: {error}") from None
        except ValueError:  # one that is not written in Python
            continue
    return functions


def state_of(arm: Arm, simulation: Simulation, replica: int, line: Line) -> RoundState:
    """What a function sees of a replica after a round."""
    frozen = simulation.world.task.frozen
    return RoundState(
        arm.setting,
        str(line["method"]),
        int(line["seed"]),
        int(line["round"]),
        arm.config.rounds,
        dict(line),
        lambda: simulation.models(_rows(simulation, replica)),
        lambda model: filled(
            network_of(arm.scene), tree.map_leaves(torch.clone, {**model, "frozen": frozen})
        ),
    )


def asked_to_stop(functions: Sequence[OnRound], state: RoundState) -> bool:
    """Whether one of the functions says so; all are called."""
    answers = [function(state) for function in functions]
    for answer in answers:
        if answer not in (None, "stop"):
            raise UserError(f'on_round returned {answer!r}; it must return None or "stop"')
    return "stop" in answers


def check_stopping(rule: StopWhen, scene: Scene) -> None:
    """Refuse scores that no record will have."""
    for name in (*rule.reached, *filter(None, [rule.metric])):
        _, metric = _score(name, scene)
        if name in rule.reached:
            check_target("stop_when", metric, rule.reached[name])


def _score(name: str, scene: Scene) -> tuple[str, Metric]:
    """The key of a score in records, and which of its values are good."""
    known = scene.scores
    if name == "train_loss":
        return name, known["loss"]
    prefix = next((one for one in PREFIXES if name.startswith(one)), "")
    bare = name.removeprefix(prefix)
    if bare not in known:
        raise unknown("score or option in stop_when", name, [*known, "train_loss", *OPTIONS])
    return (prefix or "test_") + bare, known[bare]


def reason_to_stop(rule: StopWhen, scene: Scene, lines: Sequence[Line], every: int) -> str | None:
    """Why a replica with these records stops after the last of them, in a few words; None where it does not.

    Args:
        rule: The conditions.
        scene: The setting, which knows the scores.
        lines: The replica's records, in order.
        every: Rounds between evaluations; those between do not count, nor does a last round between them.
    """
    seen = [line for line in lines if line["round"] % every == 0]
    now = lines[-1]["round"]
    if now % every or now < rule.after:
        return None
    for name, target in rule.reached.items():
        key, metric = _score(name, scene)
        value = seen[-1].get(key)
        if value is not None and metric.reached(value, target):
            return f"{key} {value:.4g} has reached {target:g}"
    if rule.patience is None:
        return None
    key, metric = _score(rule.metric or scene.task_problem.metric.name, scene)
    best, since = math.nan, seen[0]["round"] if seen else now
    for line in seen:
        value = line.get(key)
        gain = math.nan if value is None else (value - best if metric.higher_is_better else best - value)
        if value is not None and (math.isnan(best) or gain > rule.least):
            best, since = value, line["round"]
    if now - since >= rule.patience:
        return f"{key} was no better for {now - since} rounds than {best:.4g} in round {since}"
    return None


@dataclass(frozen=True)
class Stopped:
    """What is kept of a replica that has stopped."""

    models: State
    """Those that are evaluated, stacked."""
    personal: State
    """The clients' own beside these, stacked; nothing where a method has none."""
    clients: list[dict[str, Any]]
    """Every client's result, as `Simulation.clients` gives them."""

    @classmethod
    def of(cls, simulation: Simulation, replica: int, *, clients: bool) -> Stopped:
        """The replica as it is now; with every client's result, where that is wanted."""
        models, personal = simulation.models(_rows(simulation, replica)), simulation.personal_models(replica)
        results = simulation.clients([replica]) if clients else []
        return cls(tree.map_leaves(torch.clone, models), tree.map_leaves(torch.clone, personal), results)


def kept_of(stopped: Mapping[int, Stopped]) -> State:
    """Groups of a checkpoint that hold what has stopped."""
    groups: State = {}
    for replica, one in stopped.items():
        text = bytearray(json.dumps(one.clients).encode())
        for kind, state in (("", one.models), (PERSONAL, one.personal)):
            groups |= {f"{STOPPED}{replica}.{kind}{group}": params for group, params in state.items()}
        groups[f"{STOPPED}{replica}.clients"] = {"json": torch.frombuffer(text, dtype=torch.uint8)}
    return groups


def taken_apart(state: State, device: torch.device) -> tuple[State, dict[int, Stopped]]:
    """The state of a simulation, and what had stopped, from a checkpoint's groups."""
    rest = {group: params for group, params in state.items() if not group.startswith(STOPPED)}
    numbers = {int(group.split(".")[1]) for group in state if group.startswith(STOPPED)}
    found = {}
    for replica in sorted(numbers):
        prefix = f"{STOPPED}{replica}."
        own = {g.removeprefix(prefix): params for g, params in state.items() if g.startswith(prefix)}
        clients = json.loads(bytes(own.pop("clients")["json"].cpu().numpy()))
        whole = tree.map_leaves(lambda value: value.to(device), own)
        personal = {g.removeprefix(PERSONAL): p for g, p in whole.items() if g.startswith(PERSONAL)}
        models = {group: params for group, params in whole.items() if not group.startswith(PERSONAL)}
        empty: State = {"params": {}, "buffers": {}}
        found[replica] = Stopped({**empty, **models}, {**empty, **personal} if personal else {}, clients)
    return rest, found


def final_models(simulation: Simulation, stopped: Mapping[int, Stopped]) -> State:
    """The final models of all replicas, stacked; of those that stopped as they were then."""
    rows = simulation.evaluated()
    models = simulation.models(rows)
    for replica, one in stopped.items():
        places = [place for place, (index, _) in enumerate(rows) if index == replica]
        chosen = to_device(places, simulation.world.device)
        models = tree.with_rows(models, chosen, one.models)
    return models


def every_model(
    simulation: Simulation, stopped: Mapping[int, Stopped]
) -> Iterator[tuple[int, int | None, State]]:
    """What `Simulation.every_model` gives; of replicas that stopped, the models of then."""
    if len(stopped) < len(simulation.world.replicas):
        yield from (one for one in simulation.every_model() if one[0] not in stopped)
    for replica, one in stopped.items():
        for place, (_, client) in enumerate(_rows(simulation, replica)):
            owner = client if simulation.models_have_owners else None
            yield replica, owner, tree.index(one.models, place)
        with_data = simulation.world.replicas[replica].available if one.personal else ()
        for place, client in enumerate(with_data):
            yield replica, int(client), tree.index(one.personal, place)


def final_clients(simulation: Simulation, stopped: Mapping[int, Stopped]) -> list[dict[str, Any]]:
    """Every client's result, by replica; of those that stopped as it was then."""
    everybody = len(stopped) == len(simulation.world.replicas)
    going = [] if everybody else [one for one in simulation.clients() if one["replica"] not in stopped]
    found = [*going, *(line for one in stopped.values() for line in one.clients)]
    return sorted(found, key=lambda line: int(line["replica"]))


def _rows(simulation: Simulation, replica: int) -> list[tuple[int, int]]:
    return [pair for pair in simulation.evaluated() if pair[0] == replica]
