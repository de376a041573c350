"""Which methods have no use for a solver is found without a list of them, and found rightly."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from consilience.algorithms import METHODS
from consilience.config.config import Config
from consilience.engine.build import takes_steps
from consilience.errors import UserError
from consilience.experiment import execution as experiment
from consilience.experiment import plan

UNTRAINED = {"bl1", "dane", "done", "fagh", "fednl", "fedsgd", "giant", "gradient-tracking"}


def settings(name: str) -> list[dict[str, object]]:
    """Where a method may run: around a server, on a graph, with held-out rows, with a linear model."""
    model = {"name": "logistic"} if METHODS[name]().linear_only() else {"name": "mlp", "hidden": [8]}
    split = {"name": "iid", "holdout": 0.2}
    return [{"model": model, "partition": split, "topology": topology} for topology in ("star", "ring")]


@pytest.mark.parametrize("name", METHODS)
def test_methods_that_never_train_are_found(name: str, configure: Callable[..., Config]):
    for setting in settings(name):
        try:
            (arm,) = plan(configure(method=name, **setting))
        except UserError:  # not defined there
            continue
        assert takes_steps(arm.scene, arm.variants[0]) is (name not in UNTRAINED)
        return
    pytest.fail(f"{name} runs nowhere")


@pytest.mark.parametrize("name", sorted(UNTRAINED))
def test_they_are_alike_for_all_learning_rates(name: str, configure: Callable[..., Config]):
    """So that it was right not to train them again."""
    digests = set()
    for lr, epochs in ((0.1, 1), (0.7, 3)):
        setting = settings(name)[name == "gradient-tracking"]  # which takes a graph
        local = {"epochs": epochs, "batch_size": 4}
        config = configure(method=name, solver={"name": "sgd", "lr": lr}, local=local, rounds=2, **setting)
        digests.add(experiment.run(config).digest)
    assert len(digests) == 1


def test_a_schedule_that_makes_no_difference_is_said(
    configure: Callable[..., Config], caplog: pytest.LogCaptureFixture
):
    experiment.run(configure(method=["fedavg", "fedsgd"], rounds=1, schedule="cosine"))
    assert caplog.messages == [
        "schedule has no effect on fedsgd: clients take no steps with the solver there"
    ]
