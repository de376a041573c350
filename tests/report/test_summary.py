"""Summaries: every number of a small run worked out by hand."""

from __future__ import annotations

import json
import math

import pytest

from consilience.errors import UserError
from consilience.problems import Classification, NextToken, Regression
from consilience.report.summary import runs_by_method, score_curve, summarise

ACCURACY, R2, PERPLEXITY = Classification.metric, Regression.metric, NextToken.metric


def record(seed: int, number: int, accuracy: float | None = None, **changes: object) -> dict[str, object]:
    fields: dict[str, object] = {
        "setting": "star",
        "method": "fedavg",
        "seed": seed,
        "round": number,
        "bytes_up": 100,
        "bytes_down": 300,
        "seconds": 0.5,
        "samples": 1000,
        "dropped": [],
    }
    return fields | ({} if accuracy is None else {"test_accuracy": accuracy}) | changes


# Three seeds, three rounds, the second one evaluated for seed 0 only.
RECORDS = [
    record(0, 1, 0.5, seconds=2.0),
    record(1, 1, 0.6, seconds=2.0, dropped=["client 3", "client 7"]),
    record(2, 1, 0.4, seconds=2.0),
    record(0, 2, 0.9, bytes_up=400),
    record(1, 2, bytes_up=400),
    record(2, 2, bytes_up=400, dropped=["client 3"]),
    record(0, 3, 0.8, seconds=1.5),
    record(1, 3, 0.9, seconds=1.5),
    record(2, 3, 0.7, seconds=1.5),
]


def test_every_number_by_hand():
    (summary,) = summarise(RECORDS, [0.5, 0.9, 0.95], ACCURACY)
    assert summary.to_json() == {
        "setting": "star",
        "method": "fedavg",
        "metric": "accuracy",
        "seeds": 3,
        "rounds": 3,
        # 0.8, 0.9, 0.7: squared deviations 0, 0.01, 0.01 over 3 - 1.
        "final_accuracy": {"mean": pytest.approx(0.8), "std": pytest.approx(0.1)},
        # 0.9, 0.9, 0.7: mean 2.5 / 3, squared deviations (1 + 1 + 4) / 225 over 2.
        "best_accuracy": {"mean": pytest.approx(2.5 / 3), "std": pytest.approx(math.sqrt(3 / 225))},
        "rounds_to": {
            "0.5": {"mean": pytest.approx(5 / 3), "reached": 3, "seeds": 3},  # rounds 1, 1, 3
            "0.9": {"mean": 2.5, "reached": 2, "seeds": 3},  # rounds 2, 3, never
            "0.95": {"mean": None, "reached": 0, "seeds": 3},
        },
        # The best are 0.9, 0.9, 0.7: half of them is 0.45, 0.45, 0.35, and 0.8 of them 0.72, 0.72, 0.56.
        "rounds_to_best": {
            "0.5": {"mean": 1.0, "reached": 3, "seeds": 3},  # rounds 1, 1, 1
            "0.8": {"mean": pytest.approx(8 / 3), "reached": 3, "seeds": 3},  # rounds 2, 3, 3
            "0.9": {"mean": pytest.approx(8 / 3), "reached": 3, "seeds": 3},
            "0.95": {"mean": pytest.approx(8 / 3), "reached": 3, "seeds": 3},
        },
        "bytes_up": 600.0,  # 100 + 400 + 100 for each seed
        "bytes_down": 900.0,
        "samples_per_s": pytest.approx(9000 / 4.0),  # 2 + 0.5 + 1.5 seconds, whatever the number of seeds
        "dropped": 3,
        "diverged": 0,
        "clients": {},
    }
    assert json.loads(json.dumps(summary.to_json()))["rounds_to"]["0.9"]["mean"] == 2.5


def test_the_order_of_seeds_and_rounds_does_not_matter():
    assert summarise(RECORDS[::-1], [0.9], ACCURACY) == summarise(RECORDS, [0.9], ACCURACY)


def test_rows_are_settings_and_methods_as_first_seen():
    rows = [("ring", "hwa"), ("star", "fedavg"), ("ring", "fedavg"), ("star", "hwa")]
    records = [
        record(0, number, 0.5, setting=setting, method=method)
        for number in (2, 1)
        for setting, method in rows
    ]
    assert [(summary.setting, summary.method) for summary in summarise(records, [], ACCURACY)] == rows
    assert summarise([], [0.9], ACCURACY) == []


def test_bytes_are_a_mean_over_seeds():
    (summary,) = summarise([record(0, 1, bytes_up=1), record(1, 1, bytes_up=4)], [], ACCURACY)
    assert summary.bytes_up == 2.5


@pytest.mark.parametrize(
    ("accuracies", "final", "best"),
    [
        ([0.5], (0.5, 0.0), (0.5, 0.0)),
        ([0.5, 0.8, "absent"], (0.8, 0.0), (0.8, 0.0)),
        # A model that diverged must not be reported with an accuracy from before.
        ([0.5, 0.8, math.nan], (None, None), (0.8, 0.0)),
        ([0.5, 0.8, None], (None, None), (0.8, 0.0)),
        ([math.inf, 0.3], (0.3, 0.0), (0.3, 0.0)),
        (["absent"], (None, None), (None, None)),
    ],
)
def test_missing_and_non_finite_accuracies(accuracies, final, best):
    records = [
        record(0, number) | ({} if accuracy == "absent" else {"test_accuracy": accuracy})
        for number, accuracy in enumerate(accuracies, start=1)
    ]
    (summary,) = summarise(records, [], ACCURACY)
    assert (summary.final_mean, summary.final_std) == final
    assert (summary.best_mean, summary.best_std) == best


def test_a_seed_without_accuracy_leaves_no_mean():
    (summary,) = summarise([record(0, 1, 0.5), record(1, 1)], [0.5], ACCURACY)
    assert summary.final_mean is None
    assert summary.rounds_to["0.5"] == {"mean": 1.0, "reached": 1, "seeds": 2}


@pytest.mark.parametrize(
    ("accuracies", "rounds"),
    [
        ([0.4, 0.5, 0.64, 0.72, 0.76, 0.8], {"0.5": 1, "0.8": 3, "0.9": 4, "0.95": 5}),
        ([0.1, 0.8, 0.2], {"0.5": 2, "0.8": 2, "0.9": 2, "0.95": 2}),  # it need not stay there
        ([math.inf, None, 0.8], {"0.5": 3, "0.8": 3, "0.9": 3, "0.95": 3}),
        ([None, math.nan], dict.fromkeys(("0.5", "0.8", "0.9", "0.95"))),
    ],
)
def test_rounds_to_fractions_of_the_best(accuracies, rounds):
    records = [
        record(0, number) | {"test_accuracy": accuracy} for number, accuracy in enumerate(accuracies, start=1)
    ]
    (summary,) = summarise(records, [], ACCURACY)
    assert {fraction: found["mean"] for fraction, found in summary.rounds_to_best.items()} == rounds


def test_every_seed_has_a_best_of_its_own():
    # Half of the best is 0.4 in one seed, reached in round 3, and 0.1 in the other, reached in round 1.
    curves = [[0.1, 0.2, 0.8], [0.1, 0.2, 0.2]]
    records = [
        record(seed, number, accuracy)
        for seed, curve in enumerate(curves)
        for number, accuracy in enumerate(curve, start=1)
    ]
    (summary,) = summarise([*records, record(2, 1)], [], ACCURACY)
    assert summary.rounds_to_best["0.5"] == {"mean": 2.0, "reached": 2, "seeds": 3}


def test_no_time_no_speed():
    (summary,) = summarise([record(0, 1, seconds=0)], [], ACCURACY)
    assert summary.samples_per_s is None


def test_runs_and_curves():
    runs = runs_by_method(RECORDS[::-1])["star", "fedavg"]
    assert list(runs) == [0, 1, 2]
    assert list(score_curve(runs[0], "test_accuracy").items()) == [(1, 0.5), (2, 0.9), (3, 0.8)]
    assert score_curve(runs[1], "test_accuracy") == {1: 0.6, 3: 0.9}


@pytest.mark.parametrize(
    ("records", "message"),
    [
        ([record(0, 4), record(0, 4)], "round 4 of 'fedavg' in 'star', seed 0, is recorded twice"),
        ([{"setting": "star"}], r"no 'method' \(it has: setting\)"),
        ([record(0, 1, "0.9")], "'test_accuracy': '0.9'; it must be a number"),
        ([record(0, 1, samples=None)], "'samples': None; it must be a number"),
        ([record(0, 1, dropped="client 3")], "'dropped': 'client 3'; it must be a list"),
    ],
)
def test_wrong_input_is_refused(records, message):
    with pytest.raises(UserError, match=message):
        summarise(records, [], ACCURACY)


# Other metrics.


def scored(metric, curves):
    """Records of values [seeds][rounds] of a metric."""
    return [
        record(seed, number) | {f"test_{metric.name}": value}
        for seed, curve in enumerate(curves)
        for number, value in enumerate(curve, start=1)
    ]


def test_where_lower_is_better():
    records = scored(PERPLEXITY, [[20.0, 11.0, 10.0, 12.0], [18.0, 9.0, 8.0, 8.0]])
    (summary,) = summarise(records, [11.0, 8.5, 1.0], PERPLEXITY)
    assert (summary.final_mean, summary.best_mean) == (10.0, 9.0)
    assert summary.rounds_to == {
        "11.0": {"mean": 2.0, "reached": 2, "seeds": 2},
        "8.5": {"mean": 3.0, "reached": 1, "seeds": 2},
        "1.0": {"mean": None, "reached": 0, "seeds": 2},
    }
    # The best are 10 and 8: twice as much is 20 and 16, and 10 / 0.9 and 8 / 0.9 are 11.1 and 8.9.
    rounds = {share: found["mean"] for share, found in summary.rounds_to_best.items()}
    assert rounds == {"0.5": 1.5, "0.8": 2.0, "0.9": 2.5, "0.95": 3.0}
    assert (
        summary.to_json().items()
        >= {
            "metric": "perplexity",
            "final_perplexity": {"mean": 10.0, "std": math.sqrt(8)},
            "best_perplexity": {"mean": 9.0, "std": math.sqrt(2)},
        }.items()
    )


def test_a_fraction_of_the_lowest_that_is_met_exactly_counts():
    (summary,) = summarise(scored(PERPLEXITY, [[3.2, 2.88]]), [], PERPLEXITY)  # 2.88 / 0.9 < 3.2 as computed
    assert summary.rounds_to_best["0.9"]["mean"] == 1


def test_what_is_not_finite_is_not_low():
    records = scored(PERPLEXITY, [[-math.inf, math.nan, None, math.inf, 9.0]])
    (summary,) = summarise(records, [10.0], PERPLEXITY)
    assert (summary.best_mean, summary.rounds_to["10.0"]["mean"]) == (9.0, 5.0)
    (nothing,) = summarise(scored(PERPLEXITY, [[None, math.inf]]), [10.0], PERPLEXITY)
    assert (nothing.best_mean, nothing.rounds_to["10.0"]["mean"]) == (None, None)
    assert {found["mean"] for found in nothing.rounds_to_best.values()} == {None}


def test_a_metric_that_may_be_negative():
    (summary,) = summarise(scored(R2, [[-2.0, -0.5, -0.75]]), [-1.0, 0.5], R2)
    assert (summary.final_mean, summary.best_mean) == (-0.75, -0.5)
    assert {target: found["mean"] for target, found in summary.rounds_to.items()} == {"-1.0": 2, "0.5": None}
    # Half of it would be better than itself.
    assert {found["mean"] for found in summary.rounds_to_best.values()} == {None}


def test_clients_own_models_are_scored_by_the_same_metric():
    (summary,) = summarise([record(0, 1, test_r2=0.5, personal_r2=0.75)], [], R2)
    assert (summary.personal_mean, summary.personal_std) == (0.75, 0.0)
    assert summary.to_json()["personal_r2"] == {"mean": 0.75, "std": 0.0}
