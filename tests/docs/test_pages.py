"""The code on the documentation pages runs."""

import re
from pathlib import Path

import pytest
import yaml

from consilience.cli.listings import methods_page, read_inventory
from consilience.config import read_config

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize("page", ["adding-a-method.md", "control.md", "own-model.md", "scores.md"])
def test_the_python_blocks_of_a_page_run_in_order(page, capsys):
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), flags=re.DOTALL)
    assert len(blocks) >= 2
    names: dict[str, object] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, page, "exec"), names)
    accuracies = [float(re.split("[, ]", line)[0]) for line in capsys.readouterr().out.splitlines()]
    assert all(accuracy > 0.15 for accuracy in accuracies)


def test_the_page_about_own_data_runs(capsys):
    text = (DOCS / "own-data.md").read_text()
    names: dict[str, object] = {"__name__": "page"}
    for block in re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL):
        exec(compile(block, "own-data.md", "exec"), names)
    hospitals, arrays, table, sequences, varied = capsys.readouterr().out.splitlines()
    assert hospitals.split()[1:] == ["Basel", "Bern", "Genève"]
    assert min(float(line.split()[0]) for line in (hospitals, arrays)) > 0.6
    assert table.startswith("(5,)")  # age, dose and three wards
    assert float(sequences) < 100
    assert float(varied) > 0.5


def test_the_page_about_results_does_what_it_says(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (DOCS / "reading-results.md").read_text(), flags=re.DOTALL)
    names: dict[str, object] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block, "reading-results.md", "exec"), names)
    *table, last = capsys.readouterr().out.splitlines()
    assert any(line.startswith("fedprox mu=1.0") for line in table)
    accuracy, method = last.split(" ", 1)
    assert (float(accuracy) > 0.15, method) == (True, "fedprox mu=0.1")


def test_the_sweep_on_the_page_is_a_configuration():
    (block,) = re.findall(r"```yaml\n(.*?)```", (DOCS / "reading-results.md").read_text(), flags=re.DOTALL)
    assert [label for label, _ in read_config(yaml.safe_load(block)).settings()] == [
        "star alpha=0.1",
        "star alpha=1",
    ]


def test_the_page_of_methods_is_current():
    current = methods_page(read_inventory())
    assert (DOCS / "methods.md").read_text() == current, "make it anew: make listings"
    for text in ("Paper: \n", "Formula: ``", "Choose it: \n"):
        assert text not in current
