"""Noise on messages: its distribution, where it goes, and that none is none."""

from __future__ import annotations

from statistics import NormalDist

import pytest
import torch
from torch.testing import assert_close

from consilience.algorithms.dechw import DecHW
from consilience.algorithms.fagh import FAGH
from consilience.algorithms.fedavg import FedAvg
from consilience.algorithms.fedcurv import FedCurv
from consilience.algorithms.fedlin import FedLin
from consilience.algorithms.fedsgd import FedSGD
from consilience.algorithms.hwa import HWA
from consilience.algorithms.local import Local
from consilience.algorithms.scaffold import Scaffold
from consilience.errors import UserError
from consilience.graphs.ring import Ring
from consilience.graphs.star import Star
from consilience.learning.randomness import normals
from consilience.transforms.noised import Noised

METHODS = [FedAvg(), HWA(), FedCurv(), Scaffold(), FedSGD(), FAGH(), FedLin(), DecHW(), Local()]
KEYS = torch.tensor([3, 2**62 - 5, -17])


def flat(params):
    return torch.cat([value.flatten() for value in params.values()])


@pytest.mark.parametrize("key", KEYS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_numbers_are_standard_normal(key, dtype):
    draws = normals(key, 5, torch.empty(400, 500, dtype=dtype))
    assert draws.dtype == dtype
    assert draws.isfinite().all()
    # Four standard errors of 200,000 draws: of the mean, of the variance, of the kurtosis and of a tail.
    assert abs(draws.mean()) < 4 / 200_000**0.5
    assert abs(draws.var() - 1) < 4 * (2 / 200_000) ** 0.5
    assert abs((draws**4).mean() - 3) < 4 * (96 / 200_000) ** 0.5
    assert abs((draws > 2).double().mean() - 0.02275) < 4 * (0.02275 / 200_000) ** 0.5


def test_the_numbers_of_other_keys_streams_and_places_are_unrelated():
    draws = [normals(key, stream, torch.empty(50_000)) for key in KEYS for stream in (1, 2, 1 << 20)]
    draws += [draws[0].roll(1), draws[0].flip(0)]
    assert (torch.corrcoef(torch.stack(draws)) - torch.eye(len(draws))).abs().max() < 5 / 50_000**0.5


def test_the_most_extreme_draws_are_finite(monkeypatch):
    ends = torch.tensor([-(2**31), 2**31 - 1], dtype=torch.int32)
    monkeypatch.setattr("consilience.learning.randomness.keyed_bits", lambda *_: ends)
    draws = normals(KEYS[0], 0, torch.empty(2))
    assert_close(draws, torch.tensor([1, -1]) * NormalDist().inv_cdf(2**-33), rtol=1e-5, atol=0)


@pytest.mark.parametrize("topology", [Star(), Ring()], ids=lambda one: one.name)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("method", METHODS, ids=lambda one: one.name)
def test_no_noise_changes_nothing_bit_for_bit(play, method, dtype, topology):
    if isinstance(topology, Ring) and not isinstance(method, FedAvg | HWA | DecHW | Local):
        pytest.skip("refused on a graph")
    plain, noised = (play(one, topology=topology, dtype=dtype) for one in (method, Noised(0.0)(method)))
    assert_close(noised.simulation.hub, plain.simulation.hub, rtol=0, atol=0)
    assert_close(noised.uploads.sent, plain.uploads.sent, rtol=0, atol=0)


@pytest.mark.parametrize("method", METHODS[:-1], ids=lambda one: one.name)
def test_noise_of_sigma_is_on_the_main_group_and_not_elsewhere(play, method):
    plain, noised = (play(one, 1).uploads for one in (method, Noised(0.3, curvature_sigma=0.0)(method)))
    group = "params" if "params" in plain.sent[0] else "gradient"
    exchanges = 1 if method.name != "fedlin" else 2
    pairs = list(zip(plain.sent, noised.sent, strict=True))[: len(plain.sent) // exchanges]
    noise = torch.cat([flat(after[group]) - flat(before[group]) for before, after in pairs])
    assert abs(noise.mean()) < 4 * 0.3 / len(noise) ** 0.5
    assert abs(noise.std() / 0.3 - 1) < 4 / (2 * len(noise)) ** 0.5
    for before, after in pairs:
        rest = [{name: params for name, params in one.items() if name != group} for one in (before, after)]
        assert_close(*rest, rtol=0, atol=0)


def test_noise_differs_between_clients_rounds_exchanges_and_tensors(play):
    plain, noised = (play(one).uploads for one in (FedLin(), Noised(1e-9)(FedLin())))
    seen = []
    for before, after in zip(plain.sent, noised.sent, strict=True):
        group = "params" if "params" in before else "gradient"
        seen += [(value - before[group][name]).flatten()[:3] for name, value in after[group].items()]
    assert len(seen) == 2 * 2 * 5 * 4  # rounds, exchanges, clients, tensors
    # Training from models that differ by 1e-9 differs by about as much, so only clearly equal noise counts.
    gaps = torch.cdist(torch.stack(seen), torch.stack(seen)) + torch.eye(len(seen))
    assert gaps.min() > 1e-11


@pytest.mark.parametrize("method", [HWA("all"), DecHW()], ids=lambda one: one.name)
def test_noisy_curvature_is_clamped_at_zero(play, method):
    plain, noised = (play(one, 1).uploads for one in (method, Noised(0.0, curvature_sigma=0.5)(method)))
    before, after = (torch.cat([flat(sent["importance"]) for sent in one.sent]) for one in (plain, noised))
    positive = after > 0
    assert (after >= 0).all()
    # Half of a normal distribution, where there was almost no curvature.
    few = before < 0.01
    assert abs(positive[few].double().mean() - 0.5) < 4 * 0.5 / few.sum() ** 0.5
    small = positive & few
    assert abs((after[small] ** 2).mean() - 0.25) < 4 * 0.25 * (2 / small.sum()) ** 0.5
    assert_close(noised.sent[0]["params"], plain.sent[0]["params"], rtol=0, atol=0)


def test_curvature_gets_the_same_noise_as_parameters_unless_told(play):
    one, other = (play(noise(HWA()), 1).uploads for noise in (Noised(0.2), Noised(0.2, 0.2)))
    assert_close(one.sent, other.sent, rtol=0, atol=0)


def test_the_same_in_lanes(play):
    found = play(Noised(0.1)(HWA()), lanes=3), play(Noised(0.1)(HWA()))
    assert_close(found[0].params, found[1].params, rtol=1e-12, atol=1e-14)


def test_hwa_averages_by_noisy_curvature(play):
    """The server does with noisy messages what it does with any."""
    run = play(Noised(0.05)(HWA()), 1)
    sent = run.uploads.sent
    name = next(name for name in sent[0]["importance"] if name.endswith("bias"))
    weight, value = (torch.stack([one[group][name] for one in sent]) for group in ("importance", "params"))
    assert (weight.sum(0) > 0).all()
    assert_close(run.params[name][0], (weight * value).sum(0) / weight.sum(0), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("options", [{"sigma": -1.0}, {"curvature_sigma": -0.1}])
def test_negative_noise_is_refused(options):
    with pytest.raises(UserError, match=f"{next(iter(options))}.*-"):
        Noised(**options)
