"""Verdicts follow from the figures: from all seeds, or from a paired test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from scipy import stats

from consilience.reproduce import Recipe
from consilience.reproduce.claims import Judgement, analysis_of_variance, judged
from consilience.reproduce.figures import Figure, figure_of
from consilience.reproduce.raw import Raw

Make = Callable[..., Raw]


def verdict(recipe: Recipe, raw: Raw, claim: int = 0) -> str:
    return judged(recipe.claims[claim], recipe, {"first": raw}).verdict


def ends(*scores: float) -> list[list[float | None]]:
    return [[score] for score in scores]


@pytest.mark.parametrize(
    ("fedavg", "hwa", "found"),
    [
        (ends(0.1, 0.5, 0.9), ends(0.2, 0.6, 0.91), "holds"),  # in every seed
        (ends(0.1, 0.5, 0.9), ends(0.0, 0.6, 0.91), "does not hold here"),  # in two of three
        (ends(0.1, 0.5), ends(0.2, 0.6), "not known yet"),  # two seeds are no evidence
        (ends(*[0.5] * 10), ends(0.49, *[0.6 + n / 1000 for n in range(9)]), "holds"),  # p below 0.05
        (ends(0.2, 0.6, 0.91), ends(0.1, 0.5, 0.9), "does not hold here"),  # significant the other way
    ],
)
def test_one_is_ahead_in_every_seed_or_by_no_accident(recipe, raw, fedavg, hwa, found):
    assert verdict(recipe, raw({"fedavg": fedavg, "hwa": hwa})) == found


def test_nothing_is_said_about_what_was_not_measured(recipe: Recipe, raw: Make):
    assert verdict(recipe, raw({"fedavg": ends(0.1, 0.2, 0.3)})) == "not known yet"


def test_a_target_that_one_alone_reached_decides(recipe: Recipe, raw: Make):
    slow, fast = [[0.1, 0.1, 0.3]] * 3, [[0.1, 0.4, 0.6]] * 3
    assert verdict(recipe, raw({"fedavg": slow, "hwa": fast}), 1) == "holds"
    assert verdict(recipe, raw({"fedavg": fast, "hwa": slow}), 1) == "does not hold here"
    both = judged(recipe.claims[1], recipe, {"first": raw({"fedavg": slow, "hwa": slow})})
    assert both.reasons == ("20 %: 0.0 rounds fewer, better in 0 of 3 seeds",)  # nobody is at 50 %
    assert both.told == "does not hold here (1 of 2 comparisons)"


def test_a_run_that_ended_too_early_decides_nothing(recipe: Recipe, raw: Make):
    short, long = [[0.1]] * 3, [[0.1, 0.1, 0.3]] * 3
    assert verdict(recipe, raw({"fedavg": short, "hwa": long}), 1) == "not known yet"
    assert verdict(recipe, raw({"fedavg": [[0.1] * 4] * 3, "hwa": long}), 1) == "holds"


def test_scores_of_a_run_that_is_not_finished_are_not_compared(recipe: Recipe, raw: Make):
    begun = raw({"fedavg": [[0.1], [0.2], [0.3]], "hwa": [[0.2, 0.3], [0.3, 0.4], [0.4, 0.5]]}, planned=2)
    assert verdict(recipe, begun) == "not known yet"
    assert verdict(recipe, begun, 2) == "not known yet"
    figures = [figure_of(recipe.tables[0], row, "end", {"first": begun}) for row in ("FedAvg", "HWA")]
    assert [one.complete for one in figures if one] == [False, True]
    assert analysis_of_variance([one for one in figures if one]) is None


def test_rows_are_alike_within_what_the_claim_says(recipe: Recipe, raw: Make):
    assert verdict(recipe, raw({"fedavg": ends(0.5, 0.5, 0.5), "hwa": ends(0.5, 0.5, 0.527)}), 2) == "holds"
    assert (
        verdict(recipe, raw({"fedavg": ends(0.5, 0.5, 0.5), "hwa": ends(0.5, 0.5, 0.56)}), 2)
        == "does not hold here"
    )
    assert verdict(recipe, raw({"fedavg": ends(0.5), "hwa": ends(0.5)}), 2) == "not known yet"
    assert verdict(recipe, raw({"fedavg": ends(0.5, 0.5, 0.5)}), 2) == "not known yet"  # a row is missing
    diverged = raw({"fedavg": ends(0.5, 0.5, 0.5), "hwa": [[0.5], [0.5], [None]]})
    assert judged(recipe.claims[2], recipe, {"first": diverged}).reasons == ("end: a model diverged",)


def test_of_several_rows_that_are_to_be_ahead_each_is_compared(recipe: Recipe, raw: Make):
    claim = replace(recipe.claims[0], ahead=("HWA", "FedAvg"))
    cells = {"first": raw({"fedavg": ends(0.1, 0.5, 0.8), "hwa": ends(0.2, 0.6, 0.9)})}
    found = judged(claim, recipe, cells)
    assert found.verdict == "holds in part"
    assert found.reasons == (
        "end, HWA: +10.00 points, better in 3 of 3 seeds",
        "end, FedAvg: +0.00 points, better in 0 of 3 seeds",
    )


def test_of_several_tables_reasons_name_the_one(recipe: Recipe, raw: Make):
    claim = replace(recipe.claims[0], tables=("scores", "rounds"), columns=("end", "20 %"))
    scores = raw({"fedavg": ends(0.1, 0.5, 0.8), "hwa": ends(0.2, 0.6, 0.9)})
    first, second = judged(claim, recipe, {"first": scores}).reasons
    assert first.startswith("scores, end: ")
    assert second.startswith("rounds, 20 %: ")


def test_reasons_name_the_gain_and_the_paired_probability(recipe: Recipe, raw: Make):
    fedavg, hwa = (0.1, 0.5, 0.9), (0.2, 0.62, 0.91)
    p = float(stats.ttest_rel(hwa, fedavg).pvalue)
    (reason,) = judged(
        recipe.claims[0], recipe, {"first": raw({"fedavg": ends(*fedavg), "hwa": ends(*hwa)})}
    ).reasons
    assert reason == f"end: +7.67 points, better in 3 of 3 seeds, p = {p:.2g}"


def test_of_many_comparisons_those_are_told_that_speak_against_the_claim(recipe: Recipe):
    many = Judgement(
        recipe.claims[0], "holds in part", ("a", "b", "c", "d", "e", "f", "g"), (True,) * 6 + (False,), 7
    )
    assert many.why() == "so in 6 of 7 comparisons; not so: g"
    assert many.told == "holds in part"
    assert replace(many, reasons=("a", "b"), held=(True, False)).why() == "a; b"


def test_the_analysis_of_variance_is_scipys(recipe: Recipe, raw: Make):
    fedavg, hwa = (0.1, 0.5, 0.9), (0.2, 0.62, 0.91)
    cells = {"first": raw({"fedavg": ends(*fedavg), "hwa": ends(*hwa)})}
    figures = [figure_of(recipe.tables[0], row, "end", cells) for row in ("FedAvg", "HWA")]
    sound = [one for one in figures if isinstance(one, Figure)]
    assert analysis_of_variance(sound) == pytest.approx(stats.f_oneway(fedavg, hwa).pvalue)
    assert analysis_of_variance(sound[:1]) is None
