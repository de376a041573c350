"""Optuna as what drives runs: it hears of every round, and ends what it has seen enough of."""

from __future__ import annotations

from collections.abc import Callable

import optuna

from consilience.config.config import Config
from consilience.experiment import RoundState, run


def test_a_pruned_trial_stops_its_run(configure: Callable[..., Config]):
    lengths = []

    def objective(trial: optuna.Trial) -> float:
        def report(state: RoundState) -> str | None:
            trial.report(state.metrics["test_accuracy"], state.metrics["round"])
            return "stop" if trial.should_prune() else None

        result = run(
            configure(rounds=5, solver={"lr": trial.suggest_float("lr", 0.01, 0.5)}), on_round=report
        )
        lengths.append(len(result.records))
        if result.records[-1].get("stopped"):
            raise optuna.TrialPruned
        assert result.score is not None
        return result.score

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    sampler = optuna.samplers.RandomSampler(seed=0)
    free = optuna.create_study(direction="maximize", sampler=sampler, pruner=optuna.pruners.NopPruner())
    free.optimize(objective, n_trials=2)
    # No accuracy is above 1.
    strict = optuna.create_study(
        direction="maximize", pruner=optuna.pruners.ThresholdPruner(lower=1.1, n_warmup_steps=2)
    )
    strict.optimize(objective, n_trials=2)
    assert lengths == [5, 5, 2, 2]
    complete, pruned = optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED
    assert [trial.state for trial in free.trials + strict.trials] == [complete] * 2 + [pruned] * 2
    assert [len(trial.intermediate_values) for trial in free.trials + strict.trials] == lengths
