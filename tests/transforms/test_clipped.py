"""Updates of bounded length."""

from __future__ import annotations

import pytest
import torch
from torch.testing import assert_close

from consilience import tree
from consilience.algorithms.dechw import DecHW
from consilience.algorithms.fedavg import FedAvg
from consilience.algorithms.fedcurv import FedCurv
from consilience.algorithms.fedsgd import FedSGD
from consilience.algorithms.hwa import HWA
from consilience.algorithms.scaffold import Scaffold
from consilience.errors import UserError
from consilience.graphs.ring import Ring
from consilience.graphs.star import Star
from consilience.transforms.clipped import Clipped
from consilience.transforms.noised import Noised

METHODS = [FedAvg(), HWA(), FedCurv(), Scaffold(), FedSGD(), DecHW()]


def lengths(uploads):
    """How long every client's update is."""
    found = []
    for down, up in zip(uploads.received, uploads.sent, strict=True):
        update = tree.sub(up["params"], down["params"]) if "params" in up else up["gradient"]
        found.append(tree.sq_norm(update).sqrt())
    return torch.stack(found)


@pytest.mark.parametrize("topology", [Star(), Ring()], ids=lambda one: one.name)
@pytest.mark.parametrize("method", METHODS, ids=lambda one: one.name)
def test_updates_are_shortened_to_the_norm_and_keep_their_direction(play, method, topology):
    if isinstance(topology, Ring) and not isinstance(method, FedAvg | HWA | DecHW):
        pytest.skip("refused on a graph")
    plain = play(method, 1, topology).uploads
    norm = float(lengths(plain).median())
    clipped = play(Clipped(norm)(method), 1, topology).uploads
    assert_close(lengths(clipped), lengths(plain).clamp(max=norm), rtol=1e-12, atol=0)
    for down, before, after, length in zip(
        plain.received, plain.sent, clipped.sent, lengths(plain), strict=True
    ):
        group = "params" if "params" in before else "gradient"
        if length <= norm:
            assert_close(after, before, rtol=0, atol=0)
        start = down["params"] if group == "params" else tree.zeros_like(before[group])
        moved, short = (tree.sub(one[group], start) for one in (before, after))
        assert_close(short, tree.scale(min(1.0, norm / float(length)), moved), rtol=1e-9, atol=1e-14)
        rest = [{g: params for g, params in one.items() if g != group} for one in (before, after)]
        assert_close(*rest, rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", METHODS, ids=lambda one: one.name)
def test_a_large_norm_changes_nothing_bit_for_bit(play, method, dtype):
    plain, clipped = (play(one, dtype=dtype) for one in (method, Clipped(1e6)(method)))
    assert_close(clipped.simulation.hub, plain.simulation.hub, rtol=0, atol=0)


def test_noise_after_clipping_is_not_clipped(play):
    first = lengths(play(Clipped(1e-3)(Noised(1.0)(FedAvg())), 1).uploads)
    second = lengths(play(Noised(1.0)(Clipped(1e-3)(FedAvg())), 1).uploads)
    assert first.max() < 1.001e-3
    assert second.min() > 1


def test_the_same_in_lanes(play):
    found = [play(Clipped(0.1)(HWA()), lanes=lanes).params for lanes in (0, 3)]
    assert_close(*found, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("norm", [0.0, -1.0, float("inf"), float("nan")])
def test_other_norms_are_refused(norm):
    with pytest.raises(UserError, match="clipped: norm must be above 0"):
        Clipped(norm)
