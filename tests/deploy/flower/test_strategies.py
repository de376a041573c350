"""Rules of this library as strategies of Flower, for clients that are Flower's own."""

from __future__ import annotations

import importlib
import struct
import sys
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.testing import assert_close

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'consilience[flower]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict

from consilience.errors import UserError
from consilience.flower import HWAStrategy, RuleStrategy, curvature, evidence
from consilience.rules import HessianWeighted, Median
from consilience.server_steps import Momentum
from scorecard.flower_grid import Loop

EXAMPLE = Path(__file__).parents[3] / "examples" / "flower_hwa"
RUN = {"rounds": 2, "epochs": 1, "lr": 0.05, "batch-size": 64}


def net(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    layers = [nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Tanh(), nn.Linear(5, 3)]
    return nn.Sequential(*layers).double()


def batches(seed: int, rows: int = 6) -> list[tuple[torch.Tensor, torch.Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, 4, generator=generator, dtype=torch.float64)
    return list(zip(inputs.split(4), torch.arange(rows).remainder(3).split(4), strict=True))


def squares(model: nn.Module, data) -> dict[str, torch.Tensor]:
    """The sum of the squared gradients of single rows, by hand."""
    model = model.eval()
    params = dict(model.named_parameters())
    total = {name: torch.zeros_like(value) for name, value in params.items()}
    for inputs, targets in data:
        for x, y in zip(inputs, targets, strict=True):
            loss = nn.functional.cross_entropy(model(x[None]), y[None])
            for name, grad in zip(params, torch.autograd.grad(loss, list(params.values())), strict=True):
                total[name] += grad.square()
    return {name: value.detach() for name, value in total.items()}


def test_curvature_is_that_of_single_rows_with_unit_norm():
    model, data = net(0).train(), batches(0)
    found = curvature(model, data)["importance"].to_torch_state_dict()
    assert model.training
    expected = squares(model, data)
    output = {name: expected[name] for name in ("3.weight", "3.bias")}
    norm = sum(float(value.square().sum()) for value in output.values()) ** 0.5
    assert_close(dict(found), {name: value / norm for name, value in output.items()})


def test_batches_may_be_mappings():
    data = [{"img": x, "label": y} for x, y in batches(0)]
    expected = curvature(net(0), batches(0))["importance"].to_torch_state_dict()
    assert_close(curvature(net(0), data)["importance"].to_torch_state_dict(), expected)
    odd = [{"a": x, "b": y, "c": y} for x, y in batches(0)]
    with pytest.raises(UserError, match="say which of"):
        curvature(net(0), odd)
    found = curvature(net(0), odd, keys=("a", "c"))["importance"].to_torch_state_dict()
    assert_close(found, expected)


def test_a_rule_that_remembers_is_refused():
    with pytest.raises(UserError, match="deploy flower"):
        evidence(HessianWeighted(accumulate="sum"), net(0), batches(0))


# Strategies, on replies that are made here.


def replies_of(strategy, start: nn.Module, contents: list[dict]):
    """The replies of some nodes to what a strategy asks for."""
    grid = Loop({node: {} for node in range(2, 2 + len(contents))}, Path())
    asked = strategy.configure_train(1, ArrayRecord(start.state_dict()), ConfigRecord(), grid)
    by_node = {one.metadata.dst_node_id: one for one in asked}
    return [
        Message(RecordDict(content), reply_to=by_node[node]) for node, content in enumerate(contents, start=2)
    ]


def reply(seed: int, examples: int, *, curved: bool = True) -> dict:
    model = net(seed)
    extra = curvature(model, batches(seed)) if curved else {}
    metrics = MetricRecord({"num-examples": examples, "loss": float(seed)})
    return {"arrays": ArrayRecord(model.state_dict()), "metrics": metrics, **extra}


def test_hwa_weighs_the_output_layer_by_curvature_and_the_rest_by_examples():
    strategy = HWAStrategy()
    contents = [reply(1, 30), reply(2, 10)]
    arrays, metrics = strategy.aggregate_train(1, replies_of(strategy, net(0), contents))
    found = arrays.to_torch_state_dict()
    assert list(found) == list(net(0).state_dict())
    first, second = (one["arrays"].to_torch_state_dict() for one in contents)
    one, other = (content["importance"].to_torch_state_dict() for content in contents)
    for name in one:
        weighed = (one[name] * first[name] + other[name] * second[name]) / (one[name] + other[name])
        assert_close(found[name], weighed)
    for name in ("0.weight", "0.bias", "1.weight", "1.running_mean"):
        assert_close(found[name], 0.75 * first[name] + 0.25 * second[name])
    assert found["1.num_batches_tracked"] == max(
        first["1.num_batches_tracked"], second["1.num_batches_tracked"]
    )
    assert metrics["loss"] == pytest.approx(1.25)


def test_any_rule_and_server_step():
    strategy = RuleStrategy(Median(), Momentum(beta=0.9))
    contents = [reply(seed, 5, curved=False) for seed in (1, 2, 3)]
    arrays, _ = strategy.aggregate_train(1, replies_of(strategy, net(0), contents))
    states = [one["arrays"].to_torch_state_dict() for one in contents]
    stacked = torch.stack([one["0.weight"] for one in states])
    assert_close(arrays.to_torch_state_dict()["0.weight"], stacked.median(0).values)
    again = replies_of_next(strategy, arrays, contents)
    later, _ = strategy.aggregate_train(2, again)
    change = stacked.median(0).values - net(0).state_dict()["0.weight"]
    assert_close(later.to_torch_state_dict()["0.weight"], stacked.median(0).values + 0.9 * change)


def replies_of_next(strategy, arrays, contents):
    grid = Loop({node: {} for node in range(2, 2 + len(contents))}, Path())
    asked = strategy.configure_train(2, arrays, ConfigRecord(), grid)
    by_node = {one.metadata.dst_node_id: one for one in asked}
    return [Message(RecordDict(one), reply_to=by_node[node]) for node, one in enumerate(contents, start=2)]


def without_curvature(content):
    del content["importance"]


def not_finite(content):
    state = content["arrays"].to_torch_state_dict()
    state["0.bias"][0] = float("nan")
    content["arrays"] = ArrayRecord(state)


def of_other_shape(content):
    state = content["arrays"].to_torch_state_dict()
    state["0.bias"] = state["0.bias"][:2]
    content["arrays"] = ArrayRecord(state)


def without_examples(content):
    content["metrics"] = MetricRecord({"loss": 1.0})


def with_more(content):
    content["more"] = content["arrays"]


def announced(shape: str) -> bytes:
    """The head of an array in NumPy's format, and nothing after it."""
    head = f"{{'descr': '<f4', 'fortran_order': False, 'shape': {shape}, }}".ljust(117) + "\n"
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head)) + head.encode()


ARRAYS = {
    "empty": b"",
    "an archive": b"PK\x03\x04" + bytes(30),
    "a terabyte": announced("(274877906944,)"),
    "no head": b"\x93NUMPY\x01\x00\x10\x00" + b"(" * 16,
    "another version": b"\x93NUMPY\x09\x00" + bytes(100),
    "a pickle": announced("(1,)").replace(b"<f4", b"|O ") + bytes(8),
}


def with_array(data):
    def lie(content):
        arrays = dict(content["arrays"])
        arrays["0.bias"] = Array(dtype="float32", shape=(4,), stype="numpy.ndarray", data=data)
        content["arrays"] = ArrayRecord(arrays)

    return lie


LIES = [without_curvature, not_finite, of_other_shape, without_examples, with_more]


@pytest.mark.parametrize(
    "lie", [*LIES, *(pytest.param(with_array(d), id=name) for name, d in ARRAYS.items())]
)
def test_a_reply_that_does_not_fit_does_not_count(lie):
    def merged(*contents):
        strategy = HWAStrategy()
        return strategy.aggregate_train(1, replies_of(strategy, net(0), list(contents)))

    bad = reply(3, 1000)
    lie(bad)
    arrays, metrics = merged(reply(1, 30), reply(2, 10), bad)
    expected, _ = merged(reply(1, 30), reply(2, 10))
    assert_close(arrays.to_torch_state_dict(), expected.to_torch_state_dict(), rtol=0, atol=0)
    assert metrics["loss"] == pytest.approx(1.25)
    assert merged(bad, bad) == (None, None)


# The example: Flower's quickstart, with two lines changed.


class Simulated(Loop):
    """Nodes that run the example's ClientApp."""

    def send_and_receive(self, messages, *, timeout=None):
        app = importlib.import_module("quickstart.client_app").app
        found = []
        for message in messages:
            node = message.metadata.dst_node_id
            message.metadata.__dict__["_message_id"] = f"{len(self.sent)}"
            self.sent.append(message)
            context = Context(1, node, self.nodes[node], RecordDict(), RUN)
            found.append(app(message, context))
        return found


@pytest.fixture
def _quickstart(monkeypatch):
    monkeypatch.syspath_prepend(str(EXAMPLE))
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] == "quickstart"]:
        del sys.modules[name]


@pytest.mark.usefixtures("_quickstart")
def test_the_example_learns():
    grid = Simulated({n + 2: {"partition-id": n, "num-partitions": 2} for n in range(2)}, Path())
    task = importlib.import_module("quickstart.task")
    torch.manual_seed(0)
    start = ArrayRecord(task.Net().state_dict())
    result = HWAStrategy(guard=1.0).start(grid=grid, initial_arrays=start, num_rounds=2)
    scores = [dict(one)["eval_acc"] for one in result.evaluate_metrics_clientapp.values()]
    assert len(scores) == 2
    assert scores[-1] > 0.3
