"""The guides do what they say: their Python runs, and so does every configuration on them."""

import ast
import os
import re
import sys
from pathlib import Path

import pytest
import yaml

import consilience as cs
from consilience.config import read_config
from consilience.data import load
from consilience.sweep import read_study

DOCS = Path(__file__).parents[2] / "docs"


digits = load("mnist-sample")
FEW = cs.Dataset.from_arrays(
    "few",
    *(rows[:600] for rows in (digits.inputs, digits.targets)),
    *(digits.test_inputs, digits.test_targets),
)
SMALL = {"data": FEW, "model": {"name": "mlp", "hidden": [8]}, "method": "fedavg", "rounds": 1}


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)


def lines(page: str, capsys) -> list[list[str]]:
    """What the Python of a page prints, in words."""
    names: dict[str, object] = {"__name__": "page"}
    for block in blocks(page, "python"):
        exec(compile(block, page, "exec"), names)
    return [line.split() for line in capsys.readouterr().out.splitlines()]


@pytest.mark.parametrize("block", blocks("choosing.md", "yaml"))
def test_a_configuration_that_is_advised_runs(block):
    given = yaml.safe_load(block)
    assert given.keys() <= read_config({}).model_dump().keys()
    given["local"] = {"epochs": 1, **given.get("local", {}), "batch_size": 64}
    result = cs.run(**{**SMALL, **given, "seeds": [0], "evaluate": {"clients": False}})
    assert len(result.summaries) >= len(given["method"])
    assert all(record["test_loss"] is not None for record in result.records)


def test_every_symptom_has_its_section():
    text = (DOCS / "choosing.md").read_text()
    advised = re.findall(r"^\| \[.*?\]\(#(.*?)\)", text, flags=re.MULTILINE)
    titles = re.findall(r"^## (.*)$", text, flags=re.MULTILINE)
    assert len(advised) > 10
    assert advised == [re.sub("[^a-z -]", "", title.lower()).replace(" ", "-") for title in titles[:-1]]


def test_the_page_about_heterogeneity(capsys):
    *splits, alone, together = lines("heterogeneity.md", capsys)
    text = (DOCS / "heterogeneity.md").read_text()
    for name, *numbers in splits:  # the table on the page
        assert re.search(rf"^\| `{name}`[^|]*\| {' [|] '.join(numbers)} \|$", text, re.MULTILINE)
    assert [line[0] for line in splits] == [
        "iid",
        "dirichlet_class",
        "dirichlet_client",
        "shards_two_classes",
    ]
    assert (alone[0], together[0]) == ("local", "fedavg")
    assert float(alone[2]) > 0.8
    assert float(together[2]) < 0.5


def test_the_page_for_those_who_come_from_elsewhere(capsys):
    flower, rule, pfl, *personal = lines("coming-from.md", capsys)
    assert float(flower[0]) > 0.3
    assert flower[1] == "10"
    assert float(rule[0].strip(",")) > 0.2
    assert float(pfl[0]) > 0.6
    assert pfl[1:] == ["3", "user", "0"]
    assert [line[2] for line in personal] == ["local", "fedavg", "pfedme"]


def test_the_page_about_text(capsys):
    windows, recurrent, reader, tags = lines("how-to-text.md", capsys)
    assert max(float(windows[0]), float(recurrent[0])) < 20  # of 24 words
    assert windows[1:] == ["('sea',", "'hill',", "'town')"]
    assert float(reader[0]) > 0.6
    assert tags[0] == "next_token"


def test_the_page_about_augmentation(capsys):
    moved, varied, forgetful = lines("how-to-augment.md", capsys)
    assert float(moved[0].strip(",")) > 0.4
    assert float(varied[0].strip(",")) > 0.3
    assert float(forgetful[0].strip(",")) < 8


def test_the_page_about_metrics(capsys):
    whole, *clients, found = lines("how-to-metric.md", capsys)
    assert 0 < float(whole[0]) < 1
    assert [line[0] for line in clients] == ["0", "1", "2"]
    assert 0 <= float(found[0]) <= 1


def test_the_page_about_sweeps(tmp_path, monkeypatch, capsys, unpainted):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    for block in blocks("sweeping.md", "python")[:2]:  # the third needs Ray
        exec(compile(block, "sweeping.md", "exec"), names)
    *cells, tuned = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert [line[:2] for line in cells] == [
        [width, lr] for width in ("[8]", "[16]") for lr in ("0.05", "0.1")
    ]
    assert float(tuned[0]) > 0.3
    assert tuned[1] == "6"
    assert (tmp_path / "runs" / "small" / "sweep.csv").exists()
    assert (tmp_path / "runs" / "trial-5" / "summary.json").exists()


def test_the_file_on_the_page_about_sweeps(tmp_path):
    path = tmp_path / "widths.yaml"
    path.write_text(blocks("sweeping.md", "yaml")[0])
    names = [cell.name for cell in read_study(path).cells]
    assert len(names) == 8  # the page says that rates make no more cells
    assert names[-1] == "peers"


@pytest.mark.skipif("CONSILIENCE_LONG" not in os.environ, reason="takes half a minute: CONSILIENCE_LONG=1")
def test_ray_tune_drives_runs(tmp_path, monkeypatch, capsys):
    pytest.importorskip("ray.tune")
    import ray

    monkeypatch.setenv("PYTHONPATH", ":".join(sys.path))
    ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        names: dict[str, object] = {"__name__": "page", "cs": cs, "Path": Path}
        monkeypatch.chdir(tmp_path)
        exec(compile(blocks("sweeping.md", "python")[2], "sweeping.md", "exec"), names)
    finally:
        ray.shutdown()
    accuracy, rounds, width = capsys.readouterr().out.splitlines()[-1].split()
    assert float(accuracy) > 0.3
    assert (rounds, width in ("8", "16")) == ("4", True)


MODULES = {
    "how-to-augment.md": "my_variations",
    "how-to-metric.md": "clinic.scores",
    "how-to-text.md": "my_texts",
}
LOAD = """
def load(length):
    return cs.Dataset.from_sequences([[1, 2, 3, 0], [2, 3]] * 20, length=length)
"""


@pytest.mark.parametrize(
    ("page", "block"), [(page, block) for page in MODULES for block in blocks(page, "yaml")]
)
def test_the_configurations_of_a_guide_run(page, block, tmp_path, monkeypatch):
    """The module that they name holds what the page defines."""
    file = tmp_path.joinpath(*MODULES[page].split(".")).with_suffix(".py")
    file.parent.mkdir(exist_ok=True)
    file.write_text(definitions(page) + LOAD)
    monkeypatch.syspath_prepend(tmp_path)
    result = cs.run(**{**SMALL, **yaml.safe_load(block)})
    assert all(record["test_loss"] is not None for record in result.records)
    root = MODULES[page].partition(".")[0]
    for name in [name for name in sys.modules if name.partition(".")[0] == root]:
        del sys.modules[name]


def definitions(page: str) -> str:
    """What a page imports and defines."""
    whole = ast.parse("\n".join(blocks(page, "python")))
    kept = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef)
    return "\n".join(ast.unparse(node) for node in whole.body if isinstance(node, kept))


def test_a_study_in_parts_is_the_study(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {"__name__": "page"}
    for block in blocks("scaling.md", "python"):
        exec(compile(block, "scaling.md", "exec"), names)
    said = [line.split() for line in capsys.readouterr().out.splitlines()]
    whole = cs.run(["fedavg", "hwa"], seeds=[0, 1], **names["settings"])
    for (method, mean, *_, seeds, _), row in zip(said, whole.summaries, strict=True):
        assert (method, int(seeds)) == (row.method, 2)
        assert float(mean) == pytest.approx(
            row.final_mean, abs=0.01
        )  # rounding may turn single rows of 1,000
