"""What stands in a table: the right figure of the right variant, and nothing that was not measured."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from consilience.reproduce import Recipe
from consilience.reproduce.figures import figure_of
from consilience.reproduce.raw import Raw

Make = Callable[..., Raw]


def test_scores_are_those_of_the_last_round_with_their_spread(recipe: Recipe, raw: Make):
    cells = {"first": raw({"fedavg": [[0.9, 0.5], [0.1, 0.7]]})}
    figure = figure_of(recipe.tables[0], "FedAvg", "end", cells)
    assert figure is not None
    assert figure.values == {0: 50.0, 1: 70.0}
    assert figure.told() == "60.00 ± 14.14"
    assert figure_of(recipe.tables[0], "HWA", "end", cells) is None
    assert figure_of(recipe.tables[0], "FedAvg", "end", {}) is None


def test_a_table_may_be_of_another_score(recipe: Recipe, raw: Make):
    made = raw({"fedavg": [[0.1, 0.5], [0.3, 0.7]]})
    lines = [{**line, "trained_accuracy": line["test_accuracy"] + 0.1} for line in made.lines]
    table = replace(recipe.tables[1], columns={"60 %": {"target": 0.6, "score": "trained_accuracy"}})
    figure = figure_of(table, "FedAvg", "60 %", {"first": replace(made, lines=lines)})
    assert figure is not None
    assert figure.told() == "2, 2"
    assert figure_of(table, "FedAvg", "60 %", {"first": made}) is None  # nobody looked at it


def test_a_run_that_is_not_over_says_so(recipe: Recipe, raw: Make):
    cells = {"first": raw({"fedavg": [[0.5]]}, planned=9)}
    figure = figure_of(recipe.tables[0], "FedAvg", "end", cells)
    assert figure is not None
    assert figure.told() == "50.00 after 1 rounds"


def test_rounds_to_a_target_are_told_seed_by_seed(recipe: Recipe, raw: Make):
    cells = {"first": raw({"fedavg": [[0.1, 0.2, 0.6], [0.3, 0.1, 0.4]]})}
    told = {column: figure_of(recipe.tables[1], "FedAvg", column, cells) for column in ("20 %", "50 %")}
    assert told["20 %"] is not None
    assert told["50 %"] is not None
    assert (told["20 %"].told(), told["50 %"].told()) == ("2, 1", "3, > 3")
    assert told["50 %"].mean is None
    never = figure_of(recipe.tables[1], "FedAvg", "50 %", {"first": raw({"fedavg": [[0.1] * 7]})})
    assert never is not None
    assert never.told() == "not in 7"


def test_of_a_grid_the_best_variant_is_shown_in_all_columns(recipe: Recipe, raw: Make):
    swept = {"hwa lr=1": {"lr": 1}, "hwa lr=2": {"lr": 2}}
    slow_start, fast_start = [[0.1, 0.1, 0.5]], [[0.3, 0.3, 0.4]]
    cells = {"first": raw({"hwa lr=1": slow_start, "hwa lr=2": fast_start}, **swept)}
    for column, rounds in (("20 %", 3.0), ("50 %", 3.0)):
        figure = figure_of(recipe.tables[1], "HWA", column, cells)
        assert figure is not None
        assert (figure.variant, figure.variants, figure.values[0]) == ("lr=1", 2, rounds)


def test_a_seed_that_diverged_is_counted_and_not_averaged(recipe: Recipe, raw: Make):
    cells = {"first": raw({"fedavg": [[0.5], [None], [0.7]]})}
    figure = figure_of(recipe.tables[0], "FedAvg", "end", cells)
    assert figure is not None
    assert figure.told() == "60.00 ± 14.14 (1 diverged)"
    assert figure.mean is None


def test_bytes_and_scores_of_a_certain_round(recipe: Recipe, raw: Make):
    cells = {"first": raw({"fedavg": [[0.5, 0.6, 0.7]]})}
    table = replace(
        recipe.tables[0], columns={"MB": {"megabytes": True}, "second": {"round": 2}, "9": {"round": 9}}
    )
    sent, second = (figure_of(table, "FedAvg", column, cells) for column in ("MB", "second"))
    assert sent is not None
    assert second is not None
    assert (sent.values, second.values) == ({0: 4.5}, {0: 60.0})
    assert figure_of(table, "FedAvg", "9", cells) is None


def test_time_is_that_of_all_seeds_together(raw: Make):
    assert raw({"fedavg": [[0.1] * 4, [0.2] * 4], "hwa": [[0.1] * 2]}).seconds == 3.0
