"""A simulation's folder becomes what the page shows, while it is written and after."""

from __future__ import annotations

import json

import pytest

from consilience.config import read_config
from consilience.experiment import run
from consilience.experiment.folder import RunFolder
from consilience.monitor.gathering import state_of
from consilience.monitor.simulations import SimulationFolder, guessed

RING = [[0, 1], [1, 2], [2, 3], [0, 3]]


def test_means_and_spreads_are_over_seeds(tmp_path, folders):
    lines = [
        folders.line(seed=seed, round=number, test_accuracy=0.1 * number + 0.2 * seed)
        for number in (1, 2)
        for seed in (0, 1)
    ]
    (panel,) = state_of(folders.run(tmp_path / "run", lines))["panels"]
    (line,) = panel["lines"]
    assert panel["title"] == "run: star"
    assert (line["round"], line["rounds"], line["seeds"], line["state"]) == (2, 3, 2, "running")
    assert line["score"] == pytest.approx(0.3)
    assert line["spread"] == pytest.approx(0.1 * 2**0.5)
    assert [point[0] for point in line["curve"]] == [1, 2]
    assert line["curve"][1][1:] == pytest.approx([0.3, 0.2, 0.4])
    assert (line["bytes_up"], line["bytes_down"], line["seconds"]) == (200, 100, 2.0)


def test_methods_that_have_not_begun_wait(tmp_path, folders):
    lines = [folders.line(round=number) for number in (1, 2, 3)]
    (panel,) = state_of(folders.run(tmp_path / "run", lines, methods=("fedavg", "hwa")))["panels"]
    assert [(line["label"], line["state"]) for line in panel["lines"]] == [
        ("fedavg", "done"),
        ("hwa", "waiting"),
    ]


def test_a_value_that_is_not_finite_is_hidden_by_no_mean(tmp_path, folders):
    lines = [
        folders.line(seed=0, round=1),
        folders.line(seed=1, round=1),
        folders.line(seed=0, round=2),
        folders.line(seed=1, round=2, test_accuracy=None, train_loss=None, diverged=True),
    ]
    (line,) = state_of(folders.run(tmp_path / "run", lines))["panels"][0]["lines"]
    assert (line["state"], line["score"], line["loss"]) == ("diverged", None, None)
    assert line["curve"] == [[1, 0.5, 0.5, 0.5], [2, None, None, None]]
    assert line["best"] == 0.5


def test_nodes_have_places_names_and_their_last_scores(tmp_path, folders):
    lines = [
        folders.line(nodes={"accuracy": [0.1, 0.2, None, 0.4]}),
        folders.line(round=2, test_accuracy=0.6),
    ]
    del lines[1]["test_accuracy"]  # no evaluation in this round
    names = ("Basel", "Bern", "Genève", "Zürich")
    (panel,) = state_of(folders.run(tmp_path / "run", lines, edges=RING, names=names))["panels"]
    assert panel["lines"][0]["nodes"] == [0.1, 0.2, None, 0.4]
    assert [place["name"] for place in panel["places"]] == list(names)
    assert [place["samples"] for place in panel["places"]] == [10, 20, 30, 40]
    assert (panel["edges"], panel["hub"]) == (RING, False)
    spots = {(place["x"], place["y"]) for place in panel["places"]}
    assert len(spots) == 4
    assert all(-0.01 <= value <= 1.01 for spot in spots for value in spot)


def test_what_was_dropped_says_who_why_and_where(tmp_path, folders):
    lines = [folders.line(round=number, dropped=["client 2 (upload rejected)"]) for number in (1, 2)]
    (panel,) = state_of(folders.run(tmp_path / "run", lines))["panels"]
    assert panel["refused"] == 2
    first = panel["refusals"][0]
    assert (first["round"], first["sender"], first["reason"]) == (2, "client 2", "upload rejected")
    assert first["at"] == "fedavg, seed 0"
    assert [place["refused"] for place in panel["places"]] == [0, 0, 2, 0]


def test_clients_have_their_scores_at_the_end(tmp_path, folders):
    path = folders.run(tmp_path / "run", [folders.line()])
    who = {"setting": "star", "method": "fedavg", "seed": 0}
    ends = [
        {**who, "client": client, "own_accuracy": None, "train_accuracy": 0.1 * client} for client in range(4)
    ]
    folders.lines(path / "clients.jsonl", ends)
    (panel,) = state_of(path)["panels"]
    assert panel["lines"][0]["nodes"] == pytest.approx([0.0, 0.1, 0.2, 0.3])
    assert panel["hub"]


def test_a_line_that_is_being_written_is_not_there_yet_and_then_it_is(tmp_path, folders):
    path = folders.run(tmp_path / "run", [])
    second = json.dumps(folders.line(round=2, test_accuracy=0.7))
    folders.lines(path / "metrics.jsonl", [folders.line()], torn=second[:20])
    folder = SimulationFolder(path)
    assert folder.panels()[0].lines[0].round == 1
    with (path / "metrics.jsonl").open("a") as file:
        file.write(second[20:] + "\n")
    (line,) = folder.panels()[0].lines
    assert (line.round, line.score, line.bytes_up, folder.damaged) == (2, 0.7, 200, 0)


def test_a_run_that_went_back_to_its_checkpoint_is_read_anew(tmp_path, folders):
    path = folders.run(tmp_path / "run", [folders.line(round=number) for number in (1, 2, 3)])
    folder = SimulationFolder(path)
    assert folder.panels()[0].lines[0].bytes_up == 300
    folders.lines(tmp_path / "other", [folders.line(round=1)])
    (tmp_path / "other").replace(path / "metrics.jsonl")
    (line,) = folder.panels()[0].lines
    assert (line.round, line.bytes_up) == (1, 100)


def test_curves_of_long_runs_are_thinned_and_end_where_the_run_is(tmp_path, folders):
    lines = [folders.line(round=number + 1) for number in range(1000)]
    (line,) = state_of(folders.run(tmp_path / "run", lines, rounds=1000))["panels"][0]["lines"]
    assert (line["curve"][0][0], line["curve"][-1][0]) == (1, 1000)
    assert 200 <= len(line["curve"]) <= 401


def test_a_folder_in_which_nothing_is_yet_is_no_error(tmp_path):
    assert state_of(tmp_path)["panels"] == []
    (tmp_path / "config.yaml").write_text("name: run\n")
    assert state_of(tmp_path)["panels"] == []


def test_files_that_make_no_sense_are_a_problem_in_words(tmp_path, folders):
    path = folders.run(tmp_path / "run", [])
    (path / "metrics.jsonl").write_text('nonsense\n[1]\n{"setting": 3, "round": "x", "dropped": 5}\n')
    (path / "plan.json").write_text('{"settings": {"star": {"methods": 3}}, "metric": 5}')
    (path / "partitions.json").write_text('{"star": {"seeds": []}}')
    state = state_of(path)
    assert state["problems"] == [f"{path}: 2 lines cannot be read"]
    assert [panel["title"] for panel in state["panels"]] == ["run: star", "run: 3"]


def test_runs_from_before_there_were_plans_are_shown_as_far_as_they_tell(tmp_path, folders):
    path = folders.run(tmp_path / "run", [folders.line()])
    (path / "plan.json").unlink()
    (panel,) = state_of(path)["panels"]
    assert panel["metric"] == {"name": "accuracy", "percent": True, "higher_is_better": True}
    assert panel["lines"][0]["score"] == 0.5
    assert len(panel["places"]) == 4


def test_a_score_is_guessed_where_nothing_says_which_it_is():
    assert guessed({"test_loss": 1.0, "test_r2": 0.5}).name == "r2"
    assert guessed({"own_top5": 0.5}).name == "top5"
    assert guessed({"train_loss": 1.0, "bytes_up": 3}) is None


def test_a_real_run_writes_what_the_page_needs(tmp_path, unpainted):
    settings = {"model": {"name": "mlp", "hidden": [4]}, "local": {"steps": 1}, "rounds": 2, "seeds": [0, 1]}
    compare = [
        {"label": "server", "method": ["fedavg", "hwa"], "clients": 3},
        {"label": "graph", "method": "dechetero", "clients": 4, "topology": "ring", "rounds": 1},
    ]
    result = run(read_config({"compare": compare, **settings}), folder=RunFolder(tmp_path / "run"))
    server, graph = state_of(tmp_path / "run")["panels"]
    assert [line["label"] for line in server["lines"]] == ["fedavg", "hwa"]
    assert all(line["state"] == "done" for line in (*server["lines"], *graph["lines"]))
    for line, summary in zip([*server["lines"], *graph["lines"]], result.summaries, strict=True):
        assert line["score"] == pytest.approx(summary.final_mean)
        assert line["bytes_up"] == summary.bytes_up
    assert sorted(map(tuple, graph["edges"])) == [(0, 1), (0, 3), (1, 2), (2, 3)]
    assert len(graph["lines"][0]["nodes"]) == 4
    assert (len(server["places"]), server["hub"], graph["hub"]) == (3, True, False)
