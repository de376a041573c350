"""The tutorial does what it says: its blocks run in order, and show what stands below them."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

import consilience as cs
from consilience.cli import app as cli

ROOT = Path(__file__).parents[2]
BLOCKS = re.findall(
    r"^```(\w*)\n(.*?)^```$", (ROOT / "docs" / "tutorial.md").read_text(), flags=re.DOTALL | re.MULTILINE
)


def words(text: str) -> str:
    """The words of a text: numbers differ a little between machines, what stands around them does not."""
    return " ".join(re.findall(r"[^\W\d_]{2,}", text))


def test_the_tutorial_shows_what_stands_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(ROOT / "examples", "examples")
    names: dict[str, Any] = {"__name__": "tutorial"}
    results: list[cs.Result] = []
    said = ""
    assert [kind for kind, _ in BLOCKS].count("python") >= 5
    for kind, block in BLOCKS:
        if kind == "text":
            assert words(block) in words(said)
            continue
        if kind == "bash":
            monkeypatch.setattr(sys, "argv", shlex.split(block.replace("\\\n", "")))
            with pytest.raises(SystemExit) as stopped:
                cli.main()
            assert (sys.argv[0], stopped.value.code) == ("consilience", 0)
        else:
            assert kind == "python"
            exec(compile(block, "tutorial.md", "exec", dont_inherit=True), names)
            results += [names["result"]] if names["result"] not in results else []
        said = capsys.readouterr().out

    compared, hospitals, _, swept = results
    alone = compared.summaries[0]
    assert (alone.final_mean or 1) < 0.3 < 0.8 < alone.clients["accuracy"].mean
    own = {(line["method"], line["name"]): line["own_accuracy"] for line in hospitals.clients}
    assert own["fedavg", "Bern"] > own["local", "Bern"] + 0.2
    assert own["fedavg", "Basel"] < own["local", "Basel"] - 0.2
    alike, _, by_size = (one.clients["accuracy"].worst for one in swept.summaries)
    assert alike > by_size + 0.1
    served = {line["name"]: line["own_accuracy"] for line in swept.clients[-3:]}
    assert min(served, key=served.__getitem__) == "Basel"
    assert words(said) == ""  # nothing is said about weights that fit
