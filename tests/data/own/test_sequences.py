"""Sequences of unequal length: padding is no part of losses, scores or what a model reads."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import consilience as cs
from consilience.config import read_config
from consilience.engine.build import simulate
from consilience.experiment.planning import plan
from consilience.learning.task import Task
from consilience.models import ModelSpec
from consilience.models.window_lm import WindowLM
from consilience.problems.next_token import PADDING
from consilience.types import Batch

RANDOM = np.random.default_rng(0)
TEXTS = [RANDOM.integers(0, 12, length).tolist() for length in RANDOM.integers(3, 9, 40)]
KINDS = [int(text[0] > 5) for text in TEXTS]
TINY: dict[str, Any] = {"clients": 4, "rounds": 2, "local": {"batch_size": 4}, "dtype": "float64"}


def test_the_next_token_of_padded_texts():
    data = cs.Dataset.from_sequences(TEXTS)
    assert (data.problem, data.outputs, data.shape) == (cs.NextToken(), 12, (max(map(len, TEXTS)) - 1,))
    lengths = (data.targets != PADDING).sum(1)
    assert int(lengths.sum()) + int((data.test_targets != PADDING).sum()) == sum(len(t) - 1 for t in TEXTS)
    result = cs.run("fedavg", data=data, model="window-lm", **TINY)
    assert result.score is not None


def test_padding_counts_neither_for_the_loss_nor_for_scores():
    """The scores of padded texts are those of the texts one by one."""
    data = cs.Dataset.from_sequences(TEXTS, length=None)
    (arm,) = plan(read_config({"data": data, "model": "window-lm", **TINY}))
    world = simulate(arm.scene, arm.variants).world
    model = {group: {k: v[0] for k, v in params.items()} for group, params in world.initial[0].items()}
    task = world.task

    def batch(inputs: Tensor, targets: Tensor) -> Batch:
        return Batch(inputs, targets, torch.ones(len(inputs), dtype=torch.float64), torch.tensor(0))

    whole = task.tally(model, batch(data.test_inputs, data.test_targets))
    parts = []
    for inputs, targets in zip(data.test_inputs, data.test_targets, strict=True):
        counted = targets != PADDING
        parts.append(task.tally(model, batch(inputs[None, counted], targets[None, counted])))
    for name in whole:
        assert torch.allclose(whole[name], torch.stack([part[name] for part in parts]).sum(0), rtol=1e-12)


class Reader(nn.Module):
    """The mean embedding of the tokens that are there."""

    def __init__(self, tokens: int, outputs: int) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(tokens, 6), nn.Linear(6, outputs)

    def forward(self, tokens: Tensor, attention_mask: Tensor) -> Tensor:
        there = attention_mask.unsqueeze(-1).to(self.embedding.weight.dtype)
        return self.head((self.embedding(tokens) * there).sum(1) / there.sum(1))


@dataclass(frozen=True)
class Reading(ModelSpec):
    """A model that asks for the mask."""

    name: ClassVar[str] = "reading"
    tokens: int = 13

    def build(self, shape: tuple[int, ...], outputs: int) -> Any:
        return Reader(self.tokens, outputs)


@pytest.mark.parametrize("executor", ["batched", "sequential"])
def test_padded_texts_are_classified(executor: str):
    data = cs.Dataset.from_sequences(TEXTS, KINDS)
    assert (data.padding, data.outputs, data.problem.name) == (12, 2, "classification")
    result = cs.run("fedavg", data=data, model=Reading(), executor=executor, **TINY)
    assert result.accuracy is not None


def test_a_model_that_asks_for_the_mask_does_not_see_padding():
    data = cs.Dataset.from_sequences(TEXTS, KINDS)
    module = Reader(13, 2)
    task = Task(module, torch.float64, padding=data.padding)
    model = task.weights_of(module)

    def logits(inputs: Tensor) -> Tensor:
        one = Batch(inputs, inputs[:, 0], torch.ones(len(inputs), dtype=torch.float64), torch.tensor(0))
        return task.forward(model, one, training=False).prediction

    alone = torch.cat([logits(row[None, row != 12]) for row in data.test_inputs])
    assert torch.allclose(logits(data.test_inputs), alone, rtol=1e-12)


def test_every_place_may_have_a_target_of_its_own():
    tags = [[token % 3 for token in text] for text in TEXTS]
    data = cs.Dataset.from_sequences(TEXTS, tags, clients=["Basel"] * 20 + ["Bern"] * 20)
    assert data.clients == ("Basel", "Bern")
    counted = data.targets != PADDING
    assert torch.equal(data.inputs[counted] % 3, data.targets[counted])
    assert cs.run("fedavg", data=data, model=WindowLM(), **{**TINY, "clients": 2}).score is not None


def test_long_texts_are_cut_and_bad_ones_refused():
    assert cs.Dataset.from_sequences(TEXTS, KINDS, length=4).shape == (4,)
    with pytest.raises(cs.UserError, match="at least 2 tokens"):
        cs.Dataset.from_sequences([[1, 2], [3]] * 5)
    with pytest.raises(cs.UserError, match="row 1 is no sequence of tokens"):
        cs.Dataset.from_sequences([[1, 2], ["a"]] * 5)
    with pytest.raises(cs.UserError, match="there are 3 targets for 40 sequences"):
        cs.Dataset.from_sequences(TEXTS, KINDS[:3])
    with pytest.raises(cs.UserError, match="must both have targets and clients"):
        cs.Dataset.from_sequences(TEXTS, KINDS, TEXTS)
