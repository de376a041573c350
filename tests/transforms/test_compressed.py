"""Compressed messages: what travels, what a receiver makes of it, and that nothing is lost for good."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import pytest
import torch
from torch.testing import assert_close

from consilience import tree, wire
from consilience.algorithm import Conditions, SingleExchange
from consilience.algorithms.dechw import DecHW
from consilience.algorithms.fagh import FAGH
from consilience.algorithms.fedavg import FedAvg
from consilience.algorithms.fedcurv import FedCurv
from consilience.algorithms.fedlin import FedLin
from consilience.algorithms.fedsgd import FedSGD
from consilience.algorithms.hwa import HWA
from consilience.algorithms.scaffold import Scaffold
from consilience.errors import UserError
from consilience.graphs.complete import Complete
from consilience.graphs.ring import Ring
from consilience.graphs.star import Star
from consilience.learning.solvers import SGD
from consilience.testing import perceptron, prepare
from consilience.testing.federation import Layout, simulation_of
from consilience.testing.watching import Watch, Watched
from consilience.transforms.clipped import Clipped
from consilience.transforms.compressed import Compressed, decode
from consilience.transforms.noised import Noised
from consilience.tree import concatenated

SIZE = sum(value.numel() for value in perceptron().parameters())
TENSORS = len(list(perceptron().parameters()))
METHODS = [FedAvg(), HWA(), FedCurv(), Scaffold(), FedSGD(), FAGH(), FedLin(), DecHW()]
ON_GRAPHS = [FedAvg(), HWA(), DecHW()]
KINDS = [Compressed(one_in=10), Compressed("int8"), Compressed(one_in=10, error_feedback=False)]
IDS = ["top_k", "int8", "no feedback"]


def main(upload):
    return next(group for group in ("params", "gradient") if group in upload)


def transmitted(algorithm, upload):
    """What comes out of the wire, of those groups that are sent."""
    sent = algorithm.phases()[0].travelling(upload)
    return wire.decode(wire.encode(sent, wire.Header(1, 2, 3)))[0]


class Uploads(Watch):
    """Keeps what clients receive and send."""

    def __init__(self) -> None:
        self.received, self.sent = [], []

    def call(self, place, function, given):
        result = function(*given)
        if place.role == "local":
            self.received.append(given[1])
            self.sent.append(result[0])
        return result


# What travels.


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", KINDS, ids=IDS)
@pytest.mark.parametrize("method", METHODS, ids=lambda one: one.name)
def test_a_server_rebuilds_the_message_from_what_travels_bit_for_bit(play, method, kind, dtype):
    algorithm = kind(method)
    uploads = play(algorithm, dtype=dtype).uploads
    assert len(uploads.sent) == 2 * 5 * len(method.phases())
    for down, up in zip(uploads.received, uploads.sent, strict=True):
        arrived = transmitted(algorithm, up)
        assert not {"params", "gradient"} & arrived.keys()
        rebuilt = algorithm.phases()[0].received(arrived, down)
        assert_close(up[main(up)], rebuilt[main(up)], rtol=0, atol=0)


@pytest.mark.parametrize("kind", KINDS[:2], ids=IDS[:2])
@pytest.mark.parametrize("method", ON_GRAPHS, ids=lambda one: one.name)
def test_neighbours_rebuild_a_nodes_public_copy_from_what_travels_bit_for_bit(play, method, kind):
    algorithm = kind(method)
    uploads = play(algorithm, 3, Ring()).uploads
    for node in range(5):
        copy = {"params": tree.zeros_like(uploads.received[0]["params"])}
        for sent in uploads.sent[node::5]:
            arrived = transmitted(algorithm, sent)
            assert not {"params", "packing_rest"} & arrived.keys()
            copy = algorithm.phases()[0].received(arrived, copy)
            assert_close(sent["params"], copy["params"], rtol=0, atol=0)


@pytest.mark.parametrize("method", METHODS, ids=lambda one: one.name)
@pytest.mark.parametrize(
    ("kind", "packed"),
    [
        (Compressed(one_in=10), {".packed": -(-SIZE // 10) * (4 + 4)}),
        (Compressed(one_in=1000), {".packed": 4 + 4}),
        (Compressed("int8"), {".packed": SIZE, ".scale": 4 * TENSORS}),
    ],
)
def test_bytes_are_those_of_the_packed_form_and_of_everything_else(play, method, kind, packed):
    plain, small = (play(one, 1, dtype=torch.float32).records[0] for one in (method, kind(method)))
    exchanges = len(method.phases())
    rest = {g: n for g, n in plain.bytes_up.items() if g not in ("params", "gradient", "header")}
    mains = [group for group in ("params", "gradient") if group in plain.bytes_up]
    assert len(mains) == exchanges
    expected = rest | {main + kind: 5 * count for kind, count in packed.items() for main in mains}
    assert {group: n for group, n in small.bytes_up.items() if group != "header"} == expected
    assert small.bytes_down == plain.bytes_down


def test_one_coordinate_in_a_hundred_is_the_default():
    sent = Compressed().encode("params", {"w": torch.randn(20, 50)})
    assert sent["params.packed"]["values"].shape == sent["params.packed"]["indices"].shape == (10,)
    assert sent["params.packed"]["indices"].dtype == torch.int32


# The compressors.


def test_the_largest_coordinates_are_kept_as_they_are():
    update = {"a": torch.tensor([[3.0, -0.1], [0.0, -5.0]]), "b": torch.tensor([0.2, 4.0])}
    packed = Compressed(one_in=2).encode("params", update)
    assert packed["params.packed"]["indices"].tolist() == [0, 3, 5]
    kept = {"a": torch.tensor([[3.0, 0.0], [0.0, -5.0]]), "b": torch.tensor([0.0, 4.0])}
    assert_close(decode("params", packed, update), kept, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_all_coordinates_are_lossless(dtype):
    update = {"a": torch.randn(7, 3, dtype=dtype), "b": torch.randn(5, dtype=dtype)}
    assert_close(
        decode("params", Compressed(one_in=1).encode("params", update), update), update, rtol=0, atol=0
    )


@pytest.mark.parametrize("scale", [1e-42, 1e-30, 1.0, 1e30])
def test_eight_bits_are_off_by_half_a_step_at_most(scale):
    update = {"a": scale * torch.randn(50, 40), "zero": torch.zeros(3), "one": torch.tensor(scale)}
    packed = Compressed("int8").encode("params", update)
    decoded = decode("params", packed, update)
    for name, value in update.items():
        step = packed["params.scale"][name]
        assert packed["params.packed"][name].dtype == torch.int8
        # Steps of the smallest numbers that float32 has are themselves rounded.
        rounding = 127 * torch.finfo(torch.float32).smallest_normal * torch.finfo(torch.float32).eps
        assert (decoded[name] - value).abs().max() <= 0.5001 * step + rounding
    assert decoded["zero"].tolist() == [0, 0, 0]


@pytest.mark.parametrize("kind", KINDS[:2], ids=IDS[:2])
@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_numbers_that_are_not_finite_stay_so(kind, bad):
    packed = kind.encode("params", {"a": torch.tensor([1.0, bad, 2.0]), "b": torch.ones(20)})
    floats = [value for value in tree.flatten(packed).values() if value.is_floating_point()]
    assert not all(value.isfinite().all() for value in floats)


# Error feedback.


@pytest.mark.parametrize("kind", KINDS[:2], ids=IDS[:2])
@pytest.mark.parametrize("method", [FedAvg(), HWA(), FedSGD(), FedLin()], ids=lambda one: one.name)
def test_what_was_sent_and_what_is_left_add_up_to_the_true_updates(play, method, kind):
    true = Uploads()
    seen = play(kind(Watched(method, true)), 4).uploads
    exchanges = len(method.phases())
    for client in range(5):
        for exchange in range(exchanges):
            # Messages come exchange by exchange, in each of them client by client.
            mine = slice(5 * exchange + client, None, 5 * exchanges)
            left = seen.memories[mine][-1][1][f"compressed.{exchange}.kept"]
            sent = [decode(main(up), up, left) for up in seen.sent[mine]]
            wanted = [
                up["gradient"] if "gradient" in up else tree.sub(up["params"], down["params"])
                for up, down in zip(true.sent[mine], true.received[mine], strict=True)
            ]
            assert len(sent) == len(wanted) == 4
            assert tree.sq_norm(left) > 0
            assert_close(tree.add(sum_of(sent), left), sum_of(wanted), rtol=1e-11, atol=1e-14)


def sum_of(many):
    total = tree.zeros_like(many[0])
    for one in many:
        total = tree.add(total, one)
    return total


@pytest.mark.parametrize("kind", KINDS[:2], ids=IDS[:2])
def test_the_first_residual_is_what_the_method_would_have_sent_less_what_was_sent(play, kind):
    plain, small = (play(one, 1).uploads for one in (FedAvg(), kind(FedAvg())))
    for true, sent, (_, memory) in zip(plain.sent, small.sent, small.memories, strict=True):
        expected = tree.sub(true["params"], sent["params"])
        assert_close(memory["compressed.0.kept"], expected, rtol=1e-9, atol=1e-14)


@dataclass(frozen=True)
class Steady(SingleExchange):
    """Every client's update is the same in every round."""

    name: ClassVar[str] = "steady"

    def local(self, client, down, memory):
        update = {
            n: torch.linspace(0.5, 1, v.numel()).to(v).reshape(v.shape) for n, v in down["params"].items()
        }
        return {"params": tree.add(down["params"], update), "buffers": down["buffers"]}, memory


@pytest.mark.parametrize("feedback", [True, False])
def test_with_error_feedback_every_coordinate_moves_in_the_end(play, feedback):
    start, after = (
        play(Compressed(one_in=10, error_feedback=feedback)(Steady()), rounds).params for rounds in (0, 60)
    )
    speed = (
        concatenated(tree.sub(after, start)) / 60 / concatenated(tree.sub(play(Steady(), 1).params, start))
    )
    if feedback:
        assert speed.min() > 0.7
        assert speed.max() <= 1 + 1e-9
    else:
        assert (speed.abs() < 1e-9).double().mean() > 0.8


def test_without_feedback_nothing_is_remembered(play):
    assert play(KINDS[2](FedAvg())).uploads.memories[-1][1] == {}
    assert play(KINDS[0](FedAvg())).uploads.memories[-1][1].keys() == {"compressed.0.kept"}
    assert play(KINDS[0](FedLin())).uploads.memories[-1][1].keys() == {
        "gradient",
        "compressed.0.kept",
        "compressed.1.kept",
    }


# Whole methods.


@pytest.mark.parametrize("method", METHODS, ids=lambda one: one.name)
def test_all_coordinates_are_the_method_itself(play, method):
    plain, whole = (play(one, 3).simulation.hub for one in (method, Compressed(one_in=1)(method)))
    assert_close(whole, plain, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("topology", [Ring(), Complete()], ids=lambda one: one.name)
@pytest.mark.parametrize("method", ON_GRAPHS, ids=lambda one: one.name)
def test_all_coordinates_are_the_method_itself_on_a_graph(play, method, topology):
    plain, whole = (play(one, 3, topology).simulation.hub for one in (method, Compressed(one_in=1)(method)))
    assert_close(whole, plain, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS, ids=IDS)
@pytest.mark.parametrize("method", [HWA(), Scaffold(), FedLin()], ids=lambda one: one.name)
def test_the_same_in_lanes(play, method, kind):
    found = [play(kind(method), 3, lanes=lanes).simulation.hub for lanes in (0, 3)]
    assert_close(*found, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("kind", [Compressed(one_in=10), Compressed("int8")], ids=IDS[:2])
def test_peers_agree_in_the_end(play, kind):
    """Without training, different models become one, the mean of all: no part of it is lost for good."""
    algorithm = kind(FedAvg("uniform"))
    subject = replace(prepare(algorithm), solver=SGD(0.0))
    simulation = simulation_of(subject, Layout(Complete(), lanes=10))
    apart = {
        name: value + torch.randn(value.shape, dtype=value.dtype)
        for name, value in simulation.hub["params"].items()
    }
    simulation.hub = {**simulation.hub, "params": apart}
    for _ in range(100):
        simulation.step(evaluate=False)
    for name, value in simulation.hub["params"].items():
        mean = apart[name].mean(1, keepdim=True)
        assert (value - mean).abs().max() < 1e-2 * (apart[name] - mean).abs().max()


def test_a_peer_moves_from_its_own_model_towards_what_it_merged(play):
    """x + mixing (m - p), from the messages of one round, by hand."""
    run = play(Compressed(one_in=10, mixing=0.3)(FedAvg("uniform")), 1, Ring())
    for name, value in run.params.items():
        public = torch.stack([sent["params"][name] for sent in run.uploads.sent])
        model = public + torch.stack([sent["packing_rest"][name] for sent in run.uploads.sent])
        merged = (public + public.roll(1, 0) + public.roll(-1, 0)) / 3
        assert_close(value[0], model + 0.3 * (merged - public), rtol=1e-12, atol=1e-14)


def test_what_peers_remember_is_their_public_copy(play):
    run = play(Compressed(one_in=10)(FedAvg()), 2, Ring())
    for sent, (_, memory) in zip(run.uploads.sent, run.uploads.memories, strict=True):
        assert_close(memory["compressed.0.kept"], sent["params"], rtol=0, atol=0)


# What is refused.


def setting(**changes):
    usual = {"graph": True, "solver": SGD(), "epochs": 1, "holdout": False, "unreliable": False}
    return Conditions(**{**usual, **changes})


@pytest.mark.parametrize(
    ("kind", "where", "reason"),
    [
        (Compressed(), {"unreliable": True}, "no message may be missing"),
        (Compressed(error_feedback=False), {}, "no compression without error feedback"),
        (Compressed(), {}, None),
        (Compressed("int8"), {"graph": False, "unreliable": True}, None),
        (Compressed(error_feedback=False), {"graph": False}, None),
    ],
)
def test_where_it_is_refused(kind, where, reason):
    found = kind(FedAvg()).refuse(setting(**where))
    assert found is None if reason is None else reason in found


@pytest.mark.parametrize("options", [{"one_in": 0}, {"one_in": -3}, {"mixing": -0.1}])
def test_wrong_numbers_are_refused(options):
    with pytest.raises(UserError, match=next(iter(options))):
        Compressed(**options)


@pytest.mark.parametrize("later", [Noised(), Clipped(), Compressed("int8")], ids=lambda one: one.name)
def test_nothing_comes_after_compression(later):
    with pytest.raises(UserError, match=f"fedavg compressed {later.name}: .* pack them last"):
        later(Compressed()(FedAvg()))


@dataclass(frozen=True)
class Both(SingleExchange):
    """Sends a model and a gradient in one message."""

    name: ClassVar[str] = "both"

    def local(self, client, down, memory):
        return {**client.train(down).model, "gradient": client.grad(down).params}, memory


def test_a_message_with_two_main_groups_is_not_compressed(play):
    with pytest.raises(UserError, match="both compressed: one message has params and gradient"):
        play(Compressed()(Both()), 1, Star())
    play(Noised()(Both()), 1)
