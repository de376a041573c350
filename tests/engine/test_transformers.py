"""Models and adapters of others' libraries: HuggingFace's classifiers, and LoRA by peft."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

import consilience as cs
from consilience.data.dataset import Dataset

CLASSES, TOKENS, LENGTH = 3, 24, 6


@pytest.fixture(scope="module")
def bert() -> Any:
    """What makes a small classifier, from a configuration and without a download."""
    try:
        from transformers import BertConfig, BertForSequenceClassification
    except ImportError as error:  # or a library that it needs
        pytest.skip(f"needs transformers: {error}")
    sizes = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 12}

    def make() -> nn.Module:
        config = BertConfig(vocab_size=TOKENS, max_position_embeddings=LENGTH, num_labels=CLASSES, **sizes)
        return BertForSequenceClassification(config)

    return make


@pytest.fixture(scope="module")
def lora(bert: Any) -> Any:
    """What makes the same classifier with adapters."""
    peft = pytest.importorskip("peft", exc_type=ImportError)

    def make() -> nn.Module:
        options = {"r": 2, "lora_alpha": 4, "lora_dropout": 0.1, "target_modules": ["query", "value"]}
        return peft.get_peft_model(bert(), peft.LoraConfig(task_type="SEQ_CLS", **options))

    return make


@pytest.fixture(scope="module")
def texts() -> Dataset:
    """Sequences of tokens, whose third says what they are about."""
    random = torch.Generator().manual_seed(0)
    targets = torch.arange(60) % CLASSES
    tokens = torch.randint(0, TOKENS, (60, LENGTH), generator=random)
    tokens[:, 2] = targets
    return Dataset.from_arrays("texts", tokens[:38], targets[:38], tokens[38:], targets[38:])


def train(data: Dataset, model: Any, method: Any = "fedavg", **changes: Any) -> cs.Result:
    settings = {
        "data": data,
        "clients": 3,
        "rounds": 2,
        "local": {"epochs": 1, "batch_size": 4},
        "solver": {"name": "sgd", "lr": 0.1},
        "dtype": "float64",
        "evaluate": {"clients": False},
    }
    return cs.run(method, model=model, **{**settings, **changes})


def params(result: cs.Result) -> dict[str, torch.Tensor]:
    return next(iter(result.models.values()))["params"]


def test_a_classifier_with_dropout_trains_side_by_side(bert, texts, caplog):
    with caplog.at_level(logging.WARNING, "consilience"):
        found = train(texts, bert)
    assert not caplog.records, caplog.text
    torch.manual_seed(5)
    assert train(texts, bert).digest == found.digest
    assert_close(params(found), params(train(texts, bert, executor="sequential")), rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("maker", ["bert", "lora"])
def test_padded_texts_train_side_by_side(maker, request, caplog):
    """The library asks of every mask whether anything is masked, unless it thinks that it is compiled."""
    random = np.random.default_rng(0)
    rows = [random.integers(0, TOKENS - 1, length).tolist() for length in random.integers(2, LENGTH + 1, 40)]
    data = Dataset.from_sequences(rows, [row[0] % CLASSES for row in rows])
    assert data.padding is not None
    model = request.getfixturevalue(maker)
    with caplog.at_level(logging.WARNING, "consilience"):
        found = train(data, model)
    assert not caplog.records, caplog.text
    assert_close(params(found), params(train(data, model, executor="sequential")), rtol=1e-9, atol=1e-11)


METHODS = {
    "fedavg": {},
    "hwa": {},
    "fedcurv": {},
    "dechw": {"topology": "ring", "init": "common"},
}


@pytest.mark.parametrize("method", METHODS)
def test_adapters_train_with_curvature_of_their_own(method, lora, texts, caplog):
    with caplog.at_level(logging.WARNING, "consilience"):
        found = train(texts, lora, method, **METHODS[method])
    assert not caplog.records, caplog.text
    assert params(found)
    assert all("lora_" in name or "classifier" in name for name in params(found))
    expected = train(texts, lora, method, **METHODS[method], executor="sequential")
    assert_close(params(found), params(expected), rtol=1e-8, atol=1e-11)


def test_adapters_learn(lora, texts):
    result = train(
        texts,
        lora,
        rounds=15,
        local={"epochs": 4, "batch_size": 8},
        solver={"name": "adam", "lr": 0.03},
        evaluate={"every": 15, "clients": False},
    )
    assert result.records[-1]["train_loss"] < 0.8 * result.records[0]["train_loss"]
