"""`check_algorithm` names the property that a wrong method lacks, and takes methods and models of a user."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch
from torch import nn

from consilience import tree
from consilience.algorithm import Algorithm, SingleExchange
from consilience.algorithms.fedavg import FedAvg
from consilience.algorithms.fedprox import FedProx
from consilience.learning.solvers import Adam
from consilience.testing import CLASSES, INPUTS, PROPERTIES, check_algorithm

COUNTER = itertools.count()


@dataclass(frozen=True)
class Plain(SingleExchange):
    """Correct: the mean of the trained models, and a hub that counts rounds."""

    name: ClassVar[str] = "plain"

    def init_hub(self, model):
        return {**model, "clock": {"rounds": torch.zeros((), dtype=torch.int64)}}

    def broadcast(self, hub):
        return hub

    def local(self, client, down, memory):
        return client.train(down).model, memory

    def combine(self, hub, inbox):
        return {**super().combine(hub, inbox), "clock": {"rounds": hub["clock"]["rounds"] + 1}}


class WritesToItsInput(Plain):
    def combine(self, hub, inbox):
        for value in inbox["params"].values():
            value.mul_(0.5)
        return super().combine(hub, inbox)


class CountsCalls(Plain):
    def local(self, client, down, memory):
        upload, memory = super().local(client, down, memory)
        return {**upload, "params": tree.scale(1 + 1e-3 * next(COUNTER), upload["params"])}, memory


class DrawsNoise(Plain):
    def local(self, client, down, memory):
        upload, memory = super().local(client, down, memory)
        return tree.map_leaves(lambda value: value + torch.randn_like(value), upload), memory


class HoldsANumber(Plain):
    def init_hub(self, model):
        return {**model, "clock": {"rounds": 0}}


class ChangesItsSchema(Plain):
    def local(self, client, down, memory):
        upload, memory = super().local(client, down, memory)
        return {**upload, **({"extra": down["params"]} if down["clock"]["rounds"].item() else {})}, memory


class ReadsWhatIsGone(Plain):
    def init_memory(self, model):
        return {"last": model["params"]}

    def fleeting(self):
        return frozenset({"last"})

    def local(self, client, down, memory):
        upload, _ = super().local(client, down, memory)
        last = tree.scale(0.1, tree.add(upload["params"], memory["last"]))
        return {**upload, "params": last}, {"last": upload["params"]}


class NamesAGroupLikeAPath(Plain):
    def local(self, client, down, memory):
        upload, memory = super().local(client, down, memory)
        return {**upload, "my/extra": down["params"]}, memory


class BranchesOnAValue(Plain):
    def local(self, client, down, memory):
        upload, memory = super().local(client, down, memory)
        return (upload if tree.sq_norm(upload["params"]).item() < 10 else down), memory


class AveragesCounters(Plain):
    def combine(self, hub, inbox):
        buffers = {name: inbox.weights @ value.double() for name, value in inbox["buffers"].items()}
        return {**super().combine(hub, inbox), "buffers": buffers}


class TakesTheFirstMessage(Plain):
    def combine(self, hub, inbox):
        first = {name: value[0] for name, value in inbox["params"].items()}
        return {**super().combine(hub, inbox), "params": first}


class CountsUnheardMessages(Plain):
    def combine(self, hub, inbox):
        everybody = {name: value.mean(0) for name, value in inbox["params"].items()}
        return {**super().combine(hub, inbox), "params": everybody}


class HidesNaN(Plain):
    def local(self, client, down, memory):
        upload, memory = super().local(client, down, memory)
        return tree.map_leaves(torch.nan_to_num, upload), memory


class RefusesAll(Plain):
    def refuse(self, conditions):
        return "it never works"


@dataclass(frozen=True)
class Fading(Plain):
    """Correct: FedProx with a pull that halves every round."""

    name: ClassVar[str] = "fading"
    mu: float = 0.5

    def init_hub(self, model):
        return model

    def local(self, client, down, memory):
        return FedProx(self.mu).local(client, down, memory)

    def combine(self, hub, inbox):
        return FedProx(self.mu).combine(hub, inbox)

    def at(self, round_number):
        return Fading(self.mu * 0.5**round_number)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (HoldsANumber(), ("states_are_named_tensors", "a int at clock/rounds")),
        (ChangesItsSchema(), ("states_are_named_tensors", "extra/head.bias")),
        (WritesToItsInput(), ("inputs_stay_as_they_are", "combine was given")),
        (CountsCalls(), ("nothing_is_kept_elsewhere",)),
        (DrawsNoise(), ("nothing_is_kept_elsewhere",)),
        (ReadsWhatIsGone(), ("fleeting_memories_are_written_first", "begin otherwise")),
        (NamesAGroupLikeAPath(), ("cannot contain a slash",)),
        (BranchesOnAValue(), ("batched_equals_sequential", "torch.where")),
        (AveragesCounters(), ("buffers_and_dropout_work", "num_batches_tracked is no whole number")),
        (CountsUnheardMessages(), ("replicas_do_not_touch", "seed 1")),
        (TakesTheFirstMessage(), ("client_order_does_not_matter",)),
        (HidesNaN(), ("bad_uploads_are_dropped", "nobody was dropped instead of")),
        (RefusesAll(), ("refuses every setting: it never works",)),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Algorithm) else "",
)
def test_the_missing_property_is_named(wrong: Algorithm, words: tuple[str, ...]) -> None:
    with pytest.raises(AssertionError) as caught:
        check_algorithm(wrong)
    for word in ("plain", *words):
        assert word in str(caught.value)


def test_a_method_may_change_its_numbers_from_round_to_round() -> None:
    check_algorithm(Fading())


def test_module_and_solver_can_be_given() -> None:
    check_algorithm(FedAvg(), module=lambda: nn.Linear(INPUTS[0], CLASSES), solver=Adam(0.01))


def test_properties_are_documented() -> None:
    assert len({one.__name__ for one in PROPERTIES}) == len(PROPERTIES)
    for one in PROPERTIES:
        assert one.__doc__
        assert one.__doc__.endswith(".")
        assert "\n" not in one.__doc__
