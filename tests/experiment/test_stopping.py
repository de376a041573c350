"""Runs that stop before their last round, and what others in the same computation notice: nothing."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import consilience as cs
from consilience.config.config import Config, read_config
from consilience.config.stopping import StopWhen
from consilience.data.dataset import Dataset
from consilience.data.normalising import normalisation
from consilience.errors import UserError
from consilience.experiment import Listener, Result, RoundState, plan
from consilience.experiment import execution as experiment
from consilience.experiment.folder import RunFolder
from consilience.experiment.stopping import reason_to_stop

SWEPT: dict[str, Any] = {
    "method": {"name": "scaffold"},
    "solver": {"name": "sgd", "lr": [0.001, 0.02, 0.3]},
    "seeds": [0, 1],
    "rounds": 6,
    "partition": {"name": "iid", "holdout": 0.2},
}


def rounds_of(result: Result) -> dict[tuple[str, int], int]:
    """The last round of every variant and seed."""
    return {(one["method"], one["seed"]): one["round"] for one in result.records}


def rows_of(lines: list[dict[str, Any]], who: tuple[str, int]) -> list[dict[str, Any]]:
    kept = [line for line in lines if (line["method"], line["seed"]) == who]
    return [{key: v for key, v in line.items() if key not in ("seconds", "stopped")} for line in kept]


@pytest.mark.parametrize(
    ("rule", "topology"), [({"accuracy": 0.9}, "star"), ({"patience": 2, "metric": "train_loss"}, "ring")]
)
def test_who_stops_does_not_change_the_others(
    rule: dict[str, Any], topology: str, configure: Callable[..., Config]
):
    method = "fedprox" if topology == "ring" else "scaffold"
    changes = {**SWEPT, "topology": topology, "method": method}
    whole = experiment.run(configure(**changes))
    some = experiment.run(configure(**changes, stop_when=rule))
    ends = rounds_of(some)
    assert len(set(ends.values())) > 1
    assert any("stopped" in record for record in some.records)
    (arm,) = whole.models
    for place, (who, end) in enumerate(ends.items()):
        mine = rows_of(whole.records, who)[:end]
        assert rows_of(some.records, who) == mine
        if end < 6:
            shorter = experiment.run(configure(**{**changes, "rounds": end}))
            assert rows_of(some.clients, who) == rows_of(shorter.clients, who)
        compared = whole if end == 6 else shorter
        for name, value in some.models[arm]["params"].items():
            per = len(value) // len(ends)
            own = slice(place * per, (place + 1) * per)
            assert torch.equal(value[own], compared.models[arm]["params"][name][own])


@pytest.mark.parametrize("killed", [2, 5])
def test_a_killed_run_stops_where_it_would_have(
    killed: int,
    tmp_path: Path,
    configure: Callable[..., Config],
    stop_after: Callable[[int], Listener],
):
    config = configure(
        **SWEPT,
        stop_when={"accuracy": 0.9, "patience": 3, "least": 0.001},
        checkpoint={"every": 2},
        schedule={"name": "cosine", "warmup": 1},
    )
    whole, folder = experiment.run(config), RunFolder(tmp_path / "run")
    assert min(rounds_of(whole).values()) < max(rounds_of(whole).values())
    with pytest.raises(KeyboardInterrupt):
        experiment.run(config, folder=folder, listener=stop_after(killed))
    assert experiment.run(config, folder=folder, existing="resume").digest == whole.digest


def test_the_arm_ends_when_all_have_stopped(blobs: Dataset, tmp_path: Path):
    result = cs.run(
        ["fedavg", "local"],
        data=blobs,
        rounds=50,
        clients=3,
        stop_when={"loss": 100.0, "after": 3},
        out=tmp_path,
        seeds=[0, 1],
    )
    assert set(rounds_of(result).values()) == {3}
    assert "test_loss" in result.records[-1]["stopped"]
    assert len(result.clients) == 2 * 2 * 3
    again = cs.resume(result, data=blobs)
    assert again.digest == result.digest


def test_a_function_sees_models_and_metrics_and_stops(configure: Callable[..., Config], blobs: Dataset):
    seen: list[RoundState] = []

    def look(state: RoundState) -> str | None:
        seen.append(state)
        module = state.module()
        shift, scale = normalisation(blobs, config.data.normalize)
        right = (
            (module(((blobs.test_inputs - shift) / scale).float()).argmax(1) == blobs.test_targets)
            .double()
            .mean()
        )
        if "test_accuracy" in state.metrics:
            assert state.metrics["test_accuracy"] == pytest.approx(float(right))
        return "stop" if (state.seed, state.round) == (1, 2) else None

    config = configure(seeds=[0, 1], rounds=4, evaluate={"every": 3})
    calls: list[int] = []
    result = experiment.run(config, on_round=[look, lambda state: calls.append(state.round)])
    assert [(one.seed, one.round) for one in seen] == [(0, 1), (1, 1), (0, 2), (1, 2), (0, 3), (0, 4)]
    assert calls == [1, 1, 2, 2, 3, 4]
    assert rounds_of(result) == {("fedavg", 0): 4, ("fedavg", 1): 2}
    last = next(one for one in result.records if (one["seed"], one["round"]) == (1, 2))
    assert last["stopped"] == "on_round said so"
    assert 0 <= last["test_accuracy"] <= 1  # though its turn was in round 3
    whole = experiment.run(config)
    for name, value in result.models["star fedavg"]["params"].items():
        assert torch.equal(value[0], whole.models["star fedavg"]["params"][name][0])


def test_a_module_has_the_statistics_and_the_type_of_the_run(configure: Callable[..., Config]):
    images = torch.rand(12, 3, 32, 32, generator=torch.Generator().manual_seed(0))
    data = Dataset.from_arrays("noise", images[:8], torch.arange(8) % 2, images[8:], torch.arange(4) % 2)
    modules: list[torch.nn.Module] = []
    config = configure(data=data, model="fagh-cnn", clients=2, rounds=1, dtype="float64", local={"steps": 1})
    result = experiment.run(config, on_round=lambda state: modules.append(state.module()))
    (module,), final = modules, result.models["star fedavg"]
    for name, value in module.state_dict().items():
        assert torch.equal(value, (final["params"] | final["buffers"])[name][0])
    assert final["buffers"]


def test_a_module_that_was_given_stays_as_it_is(blobs: Dataset):
    given = torch.nn.Sequential(torch.nn.Linear(5, 4).requires_grad_(False), torch.nn.Linear(4, 3))
    before = {name: value.clone() for name, value in given.state_dict().items()}
    seen: list[torch.nn.Module] = []

    def look(state: RoundState) -> None:
        module = state.module()
        seen.append(copy.deepcopy(module))
        with torch.no_grad():
            for value in (*module.parameters(), *state.models["params"].values()):
                value.zero_()  # it is the function's own
        state.metrics["mine"] = 1  # type: ignore[index]

    settings: dict[str, Any] = {"data": blobs, "clients": 3, "rounds": 2, "dtype": "float64", "model": given}
    result = cs.run("fedavg", on_round=look, **settings)
    assert result.digest == cs.run("fedavg", **settings).digest
    assert all(torch.equal(value, before[name]) for name, value in given.state_dict().items())
    assert given.training
    assert torch.equal(seen[-1].state_dict()["0.weight"], before["0.weight"].double())
    assert torch.equal(
        seen[-1].state_dict()["1.weight"], result.models["star fedavg"]["params"]["1.weight"][0]
    )


@pytest.mark.parametrize(
    ("functions", "message"),
    [
        ("print", "a function of the state of a round is wanted, not 'print'"),
        ([3], "a function of the state of a round is wanted, not 3"),
        (None, "a function of the state of a round is wanted, not None"),
        (lambda: None, "is to take the state of a round: too many positional arguments"),
        (lambda state, more: None, "is to take the state of a round: missing a required argument: 'more'"),
        (
            lambda state: state.module(1) and None,
            "there is no model 1 of fedavg: they are counted from 0 to 0",
        ),
    ],
)
def test_functions_that_cannot_be_called(functions: Any, message: str, configure: Callable[..., Config]):
    with pytest.raises(UserError, match=message):
        experiment.run(configure(), on_round=functions)


def test_what_a_function_may_return(configure: Callable[..., Config]):
    with pytest.raises(UserError, match=r"on_round returned True; it must return None or \"stop\""):
        experiment.run(configure(), on_round=lambda state: True)


@pytest.mark.parametrize(
    ("values", "rule", "end"),
    [
        ([0.1, 0.5, 0.5, 0.5], StopWhen(patience=2), 4),
        ([0.1, 0.5, 0.5, 0.6, 0.6], StopWhen(patience=2), None),
        ([0.1, 0.5, 0.52, 0.53], StopWhen(patience=2, least=0.1), 4),
        ([0.95, 0.1, 0.95], StopWhen({"accuracy": 0.9}, after=2), 3),
        ([None, None, None, None], StopWhen(patience=3), 4),
        ([0.3, None, None], StopWhen({"accuracy": 0.9}), None),
    ],
)
def test_reasons(values: list[Any], rule: StopWhen, end: int | None, configure: Callable[..., Config]):
    scene = plan(configure())[0].scene
    lines = [{"round": n, "test_accuracy": value} for n, value in enumerate(values, 1)]
    ends = [n for n in range(1, len(lines) + 1) if reason_to_stop(rule, scene, lines[:n], 1)]
    assert ends[:1] == ([] if end is None else [end])


def test_a_last_round_out_of_turn_does_not_count(configure: Callable[..., Config]):
    scene = plan(configure())[0].scene
    lines = [{"round": 2, "test_accuracy": 0.5}, {"round": 3, "test_accuracy": 0.99}]
    assert reason_to_stop(StopWhen({"accuracy": 0.9}), scene, lines, 2) is None


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({}, "expected e.g."),
        (0.9, "expected e.g."),
        ({"patience": 0}, "patience is a number of rounds above 0, not 0"),
        ({"accuracy": "high"}, "accuracy is a number, not 'high'"),
        ({"metric": "accuracy"}, "metric and least are about patience"),
        ({"after": 3}, "nothing would stop a run"),
        ({"patience": 3, "least": -1}, "least must be at least 0"),
    ],
)
def test_conditions_that_make_no_sense(value: Any, message: str):
    with pytest.raises(UserError, match=message):
        read_config({"stop_when": value})


def test_a_score_that_nobody_records(configure: Callable[..., Config]):
    for wrong, meant in (("acuracy", "accuracy"), ("pateince", "patience")):
        with pytest.raises(
            UserError, match=f"unknown score or option in stop_when '{wrong}'; did you mean '{meant}'"
        ):
            experiment.run(configure(stop_when={wrong: 0.9}))
    with pytest.raises(UserError, match=r"stop_when: accuracy 90 is not in \(0, 1\]; write 0.9 for 90 %"):
        experiment.run(configure(stop_when={"accuracy": 90}))
    written = configure(stop_when={"patience": 3, "accuracy": 0.9}).written()
    assert written["stop_when"] == {"accuracy": 0.9, "patience": 3, "least": 0.0, "after": 0}
