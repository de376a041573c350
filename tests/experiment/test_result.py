"""What came out, as people use it: a table, a data frame, a plot, and a page in a notebook."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import consilience as cs
from consilience.config.config import Config
from consilience.experiment import execution as experiment


@pytest.fixture
def _plots() -> None:
    """Plots are painted."""


@pytest.fixture(scope="module")
def swept(configure: Callable[..., Config]) -> cs.Result:
    """A sweep of one method beside another one."""
    methods = [{"name": "fedprox", "mu": [0.1, 1.0]}, {"name": "hwa", "label": "<mine>"}]
    return experiment.run(configure(method=methods, seeds=[0, 1], rounds=2, note="a < b", targets=[0.5]))


@pytest.fixture(scope="module")
def single(configure: Callable[..., Config]) -> cs.Result:
    """One method."""
    return experiment.run(configure(rounds=2))


def test_a_table_is_text(swept: cs.Result):
    lines = swept.table().splitlines()
    assert [line.split("  ")[0].strip() for line in lines if line.startswith(("fedprox", "<mine>"))] == [
        "fedprox mu=0.1",
        "fedprox mu=1.0",
        "<mine>",
    ]
    assert "accuracy" in lines[0]


def test_tables_have_what_the_command_line_shows(configure: Callable[..., Config]):
    settings = {"partition": {"name": "iid", "holdout": 0.2}, "targets": {"f1_macro": 0.1}}
    result = experiment.run(configure(metrics=["f1_macro"], rounds=1, **settings))
    for shown in (result.table(), result._repr_html_()):
        assert "f1_macro" in shown
        assert "worst" in shown
        assert "held out" in shown


def test_a_notebook_shows_the_table(swept: cs.Result):
    page = swept._repr_html_()
    assert page.count("<tr>") == 4
    assert "&lt;mine&gt;" in page
    assert "a &lt; b" in page
    best = max(one.final_mean for one in swept.summaries if one.final_mean is not None)
    assert f"<b>{100 * best:.2f} ± " in page


def test_a_data_frame_has_a_row_a_round(swept: cs.Result):
    pandas = pytest.importorskip("pandas")
    frame = swept.to_pandas()
    assert len(frame) == len(swept.records) == 12
    assert frame["mu"].tolist()[:8] == [0.1, 0.1, 1.0, 1.0] * 2
    assert frame["mu"].isna().sum() == 4  # of the method that has no such number
    means = frame[frame["round"] == 2].groupby("method")["test_accuracy"].mean()
    told = {one.method: one.final_mean for one in swept.summaries}
    pandas.testing.assert_series_equal(
        means.sort_index(), pandas.Series(told).sort_index(), check_names=False, check_index_type=False
    )
    assert len(swept.to_pandas("clients")) == len(swept.clients)
    assert swept.to_pandas("methods")["final_accuracy.mean"].tolist() == list(told.values())
    with pytest.raises(cs.UserError, match="unknown data frame 'rows'"):
        swept.to_pandas("rows")  # type: ignore[arg-type]


def test_without_pandas_one_line_says_what_to_do(single: cs.Result, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(cs.UserError, match=r"^to_pandas needs pandas: pip install pandas$"):
        single.to_pandas()


def test_a_plot_is_a_figure_that_notebooks_show(swept: cs.Result, single: cs.Result, tmp_path: Path):
    assert single.plot().axes[0].get_xlabel() == "round"
    assert swept.plot().axes[0].get_xlabel() == "mu"
    assert swept.plot("rounds", tmp_path / "mine.pdf").axes[0].get_xlabel() == "round"
    assert (tmp_path / "mine.pdf").read_bytes().startswith(b"%PDF")
    assert swept.plot()._repr_png_().startswith(b"\x89PNG")  # type: ignore[attr-defined]
    with pytest.raises(cs.UserError, match="no sweep to plot"):
        single.plot("sweep")
    with pytest.raises(cs.UserError, match="unknown plot 'round'"):
        single.plot("round")  # type: ignore[arg-type]


class Cell:
    """Stands for a notebook: remembers what is shown, and what takes its place."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, kernel: object) -> None:
        self.pages: list[str] = []
        shell, display = ModuleType("IPython"), ModuleType("IPython.display")
        shell.get_ipython = lambda: SimpleNamespace(kernel=kernel)  # type: ignore[attr-defined]
        display.display = self.show  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "IPython", shell)
        monkeypatch.setitem(sys.modules, "IPython.display", display)

    def show(self, thing: Any, *, display_id: bool) -> Any:
        assert display_id
        self.update(thing)
        return self

    def update(self, thing: Any) -> None:
        self.pages.append(thing._repr_html_())


def test_progress_is_shown_in_notebooks(configure: Callable[..., Config], monkeypatch: pytest.MonkeyPatch):
    cell = Cell(monkeypatch, kernel=object())
    experiment.run(configure(method=[{"name": "fedprox", "mu": [0.1, 1.0]}, {"name": "hwa", "label": "<b>"}]))
    first, last = cell.pages[0], cell.pages[-1]
    assert re.findall(r"value='(\d)' max='3'", first) == ["0", "0"]
    assert re.findall(r"value='(\d)' max='3'", last) == ["3", "3"]
    assert "star &lt;b&gt;" in last
    assert re.search(r"round 3/3  accuracy [\d.]+ %  \(best: mu=(0\.1|1\.0)\)", last)


def test_terminals_and_who_asks_for_silence_get_none(
    configure: Callable[..., Config], monkeypatch: pytest.MonkeyPatch
):
    terminal = Cell(monkeypatch, kernel=None)
    experiment.run(configure(rounds=1))
    notebook = Cell(monkeypatch, kernel=object())
    experiment.run(configure(rounds=1), listener=cs.Listener())
    assert terminal.pages == notebook.pages == []
