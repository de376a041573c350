"""Robust rules: what a few messages say cannot move the result far."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy import optimize, stats
from torch.testing import assert_close

from consilience.algorithm import Inbox
from consilience.rules import robust
from consilience.rules.by_data import ByData
from consilience.rules.geometric_median import GeometricMedian
from consilience.rules.krum import Krum
from consilience.rules.median import Median
from consilience.rules.trimmed_mean import TrimmedMean

ROBUST = {
    "median": Median(),
    "trimmed_mean": TrimmedMean(0.2),
    "geometric_median": GeometricMedian(),
    "krum": Krum(f=2),
    "multi_krum": Krum(f=2, keep=3),
    "multi_krum-most": Krum(f=2, keep=None),
}
every_rule = pytest.mark.parametrize("rule", ROBUST.values(), ids=ROBUST)


def models(messages=10, dtype=torch.float64, seed=0):
    """Stacked models that differ a little from a common one."""
    random = torch.Generator().manual_seed(seed)
    shapes = {"a.weight": (4, 5), "a.bias": (4,), "b.weight": (3, 4)}
    return {
        name: (
            torch.randn(shape, generator=random, dtype=torch.float64)
            + 0.1 * torch.randn(messages, *shape, generator=random, dtype=torch.float64)
        ).to(dtype)
        for name, shape in shapes.items()
    }


def inbox(params, heard=None, node=None):
    messages = len(next(iter(params.values())))
    sizes = torch.arange(1.0, messages + 1, dtype=torch.float64)  # which robust rules do not look at
    if heard is not None:
        sizes = sizes * torch.as_tensor(heard)
    weights = sizes / sizes.sum().clamp(min=1)
    own = None if node is None else {"params": {name: value[node] for name, value in params.items()}}
    return Inbox({"params": params}, weights, weights, own, torch.tensor(float(messages)))


def merge(rule, params, heard=None, node=None):
    return rule.merge({}, inbox(params, heard, node))


def rows(params, chosen):
    return {name: value[chosen] for name, value in params.items()}


def vectors(params):
    """[messages, coordinates]"""
    return torch.cat([value.reshape(len(value), -1) for value in params.values()], 1)


def vector(params):
    return torch.cat([value.reshape(-1) for value in params.values()])


# References


@pytest.mark.parametrize("messages", [1, 2, 3, 10, 11])
def test_the_median_is_numpys(messages):
    merged = merge(Median(), models(messages))
    expected = np.median(vectors(models(messages)).numpy(), axis=0)
    assert_close(vector(merged), torch.from_numpy(expected), rtol=1e-15, atol=1e-15)


@pytest.mark.parametrize("fraction", [0.0, 0.05, 0.1, 0.25, 0.4, 0.5])
@pytest.mark.parametrize("messages", [1, 3, 9, 11])
def test_the_trimmed_mean_is_scipys(messages, fraction):
    merged = merge(TrimmedMean(fraction), models(messages))
    expected = stats.trim_mean(vectors(models(messages)).numpy(), fraction, axis=0)
    assert_close(vector(merged), torch.from_numpy(expected), rtol=1e-13, atol=1e-14)


def test_a_product_that_is_whole_but_for_rounding_counts_as_whole():
    values = torch.arange(100.0)[:, None] ** 2  # 0.29 * 100 is 28.999999999999996, and less in float32
    for fraction in (0.29, torch.tensor(0.29), torch.tensor(0.45)):
        merged = merge(TrimmedMean(fraction), {"o": values})["o"]
        trim = round(100 * float(fraction))
        assert merged.item() == pytest.approx(values[trim:-trim].mean().item())


@pytest.mark.parametrize("messages", [3, 6, 10])
def test_the_geometric_median_minimises_the_sum_of_distances(messages):
    points = vectors(models(messages)).numpy()

    def total(at):
        return np.linalg.norm(points - at, axis=1).sum()

    best = optimize.minimize(total, points.mean(0), method="BFGS", options={"gtol": 1e-10})
    found = vector(merge(GeometricMedian(), models(messages))).numpy()
    assert total(found) <= best.fun * (1 + 1e-9)
    if messages > 3:
        assert np.abs(found - best.x).max() < 1e-5


@pytest.mark.parametrize(("f", "keep"), [(0, 1), (1, 1), (3, 1), (2, 3), (3, 5), (1, None)])
def test_krum_is_its_definition(f, keep):
    points = vectors(models()).numpy()
    distances = ((points[:, None] - points) ** 2).sum(-1)
    scores = [np.sort(np.delete(distances[k], k))[: 10 - f - 2].sum() for k in range(10)]
    best = np.argsort(scores)[: 10 - f - 2 if keep is None else keep]
    found = vector(merge(Krum(f, keep), models()))
    assert_close(found, torch.from_numpy(points[best].mean(0)), rtol=1e-14, atol=1e-15)


# Properties


@every_rule
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_equal_messages_give_that_message(rule, dtype):
    params = {name: value[:1].expand(value.shape) for name, value in models(dtype=dtype).items()}
    merged, common = merge(rule, params), rows(params, 0)
    # Weights of a sum do not add up to 1 to the last bit of a float64; casting takes that away.
    exact = dtype == torch.float32 or isinstance(rule, Median | TrimmedMean)
    assert_close(merged, common, rtol=0 if exact else 1e-15, atol=0)


@every_rule
def test_the_order_of_messages_does_not_matter(rule):
    order = torch.randperm(10)
    assert_close(merge(rule, rows(models(), order)), merge(rule, models()), rtol=1e-13, atol=1e-14)


@every_rule
@pytest.mark.parametrize("lost", [(), (0,), (3, 9), (0, 1, 2, 4, 5, 6), tuple(range(9))])
@pytest.mark.parametrize("garbage", [0.0, 1e30])
def test_a_message_that_was_not_received_does_not_count(rule, lost, garbage):
    heard = [k not in lost for k in range(10)]
    params = models()
    for value in params.values():
        value[list(lost)] = garbage
    expected = merge(rule, rows(params, torch.tensor(heard)))
    assert_close(merge(rule, params, heard), expected, rtol=1e-12, atol=1e-13)


@every_rule
@pytest.mark.parametrize("messages", [1, 2, 3, 4])
def test_however_few_arrive_the_result_is_between_them(rule, messages):
    merged, points = vector(merge(rule, models(messages))), vectors(models(messages))
    assert ((merged >= points.amin(0) - 1e-12) & (merged <= points.amax(0) + 1e-12)).all()


@every_rule
def test_where_nothing_arrives_the_result_is_finite(rule):
    assert vector(merge(rule, models(), [0] * 10)).isfinite().all()


@every_rule
def test_many_receivers_at_once_give_what_each_gives_alone(rule):
    params = models()
    heard = torch.rand(7, 10) < 0.7
    heard[:, 0] = True

    def of_node(row):
        own = {"params": rows(params, 0)}
        return rule.merge({}, Inbox({"params": params}, row, row, own, torch.tensor(10.0)))

    shares = heard.double() / heard.sum(1, keepdim=True)
    together = torch.func.vmap(of_node)(shares)
    for node in range(len(heard)):
        alone = merge(rule, rows(params, heard[node]))
        assert_close(rows(together, node), alone, rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("rule", [Median(), TrimmedMean(0.2)])
@pytest.mark.parametrize("node", [None, 0])
def test_blocks_do_not_show(rule, node, monkeypatch):
    whole = merge(rule, models(), node=node)
    monkeypatch.setattr(robust, "BLOCK", 70)  # 7 coordinates of ten messages, or less than one
    assert_close(merge(rule, models(), node=node), whole, rtol=0, atol=0)


@every_rule
def test_data_sizes_do_not_count(rule):
    first = inbox(models())
    assert_close(rule.shares(first), torch.full((10,), 0.1, dtype=torch.float64))
    second = replace(first, weights=first.weights.flip(0))
    assert_close(rule.merge({}, first), rule.merge({}, second), rtol=0, atol=0)


def test_two_messages_that_are_each_others_only_neighbour_tie_and_are_averaged():
    params = {"o": torch.tensor([[0.0], [1.0], [5.0]], dtype=torch.float64)}
    for order in ([0, 1, 2], [1, 0, 2], [2, 1, 0]):
        assert merge(Krum(f=0), rows(params, order))["o"].item() == 0.5


# Breakdown


def lied(params, liars, scale, kind):
    """The first messages replaced by lies."""
    random = torch.Generator().manual_seed(1)
    lies = {}
    for name, value in params.items():
        noise = torch.randn(value[:liars].shape, generator=random, dtype=value.dtype)
        lie = {
            "scattered": scale * noise,
            "same": torch.full_like(noise, scale),
            "far": -scale * value[:liars],
        }
        lies[name] = torch.cat([lie[kind], value[liars:]])
    return lies


@pytest.mark.parametrize("kind", ["scattered", "same", "far"])
@pytest.mark.parametrize("scale", [10.0, 1e6, 1e30])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("rule", "liars"),
    [
        (Median(), 4),
        (TrimmedMean(0.3), 3),
        (Krum(f=3), 3),
        (Krum(f=3, keep=5), 3),
        (Krum(f=2, keep=None), 2),
    ],
)
def test_liars_move_nothing_out_of_the_range_of_the_honest(rule, liars, scale, kind, dtype):
    params = models(dtype=dtype)
    honest = vectors(params)[liars:]
    merged = vector(merge(rule, lied(params, liars, scale, kind)))
    slack = torch.finfo(dtype).eps
    assert ((merged >= honest.amin(0) - slack) & (merged <= honest.amax(0) + slack)).all()


@pytest.mark.parametrize("kind", ["scattered", "same", "far"])
@pytest.mark.parametrize("scale", [10.0, 1e6, 1e30])
@pytest.mark.parametrize("liars", [1, 3, 4])
def test_the_geometric_median_stays_near_the_honest_whatever_the_scale_of_lies(liars, scale, kind):
    params = models()
    honest = vectors(params)[liars:]
    middle = vector(merge(GeometricMedian(), rows(params, slice(liars, None))))
    spread = (honest - middle).norm(dim=1).max()
    merged = vector(merge(GeometricMedian(), lied(params, liars, scale, kind)))
    # The bound of the geometric median for `liars` of ten is 2 (10 - liars) / (10 - 2 liars) times this.
    assert (merged - middle).norm() < (10 - liars) / (5 - liars) * spread


@pytest.mark.parametrize("rule", [Krum(f=2), Krum(f=2, keep=None), GeometricMedian()])
def test_lies_whose_squares_overflow_are_left_out(rule):
    params = lied(models(), 2, 1e200, "far")
    honest = vectors(params)[2:]
    merged = vector(merge(rule, params))
    assert ((merged >= honest.amin(0) - 1e-12) & (merged <= honest.amax(0) + 1e-12)).all()


def test_a_mean_breaks_down():
    assert vector(merge(ByData("uniform"), lied(models(), 1, 1e6, "same"))).abs().max() > 1e4
