"""Tests between methods: worked out by scipy or by hand, and silent where there is nothing to say."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from consilience.report.significance import against, compared, variance

ONE, OTHER, THIRD = {0: 0.9, 1: 0.8, 2: 0.85}, {0: 0.7, 1: 0.75, 2: 0.72}, {0: 0.6, 1: 0.61, 2: 0.59}


def test_shared_seeds_are_paired():
    found = compared(ONE, OTHER)
    assert (found.test, found.seeds, found.why) == ("paired t-test", 3, "")
    assert found.p == pytest.approx(stats.ttest_rel([0.9, 0.8, 0.85], [0.7, 0.75, 0.72]).pvalue)
    assert found.difference == pytest.approx((0.2 + 0.05 + 0.13) / 3)
    # In another order of seeds the pairs are the same.
    assert compared(dict(reversed(ONE.items())), OTHER) == found


def test_only_seeds_that_both_have_are_paired():
    found = compared({**ONE, 7: 0.1}, {9: 0.2, **OTHER})
    assert (found.p, found.seeds) == (compared(ONE, OTHER).p, 3)


def test_other_seeds_are_independent_samples():
    found = compared(ONE, {seed + 10: value for seed, value in OTHER.items()})
    assert (found.test, found.seeds) == ("Welch's t-test", 3)
    assert found.p == pytest.approx(
        stats.ttest_ind([0.9, 0.8, 0.85], [0.7, 0.75, 0.72], equal_var=False).pvalue
    )


@pytest.mark.parametrize(
    ("one", "other", "why"),
    [
        ({0: 0.9, 1: 0.8}, {0: 0.7, 1: 0.6}, "fewer than 3 seeds"),
        ({0: 0.9}, {1: 0.7}, "fewer than 3 seeds"),
        ({**ONE, 3: math.nan}, OTHER, "a seed has diverged or has no score"),
        (ONE, ONE, "they differ by the same in every seed"),
        (ONE, {seed: value - 0.1 for seed, value in ONE.items()}, "they differ by the same in every seed"),
        (dict.fromkeys(range(3), 0.5), dict.fromkeys(range(5, 8), 0.6), "every seed gave the same"),
    ],
)
def test_nothing_is_said_where_nothing_can_be(one, other, why):
    found = compared(one, other)
    assert (found.p, found.test, found.why) == (None, "", why)


def test_holm_corrects_for_all_comparisons_with_one_method():
    found = against(0, [ONE, OTHER, THIRD, {0: 0.5}])
    assert found[0] is None
    plain = [compared(OTHER, ONE).p, compared(THIRD, ONE).p]
    assert [one.p for one in found[1:3]] == plain
    small, large = sorted(plain)
    assert sorted(one.holm for one in found[1:3]) == pytest.approx([2 * small, max(2 * small, large)])
    assert (found[3].p, found[3].holm) == (None, None)  # which does not count among the comparisons


def test_variance_is_the_one_way_analysis_of_papers():
    found = variance([ONE, OTHER, THIRD])
    wanted = stats.f_oneway([0.9, 0.8, 0.85], [0.7, 0.75, 0.72], [0.6, 0.61, 0.59])
    assert (found.methods, found.seeds) == (3, 3)
    assert (found.statistic, found.p) == (pytest.approx(wanted.statistic), pytest.approx(wanted.pvalue))
    assert variance([ONE]) is None
    assert variance([ONE, {0: 0.5, 1: 0.4}]).why == "fewer than 3 seeds"
    assert variance([ONE, {**OTHER, 3: math.nan}]).p is None
    assert variance([dict.fromkeys(range(3), 0.5)] * 2).why == "every seed gave the same"
