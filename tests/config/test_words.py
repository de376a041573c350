"""What a newcomer writes first: it works, or the answer says where the key belongs and what is known."""

from __future__ import annotations

import logging
from typing import Any

import pytest

from consilience.config import Config, read_config
from consilience.config.hints import PLACES
from consilience.data.partitioners import PARTITIONERS
from consilience.errors import UserError
from consilience.experiment import plan
from consilience.experiment.planning import roundings
from consilience.graphs import TOPOLOGIES
from consilience.learning.solvers import SGD, SOLVERS, Adam
from consilience.models import MODELS

PARTS = {"solver": SOLVERS, "partition": PARTITIONERS, "model": MODELS, "topology": TOPOLOGIES}


def test_a_learning_rate_keeps_the_default_solver():
    assert read_config({"solver": {"lr": 0.05}}).solver.variants == (SGD(lr=0.05),)
    swept = read_config({"solver": {"lr": [0.05, 0.1], "momentum": 0.9}}).solver
    assert swept.variants == (SGD(lr=0.05, momentum=0.9), SGD(lr=0.1, momentum=0.9))


def test_a_learning_rate_in_a_comparison_keeps_the_solver_of_the_file():
    config = read_config(
        {"solver": {"name": "adam", "beta1": 0.5}, "compare": [{"solver": {"lr": 0.1}}, {"solver": "sgd"}]}
    )
    first, second = (one.solver.variants for _, one in config.settings())
    assert (first, second) == ((Adam(lr=0.1, beta1=0.5),), (SGD(),))


MISPLACED = [
    ({"learning_rate": 0.1}, "unknown key 'learning_rate'; did you mean 'solver.lr'?"),
    ({"lr": 0.1}, "unknown key 'lr'; did you mean 'solver.lr'?"),
    ({"batch_size": 8}, "unknown key 'batch_size'; did you mean 'local.batch_size'?"),
    ({"local": {"lr": 0.1}}, "unknown key 'local.lr'; did you mean 'solver.lr'?"),
    ({"solver": {"learning_rate": 0.1}}, "unknown option of solver sgd 'learning_rate'; did you mean 'lr'?"),
    ({"solver": {"batch_size": 8}}, "'batch_size'; did you mean 'local.batch_size'?"),
    ({"method": {"name": "fedavg", "lr": 0.1}}, "option of method fedavg 'lr'; did you mean 'solver.lr'?"),
    ({"method": {"rule": "by_data", "epochs": 5}}, "'epochs'; did you mean 'local.epochs'?"),
    ({"dataset": "mnist"}, "unknown key 'dataset'; did you mean 'data'?"),
    (
        {"compare": [{"batch_size": 8}]},
        "compare[0]: unknown key 'batch_size'; did you mean 'local.batch_size'?",
    ),
]


@pytest.mark.parametrize(("values", "line"), MISPLACED)
def test_a_key_at_the_wrong_level_hints_at_the_right_one(values: dict[str, Any], line: str):
    with pytest.raises(UserError) as refused:
        read_config(values).settings()
    assert line in str(refused.value)


@pytest.mark.parametrize("place", sorted(set(PLACES.values())))
def test_every_hint_is_a_key_that_exists(place: str):
    section, _, key = place.partition(".")
    kind = Config.model_fields[section].annotation
    if key and section in PARTS:
        assert any(key in part.__dataclass_fields__ for part in PARTS[section].values())
    elif key:
        assert key in kind.model_fields  # type: ignore[union-attr]


KNOWN = [
    ({"method": {"name": "fedprox", "x": 1}}, "(known: label, mu, then, transforms, weighting)"),
    ({"method": {"rule": "by_data", "x": 1}}, "(known: label, objective, rule, server, then, transforms)"),
    ({"solver": {"x": 1}}, "(known: lr, momentum, nesterov, weight_decay)"),
    ({"method": {"name": "fedsgd", "x": 1}}, "known: "),
]


@pytest.mark.parametrize(("values", "known"), KNOWN)
def test_an_unknown_option_lists_all_that_are_known(values: dict[str, Any], known: str):
    with pytest.raises(UserError) as refused:
        read_config(values)
    assert known in str(refused.value)


def test_an_item_of_a_comparison_knows_its_label_and_nothing_of_the_whole_run():
    with pytest.raises(UserError) as refused:
        read_config({"compare": [{"x": 1}]}).settings()
    known = str(refused.value).partition("known: ")[2]
    assert "label" in known
    assert "targets" not in known


@pytest.mark.parametrize(
    ("given", "lines"),
    [(3, ["seeds: 3 is one seed; for 3 of them write seeds: [0, 1, 2]"]), (1, []), (0, []), ([3], [])],
)
def test_a_number_of_seeds_says_that_it_is_one_seed(
    given: object, lines: list[str], caplog: pytest.LogCaptureFixture
):
    with caplog.at_level(logging.WARNING, "consilience"):
        config = read_config({"seeds": given})
        read_config(config.written())
        config.settings()
    assert [record.getMessage() for record in caplog.records] == lines


@pytest.mark.parametrize(
    ("share", "lines"),
    [
        (0.05, ["participation 0.05 of 10 clients is 0.5: 1 client a round"]),
        (0.25, ["participation 0.25 of 10 clients is 2.5: 2 clients a round"]),
        (0.3, []),
        (1.0, []),
        (3, []),
    ],
)
def test_a_share_of_the_clients_says_what_it_rounds_to(share: float, lines: list[str]):
    settings: dict[str, Any] = {
        "clients": 10,
        "participation": share,
        "compare": [{"label": "a"}, {"label": "b"}],
    }
    assert roundings(plan(read_config(settings))) == lines
