"""The code on the documentation pages runs."""

import re
from pathlib import Path

import pytest

from consilience.cli.listings import methods_page, read_inventory

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


def test_the_page_of_methods_is_current():
    current = methods_page(read_inventory())
    assert (DOCS / "methods.md").read_text() == current, "make it anew: make listings"
    for text in ("Paper: \n", "Formula: ``", "Choose it: \n"):
        assert text not in current
