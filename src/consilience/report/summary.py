"""Metrics records, one for each (setting, method, seed, round), summed up in one line for each method."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence, Sized
from dataclasses import dataclass, field, replace
from typing import TypedDict

from consilience.errors import UserError
from consilience.problems import Metric
from consilience.report.clients import ClientSpread, client_spread
from consilience.sweeping import without_numbers

Record = Mapping[str, object]

FRACTIONS = (0.5, 0.8, 0.9, 0.95)
"""Shares of a seed's best value, for `MethodSummary.rounds_to_best`."""

ROUNDED = 1 - 1e-12
"""Lets a value that is such a fraction exactly count: 0.72 is below 0.9 * 0.8 as computed."""


EVALUATED = "test_loss"
"""The score that every evaluation has: where it is null, the model has diverged."""

Goals = Mapping[Metric, Sequence[float]]
"""Scores beside the metric, each with its targets."""


class Final(TypedDict):
    """A score at the end: mean and standard deviation over seeds, `None` if a seed has none."""

    mean: float | None
    std: float | None


class RoundsTo(TypedDict):
    """How soon a target was reached: the mean is over the seeds that did, `None` if none did."""

    mean: float | None
    reached: int
    seeds: int


@dataclass(frozen=True)
class MethodSummary:
    """One method in one setting, over its seeds.

    The final value of a seed is the metric at its last evaluation, the best one that of its best round; mean
    and sample standard deviation (0 for one seed) are `None` if some seed has no finite value to give, those
    of final values also if one has diverged.
    Bytes are those of one seed's whole run; `dropped` counts uploads over all rounds and seeds.
    `rounds_to` is about values that are the same for all methods, `rounds_to_best` about fractions
    (0.5, 0.8, 0.9 and 0.95) of the best value that the method reached in each seed: how soon it was nearly
    as good as it would become, whatever that is. A metric below zero has no such fractions: they are never
    reached.
    """

    setting: str
    method: str
    metric: Metric
    seeds: int
    rounds: int
    final_mean: float | None
    final_std: float | None
    best_mean: float | None
    best_std: float | None
    rounds_to: dict[str, RoundsTo]
    bytes_up: float
    bytes_down: float
    samples_per_s: float | None
    dropped: int
    rounds_to_best: dict[str, RoundsTo] = field(default_factory=dict)
    personal_mean: float | None = None
    """The final score of clients' own models on their own data, for methods that have such models."""
    personal_std: float | None = None
    diverged: int = 0
    """How many seeds ended with a model whose loss is not finite, or with no sound upload."""
    scores: dict[str, Final] = field(default_factory=dict)
    """The final scores beside the metric, by name: those of the problem, and those that were asked for."""
    clients: dict[str, ClientSpread] = field(default_factory=dict)
    """How the metric and these scores spread over clients, by name; without those that no client has."""
    swept: dict[str, object] = field(default_factory=dict)
    """The numbers that were swept; `any` where the method does not use one, so that it holds for all."""

    @property
    def base(self) -> tuple[str, str]:
        """The setting and the method without these numbers: what variants have in common."""
        return without_numbers(self.setting, self.swept), without_numbers(self.method, self.swept)

    def to_json(self) -> dict[str, object]:
        """The summary as plain values, ready for a JSON file."""
        name = self.metric.name
        personal = {"mean": self.personal_mean, "std": self.personal_std}
        return {
            "setting": self.setting,
            "method": self.method,
            "metric": name,
            "seeds": self.seeds,
            "rounds": self.rounds,
            **({"swept": self.swept} if self.swept else {}),
            f"final_{name}": {"mean": self.final_mean, "std": self.final_std},
            f"best_{name}": {"mean": self.best_mean, "std": self.best_std},
            "rounds_to": {target: dict(reached) for target, reached in self.rounds_to.items()},
            "rounds_to_best": {fraction: dict(reached) for fraction, reached in self.rounds_to_best.items()},
            "bytes_up": self.bytes_up,
            "bytes_down": self.bytes_down,
            "samples_per_s": self.samples_per_s,
            "dropped": self.dropped,
            "diverged": self.diverged,
            **{f"final_{score}": dict(final) for score, final in self.scores.items()},
            "clients": {score: spread.to_json() for score, spread in self.clients.items()},
            **({f"personal_{name}": personal} if self.personal_mean is not None else {}),
        }


def summarise(
    records: Sequence[Record],
    targets: Sequence[float],
    metric: Metric,
    *,
    others: Sequence[Metric] = (),
    goals: Goals | None = None,
    clients: Sequence[Record] = (),
) -> list[MethodSummary]:
    """Sum up each method of each setting, in the order in which they first appear.

    Args:
        records: as in a metrics file, in any order of seeds and rounds.
        targets: values of the metric for which to find the first round that reaches them.
        metric: the score by which methods are compared.
        others: further scores.
        goals: such with targets.
        clients: as in a clients file: every client at the end.
    """
    goals = goals or {}
    beside = dict.fromkeys((*others, *goals))
    found = []
    for row, by_seed in runs_by_method(records).items():
        runs = list(by_seed.values())
        own = [line for line in clients if (line["setting"], line["method"]) == row]
        summary = _summary(row, runs, targets, metric)
        spreads = {} if summary.diverged else {one.name: client_spread(own, one) for one in (metric, *beside)}
        found.append(
            replace(
                summary,
                scores={one.name: _final(runs, f"test_{one.name}") for one in beside},
                rounds_to={**summary.rounds_to, **_rounds_to_goals(runs, goals)},
                clients={name: spread for name, spread in spreads.items() if spread},
            )
        )
    return found


def finals_by_seed(by_seed: Mapping[int, Mapping[int, Record]], score: str) -> dict[int, float]:
    """A score at the end of every seed; NaN where there is none, or the seed has diverged."""
    found = {}
    for seed, run in by_seed.items():
        curve = list(score_curve(run, score).values())
        found[seed] = curve[-1] if curve and not _has_diverged(run) else math.nan
    return found


def _final(runs: Sequence[Mapping[int, Record]], score: str) -> Final:
    """A score at the end; that of a model which was left when uploads were no longer finite is none."""
    curves = [list(score_curve(run, score).values()) for run in runs]
    sound = curves if not any(map(_has_diverged, runs)) else [[]]
    mean, std = mean_and_spread([curve[-1] if curve else math.nan for curve in sound])
    return {"mean": mean, "std": std}


def _rounds_to_goals(runs: Sequence[Mapping[int, Record]], goals: Goals) -> dict[str, RoundsTo]:
    return {
        target_key(target, one): _rounds_to(
            [score_curve(run, f"test_{one.name}") for run in runs], [target] * len(runs), one
        )
        for one, targets in goals.items()
        for target in targets
    }


def _has_diverged(run: Mapping[int, Record]) -> bool:
    """Whether a seed's last evaluation found a loss that is not finite, or its last round no sound upload."""
    losses = list(score_curve(run, EVALUATED).values())
    last = run[max(run)]
    return bool(losses and not math.isfinite(losses[-1])) or last.get("diverged") is True


def soonest(reached: Sequence[RoundsTo]) -> list[bool]:
    """Which of several reached a target best: in the largest share of seeds, then in the fewest rounds."""
    ranks = [(-one["reached"] / one["seeds"], one["mean"]) for one in reached if one["mean"] is not None]
    best = min(ranks, default=None)
    return [
        one["mean"] is not None and (-one["reached"] / one["seeds"], one["mean"]) == best for one in reached
    ]


def target_key(target: float, other: Metric | None = None) -> str:
    """The name of a target in `MethodSummary.rounds_to`, or of a fraction in `rounds_to_best`.

    Args:
        target: The value.
        other: The score that it is about, where that is not the metric.
    """
    return str(float(target)) if other is None else f"{other.name} {float(target)}"


def runs_by_method(records: Sequence[Record]) -> dict[tuple[str, str], dict[int, dict[int, Record]]]:
    """Records by (setting, method), seed and round: methods as first seen, seeds and rounds ascending."""
    methods: dict[tuple[str, str], dict[int, dict[int, Record]]] = {}
    for record in records:
        setting, method = str(_field(record, "setting")), str(_field(record, "method"))
        seed, round_number = int(_number(record, "seed")), int(_number(record, "round"))
        run = methods.setdefault((setting, method), {}).setdefault(seed, {})
        if round_number in run:
            raise UserError(
                f"round {round_number} of {method!r} in {setting!r}, seed {seed}, is recorded twice; keep one"
            )
        run[round_number] = record
    return {
        row: {seed: dict(sorted(run.items())) for seed, run in sorted(runs.items())}
        for row, runs in methods.items()
    }


def score_curve(run: Mapping[int, Record], score: str) -> dict[int, float]:
    """A score by round, of the rounds of one seed that were evaluated; may hold non-finite values."""
    # JSON has no NaN: null is an evaluation that failed, an absent key is a round without evaluation.
    return {
        round_number: math.nan if record[score] is None else _number(record, score)
        for round_number, record in run.items()
        if score in record
    }


def _summary(
    row: tuple[str, str], runs: Sequence[Mapping[int, Record]], targets: Sequence[float], metric: Metric
) -> MethodSummary:
    """The summary of one method from its runs, one for each seed."""
    curves = [score_curve(run, f"test_{metric.name}") for run in runs]
    records = [record for run in runs for record in run.values()]
    final, personal = (_final(runs, f"{kind}_{metric.name}") for kind in ("test", "personal"))
    bests = [metric.best(curve.values()) for curve in curves]
    best_mean, best_std = mean_and_spread(bests)
    # The seeds of a round train together: each of their records holds the same wall-clock time.
    seconds = {number: _number(record, "seconds") for run in runs for number, record in run.items()}
    total_seconds = sum(seconds.values())
    setting, method = row
    return MethodSummary(
        setting=setting,
        method=method,
        metric=metric,
        seeds=len(runs),
        rounds=max(max(run) for run in runs),
        final_mean=final["mean"],
        final_std=final["std"],
        best_mean=best_mean,
        best_std=best_std,
        rounds_to={
            target_key(target): _rounds_to(curves, [target] * len(curves), metric) for target in targets
        },
        bytes_up=_total(records, "bytes_up") / len(runs),
        bytes_down=_total(records, "bytes_down") / len(runs),
        samples_per_s=_total(records, "samples") / total_seconds if total_seconds > 0 else None,
        dropped=sum(_dropped(record) for record in records),
        rounds_to_best={
            target_key(share): _rounds_to(
                curves, [metric.fraction(best, share * ROUNDED) for best in bests], metric
            )
            for share in FRACTIONS
        },
        diverged=sum(map(_has_diverged, runs)),
        personal_mean=personal["mean"],
        personal_std=personal["std"],
        swept=_swept(records[0]),
    )


def _swept(record: Record) -> dict[str, object]:
    numbers = record.get("swept", {})
    if not isinstance(numbers, Mapping):
        raise UserError(f"a metrics record has 'swept': {numbers!r}; it must be numbers by name")
    return dict(numbers)


def mean_and_spread(values: Sequence[float]) -> tuple[float, float] | tuple[None, None]:
    """Mean and sample standard deviation; nothing if a value is not finite, since a mean would hide it."""
    if not all(map(math.isfinite, values)):
        return None, None
    return statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0


def _rounds_to(curves: Sequence[Mapping[int, float]], targets: Sequence[float], metric: Metric) -> RoundsTo:
    """When each seed first reached its target; one that is NaN is never reached."""
    firsts = [
        next(
            (n for n, value in curve.items() if math.isfinite(value) and metric.reached(value, target)), None
        )
        for curve, target in zip(curves, targets, strict=True)
    ]
    reached = [first for first in firsts if first is not None]
    return {
        "mean": statistics.fmean(reached) if reached else None,
        "reached": len(reached),
        "seeds": len(curves),
    }


def _total(records: Sequence[Record], key: str) -> float:
    return sum(_number(record, key) for record in records)


def _dropped(record: Record) -> int:
    names = record.get("dropped", ())
    if isinstance(names, str) or not isinstance(names, Sized):
        raise UserError(f"a metrics record has 'dropped': {names!r}; it must be a list of names")
    return len(names)


def _number(record: Record, key: str) -> float:
    value = _field(record, key)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise UserError(f"a metrics record has {key!r}: {value!r}; it must be a number")
    return value


def _field(record: Record, key: str) -> object:
    if key not in record:
        raise UserError(f"a metrics record has no {key!r} (it has: {', '.join(record)})")
    return record[key]
