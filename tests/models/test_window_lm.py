"""The language model that sees the last few tokens."""

from __future__ import annotations

import numpy as np
import pytest
import torch

import consilience as cs
from consilience.errors import UserError
from consilience.models import WindowLM


def test_a_place_depends_on_its_window_alone():
    model = WindowLM(window=3, width=4, hidden=8).build((9,), 11)
    tokens = torch.randint(0, 11, (2, 9))
    said = model(tokens)
    assert said.shape == (2, 9, 11)
    for place in range(9):
        changed = tokens.clone()
        changed[:, place] = (changed[:, place] + 1) % 11
        moved = (model(changed) - said).abs().amax((0, 2)) > 0
        assert moved.nonzero().flatten().tolist() == [p for p in range(place, place + 3) if p < 9]


def test_what_is_no_sequence_is_refused():
    with pytest.raises(UserError, match="sequences of tokens"):
        WindowLM().build((1, 28, 28), 10)


def test_a_run_on_text_from_arrays_alone():
    """Clients write numbers that go up by one or by two; perplexity falls to about 2."""
    random = np.random.default_rng(0)
    rows = np.cumsum(random.integers(1, 3, (240, 13)), 1) % 10
    train, test = rows[:200], rows[200:]
    text = cs.Dataset.from_arrays("counting", train[:, :-1], train[:, 1:], test[:, :-1], test[:, 1:])
    result = cs.run(
        ["fedavg", "hwa"],
        data=text,
        model={"name": "window-lm", "window": 2, "width": 8, "hidden": 16},
        clients=4,
        rounds=12,
        local={"epochs": 3, "batch_size": 16},
        solver={"name": "sgd", "lr": 0.5, "momentum": 0.5},
        targets=[3.0],
    )
    assert result.metric.name == "perplexity"
    assert result.score < 3.2
    assert result.summaries[0].rounds_to["3.0"]["reached"] in (0, 1)
    with pytest.raises(UserError, match=r"perplexity, not accuracy"):
        _ = result.accuracy
