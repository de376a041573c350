"""Transforms and successions in a configuration: sweeps, labels, runs that go on, and clear refusals."""

from __future__ import annotations

import pytest
import torch

from consilience.algorithms.fedavg import FedAvg
from consilience.algorithms.hwa import HWA
from consilience.config.config import read_config
from consilience.config.entries import read_method
from consilience.data.dataset import Dataset
from consilience.errors import UserError
from consilience.experiment import Listener, plan, resume, run
from consilience.experiment.folder import RunFolder
from consilience.method import Composed
from consilience.objectives.proximal import Proximal
from consilience.transforms import TRANSFORMS
from consilience.transforms.clipped import Clipped
from consilience.transforms.compressed import Compressed
from consilience.transforms.noised import Noised
from consilience.transforms.until import Until


def configure(method, **changes):
    """A tiny configuration."""
    random = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(60, 5, generator=random), torch.arange(60) % 3
    data = Dataset.from_arrays("blobs", inputs[:45], targets[:45], inputs[45:], targets[45:])
    values = {
        "data": data,
        "model": {"name": "mlp", "hidden": [8]},
        "clients": 4,
        "rounds": 4,
        "local": {"steps": 2, "batch_size": 4},
        "solver": {"name": "sgd", "lr": 0.1},
        "method": method,
    }
    return read_config({**values, **changes})


NOISY = {"name": "hwa", "transforms": [{"name": "noised", "sigma": [0.0, 0.1]}]}
STAGED = {"name": "hwa", "transforms": ["clipped"], "then": {"method": "fedavg", "after": 2}}


def test_all_are_known_by_name():
    assert {"noised", "clipped", "compressed"} == TRANSFORMS.keys()
    assert all(TRANSFORMS[name]().name == name for name in TRANSFORMS)


@pytest.mark.parametrize(
    ("entry", "label", "variants", "labels"),
    [
        (NOISY, "hwa noised", (Noised(0.0)(HWA()), Noised(0.1)(HWA())), ("sigma=0.0", "sigma=0.1")),
        (
            {"name": "fedavg", "transforms": ["clipped", {"name": "compressed", "kind": "int8"}]},
            "fedavg clipped compressed kind=int8",
            (Compressed("int8")(Clipped()(FedAvg())),),
            ("",),
        ),
        (
            {"objective": {"name": "proximal", "mu": 0.5}, "transforms": ["noised"], "label": "mine"},
            "mine",
            (Noised()(Composed(Proximal(mu=0.5))),),
            ("",),
        ),
        (
            {
                "name": "fedavg",
                "transforms": [{"name": "noised", "sigma": [0.1, 0.2]}, {"name": "clipped", "norm": [1, 2]}],
            },
            "fedavg noised clipped",
            tuple(Clipped(norm)(Noised(sigma)(FedAvg())) for sigma in (0.1, 0.2) for norm in (1.0, 2.0)),
            tuple(f"sigma={sigma} norm={norm}" for sigma in (0.1, 0.2) for norm in (1, 2)),
        ),
        (STAGED, "hwa clipped then fedavg", (Until(Clipped()(HWA()), 2, FedAvg()),), ("",)),
    ],
)
def test_entries_are_read_and_written(entry, label, variants, labels):
    choice = read_method(entry)
    assert (choice.label, choice.sweep.variants, choice.sweep.labels) == (label, variants, labels)
    again = read_method(choice.sweep.written)
    assert (again.label, again.sweep) == (choice.label, choice.sweep)


@pytest.mark.parametrize(
    ("algorithm", "entry"),
    [
        (Noised(0.2)(HWA()), {"name": "hwa", "transforms": [{"name": "noised", "sigma": 0.2}]}),
        (
            Compressed()(Clipped(2.0)(Composed(Proximal(mu=0.5)))),
            {
                "objective": {"name": "proximal", "mu": 0.5},
                "rule": "by_data",
                "server": "replace",
                "transforms": [{"name": "clipped", "norm": 2.0}, "compressed"],
            },
        ),
        (Until(Clipped()(HWA()), 2, FedAvg()), STAGED),
    ],
    ids=["named", "composed", "until"],
)
def test_an_object_is_its_entry(algorithm, entry):
    one, other = read_method(algorithm), read_method(entry)
    assert (one.label, one.sweep) == (other.label, other.sweep)


def test_a_sweep_over_noise_runs_and_its_first_value_is_the_method_itself():
    result = run(configure([NOISY, "hwa"]))
    by_method = {}
    for record in result.records:
        by_method.setdefault(record["method"], []).append((record["test_loss"], record["bytes_up"]))
    assert by_method.keys() == {"hwa noised sigma=0.0", "hwa noised sigma=0.1", "hwa"}
    losses = {name: [loss for loss, _ in found] for name, found in by_method.items()}
    assert losses["hwa noised sigma=0.0"] == pytest.approx(losses["hwa"], rel=1e-5)
    assert losses["hwa noised sigma=0.1"] != pytest.approx(losses["hwa"], rel=1e-2)
    assert len({tuple(size for _, size in found) for found in by_method.values()}) == 1


def test_eight_bits_learn_as_fast_as_all():
    """Measured on ten clients with two digits each: 0.855 and 0.853 after 20 rounds."""
    changes = {"data": "mnist-sample", "partition": "shards_two_classes", "clients": 10, "rounds": 8}
    small = {"name": "fedavg", "transforms": [{"name": "compressed", "kind": "int8"}]}
    changes |= {"model": {"name": "mlp", "hidden": [64]}, "solver": {"name": "sgd", "lr": 0.05}}
    result = run(configure(["fedavg", small], local={"epochs": 1, "batch_size": 32}, **changes))
    whole, packed = (summary.final_mean for summary in result.summaries)
    assert whole > 0.5
    assert abs(packed - whole) < 0.03


class Stop(Listener):
    """Interrupts after some rounds."""

    def __init__(self, rounds):
        self.left = rounds

    def round(self, arm, lines):
        self.left -= 1
        if not self.left:
            raise KeyboardInterrupt


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_an_interrupted_succession_ends_as_if_it_had_not_been(tmp_path, stop):
    staged = {
        "name": "fedcurv",
        "one_in": 5,
        "transforms": [{"name": "compressed", "one_in": 5}],
        "then": {"method": {"name": "scaffold", "transforms": ["noised"]}, "after": 2},
    }
    changes = {"data": "mnist-sample", "participation": 0.5, "checkpoint": {"every": 1}}
    config = configure(staged, **changes)
    whole = run(config)
    with pytest.raises(KeyboardInterrupt):
        run(config, folder=RunFolder(tmp_path / "run"), listener=Stop(stop))
    assert resume(tmp_path / "run").digest == whole.digest


@pytest.mark.parametrize(
    ("entry", "reason"),
    [
        ({"name": "hwa", "transforms": ["noise"]}, "unknown transform 'noise'; did you mean 'noised'?"),
        ({"name": "hwa", "transforms": "noised"}, "transforms is a list"),
        ({"name": "hwa", "transforms": {"name": "noised"}}, "transforms is a list"),
        ({"name": "hwa", "transforms": [{"sigma": 1}]}, "transform: a name is missing"),
        ({"name": "hwa", "transforms": [3]}, "transform: expected a name"),
        ({"name": "hwa", "transforms": [{"name": "noised", "sigm": 1}]}, "option of transform noised 'sigm'"),
        ({"name": "hwa", "transforms": [{"name": "noised", "sigma": -1}]}, "sigma must be.*-1"),
        (
            {"name": "hwa", "transforms": [{"name": "noised", "sigma": "much"}]},
            "transform noised: sigma: .*'much'",
        ),
        (
            {"name": "hwa", "transforms": [{"name": "clipped", "norm": 0}]},
            "norm must be above 0 and finite, not 0",
        ),
        (
            {"name": "hwa", "transforms": [{"name": "compressed", "kind": "int4"}]},
            "kind: .*'int8', not 'int4'",
        ),
        (
            {"name": "hwa", "transforms": [{"name": "compressed", "one_in": [10, 100]}]},
            r"one_in: .*\[10, 100\]",
        ),
        ({"name": "hwa", "transforms": [{"name": "compressed", "one_in": 0.5}]}, "one_in: .*0.5"),
        ({"name": "hwa", "transforms": ["compressed", "noised"]}, "hwa compressed noised: .*pack them last"),
        ({"name": "fedcurv", "one_in": 0}, "one_in must be at least 1"),
        ({"name": "hwa", "then": "fedavg"}, "then says what comes next and when"),
        ({"name": "hwa", "then": {"method": "fedavg"}}, "then says what comes next and when"),
        ({"name": "hwa", "then": {"method": "fedavg", "after": 2, "x": 1}}, "then says what comes next"),
        ({"name": "hwa", "then": {"method": "fedavgg", "after": 2}}, "unknown method 'fedavgg'"),
        ({"name": "hwa", "then": {"method": "fedavg", "after": 1.5}}, "after is a number of rounds, not 1.5"),
        ({"name": "hwa", "then": {"method": "fedavg", "after": True}}, "after is a number of rounds"),
        ({"name": "hwa", "then": {"method": "fedavg", "after": -1}}, "at least 0, not -1"),
        (
            {"name": "hwa", "then": {"method": {"name": "fedprox", "mu": [0, 1]}, "after": 1}},
            "cannot be a sweep",
        ),
        ({"name": "local", "then": {"method": "fedavg", "after": 1}}, "do not evaluate the same models"),
        ({"name": "hwa", "then": {"method": "dechetero", "after": 1}}, "do not start alike"),
    ],
)
def test_nonsense_is_refused_in_one_line(entry, reason):
    with pytest.raises(UserError, match=reason) as error:
        configure(entry)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("entry", "changes", "reason"),
    [
        (
            {"name": "fedavg", "transforms": ["compressed"]},
            {"failure_rate": 0.1},
            "fedavg compressed: .*missing",
        ),
        (
            {"name": "fedavg", "transforms": ["compressed"]},
            {"participation": 0.5},
            "no message may be missing",
        ),
        ({"name": "fedcurv", "transforms": ["noised"]}, {}, "fedcurv noised: .*not defined on a graph"),
        ({"name": "fedavg", "then": {"method": "scaffold", "after": 1}}, {}, "until: scaffold: .*graph"),
    ],
)
def test_what_cannot_work_is_refused_before_the_first_round(entry, changes, reason):
    with pytest.raises(UserError, match=reason) as error:
        plan(configure(entry, topology="ring", **changes))
    assert "\n" not in str(error.value)
