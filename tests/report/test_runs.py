"""Which methods share a group: those that had the same problem to solve, and no others."""

from __future__ import annotations

import json

import pytest

from consilience.errors import UserError
from consilience.experiment.folder import CLIENTS, CONFIG, METRICS, PARTITIONS, PLAN
from consilience.experiment.reading import list_run, read_run, read_runs
from consilience.experiment.sealing import sealed
from consilience.problems import NextToken
from consilience.report.runs import grouped


def labels(groups):
    return {group.title: [one.label for one in group.entries] for group in groups}


def test_methods_of_two_runs_about_one_problem_are_a_group(tmp_path, written):
    written(tmp_path / "a", ["fedavg"], name="a")
    written(tmp_path / "b", ["hwa"], name="b", note="another", device="cuda")
    groups = grouped(read_runs([tmp_path]))
    assert labels(groups) == {"star": ["fedavg", "hwa"]}
    assert groups[0].differences() == {}


def test_what_differs_in_training_is_named(tmp_path, written):
    written(tmp_path / "a", ["fedavg"])
    written(tmp_path / "b", ["fedavg"], solver={"name": "sgd", "lr": 0.5})
    (group,) = grouped(read_runs([tmp_path / "a", tmp_path / "b"]))
    assert [one.label for one in group.entries] == ["fedavg (a)", "fedavg (b)"]
    assert group.differences() == {"solver.lr": {"a": 0.1, "b": 0.5}}


@pytest.mark.parametrize(
    "change", [{"model": {"name": "lenet"}}, {"clients": 5}, {"partition": {"name": "iid"}}]
)
def test_other_problems_are_other_groups(tmp_path, written, change):
    written(tmp_path / "a", ["fedavg"])
    written(tmp_path / "b", ["fedavg"], **change)
    assert labels(grouped(read_runs([tmp_path]))) == {"star (a)": ["fedavg"], "star (b)": ["fedavg"]}


def test_other_data_of_the_same_name_are_another_group(tmp_path, written):
    written(tmp_path / "a", ["fedavg"])
    other = written(tmp_path / "b", ["fedavg"], ended=False) / "partitions.json"
    other.write_text(other.read_text().replace('"data": "d"', '"data": "e"'))
    assert len(grouped(read_runs([tmp_path]))) == 2


def test_runs_that_differ_in_seeds_alone_are_put_together(tmp_path, written):
    written(tmp_path / "a", ["fedavg"], seeds=(0, 1))
    written(tmp_path / "b", ["fedavg"], seeds=(2,), ended=False)
    (group,) = grouped(read_runs([tmp_path]))
    (entry,) = group.entries
    assert (entry.label, entry.runs, list(entry.by_seed), entry.finished) == (
        "fedavg",
        ("a", "b"),
        [0, 1, 2],
        False,
    )
    assert entry.summary.seeds == 3
    written(tmp_path / "c", ["fedavg"], seeds=(2, 3))
    (group,) = grouped(read_runs([tmp_path]))
    assert [one.runs for one in group.entries] == [("a",), ("b",), ("c",)]


def test_targets_are_those_of_the_runs_or_those_asked_for(tmp_path, written):
    written(tmp_path / "a")
    written(tmp_path / "b", ["swa"], targets=[0.7, 0.5])
    assert grouped(read_runs([tmp_path]))[0].targets == (0.5, 0.7, 0.9)
    assert grouped(read_runs([tmp_path]), [0.25])[0].targets == (0.25,)
    written(tmp_path / "c", metric=NextToken.metric, targets=[10, 40], setting="text")
    assert grouped(read_runs([tmp_path / "c"]))[0].targets == (40, 10)  # the easier one first


def test_a_run_that_goes_on_says_how_far_it_is(tmp_path, written):
    path = written(tmp_path / "a", ended=False)
    lines = (path / "metrics.jsonl").read_text().splitlines(keepends=True)
    (path / "metrics.jsonl").write_text("".join(lines[:9]) + '{"torn')
    run = read_run(path)
    assert (run.finished, run.state, run.digest) == (False, "unfinished (25 %)", "")


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("metrics.jsonl", "{]\n", "Expecting"),
        ("metrics.jsonl", '{"setting": "star"}\n', "line 1: method: Field required"),
        ("clients.jsonl", '{"setting": "star"}\n', "line 1: method: Field required"),
        ("plan.json", '{"settings": {"star": {"methods": 3}}}', "settings.star.methods: Input should be"),
        ("plan.json", '{"metric": {"name": "a", "scale": 3}}', "metric.scale: Extra inputs"),
        ("partitions.json", '{"star": 1}', "star: Input should be"),
        ("partitions.json", '{"star": {"seeds": {"0": {"sizes": "many"}}}}', "star.seeds.0.sizes: Input"),
        ("config.yaml", "a: [", "expected"),
        ("config.yaml", "3", "holds no configuration"),
    ],
)
def test_a_damaged_file_is_named_in_one_line(tmp_path, written, name, text, says):
    path = written(tmp_path / "a", ended=False)
    (path / name).write_text(text)
    with pytest.raises(UserError, match=f"{name} is (damaged: |not valid YAML: )") as refused:
        read_run(path)
    assert says in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("name", "key", "value"),
    [
        ("metrics.jsonl", "round", "1e999"),
        ("metrics.jsonl", "round", "-1"),
        ("metrics.jsonl", "seed", "[1]"),
        ("metrics.jsonl", "seconds", "9" * 400),
        ("metrics.jsonl", "bytes_up", "NaN"),
        ("metrics.jsonl", "test_accuracy", '"high"'),
        ("metrics.jsonl", "test_loss", "-1e999"),
        ("metrics.jsonl", "method", '"\\ud800"'),
        ("metrics.jsonl", "setting", '"\\u001b[2J"'),
        ("metrics.jsonl", "swept", "7"),
        ("metrics.jsonl", "nodes", '{"accuracy": [true]}'),
        ("metrics.jsonl", "dropped", '"all"'),
        ("clients.jsonl", "client", "1e999"),
        ("clients.jsonl", "own_accuracy", "{}"),
        ("clients.jsonl", "curvature", '[[1], "a"]'),
        ("plan.json", "settings", '{"star": {"methods": {}, "held": 3}}'),
        ("plan.json", "metric", '{"name": "accuracy", "percent": "yes"}'),
    ],
)
def test_values_that_no_run_writes_are_named_in_one_line(tmp_path, written, name, key, value):
    path = written(tmp_path / "a", ended=False)
    first, rest = (path / name).read_text().partition("\n")[::2]
    (path / name).write_text(
        json.dumps(json.loads(first) | {key: "HERE"}).replace('"HERE"', value) + "\n" + rest
    )
    with pytest.raises(UserError, match=f"{name} is damaged: ") as refused:
        read_run(path)
    assert "\n" not in str(refused.value)
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("change", [{"targets": "all"}, {"compare": [3]}, {"note": {}}])
def test_a_configuration_has_its_form(tmp_path, written, change):
    path = written(tmp_path / "a", ended=False, **change)
    with pytest.raises(UserError, match=r"config.yaml is damaged: "):
        read_run(path)


def test_an_edited_configuration_is_refused_before_the_run_has_ended(tmp_path, written):
    path = written(tmp_path / "a", ended=False)
    (path / CONFIG).write_text((path / CONFIG).read_text().replace("0.1", "0.2"))
    with pytest.raises(UserError, match=r"config.yaml is damaged or was edited"):
        read_run(path)


@pytest.mark.parametrize("text", ['{"name": ', "[]", '{"name": "a"}'])
def test_a_damaged_summary_is_named_in_one_line(tmp_path, written, text):
    path = written(tmp_path / "a")
    (path / "summary.json").write_text(text)
    with pytest.raises(UserError, match=r"summary.json is damaged: "):
        read_run(path)


@pytest.mark.parametrize("name", [METRICS, CLIENTS, PLAN, PARTITIONS, CONFIG])
def test_files_of_what_has_ended_are_as_it_left_them(tmp_path, written, name):
    path = written(tmp_path / "a")
    (path / name).write_text((path / name).read_text().replace("s", "z", 1))
    with pytest.raises(UserError, match=f"{name} is not as the run left it"):
        read_run(path)


def test_only_the_configuration_is_needed(tmp_path, written):
    path = written(tmp_path / "a")
    for name in ("plan.json", "partitions.json", "clients.jsonl", "summary.json"):
        (path / name).unlink()
    run = read_run(path)
    assert (run.metric.name, run.targets, run.finished) == ("accuracy", (0.5, 0.9), False)
    (path / "metrics.jsonl").unlink()
    assert not read_run(path).records


def test_a_list_reads_the_summary_of_what_has_ended(tmp_path, written):
    path = written(tmp_path / "a")
    (path / "metrics.jsonl").write_text("nobody reads this\n")
    told = list_run(path, "a")
    assert (told.methods, told.rounds, told.seeds, told.state) == (("fedavg", "hwa"), 6, 3, "finished")
    assert told.score == "accuracy 85.50 % (hwa)"
    summary = json.loads((path / "summary.json").read_text())
    del summary["sha256"]
    (path / "summary.json").write_text(json.dumps(sealed(summary | {"methods": None})))
    assert "summary.json is damaged" in list_run(path, "a").state
    (path / "summary.json").unlink()
    assert "metrics.jsonl is damaged" in list_run(path, "a").state
