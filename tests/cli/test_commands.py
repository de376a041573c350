"""The commands when all is well."""

from __future__ import annotations

import io
import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image
from rich.console import Console

from consilience import __version__
from consilience.algorithms import METHODS
from consilience.cli.display import LiveDisplay, PlainDisplay
from consilience.config import load_config
from consilience.data.sets import SOURCES
from consilience.experiment import execution as experiment
from consilience.models import MODELS


def lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def digest(answer: Any) -> str:
    (found,) = re.findall(r"^digest: ([0-9a-f]{64})$", answer.out, re.MULTILINE)
    return str(found)


def test_a_run_ends_with_a_table_and_paths(command: Callable[..., Any], tiny: Path, out: Path):
    answer = command("run", tiny, "method=[fedavg, swa]", "seeds=[0, 1]", "targets=[0.05]")
    assert (answer.code, answer.err) == (0, "")
    rounds = [line for line in answer.out.splitlines() if "round " in line and "loss" in line]
    expected = [
        f"star {name}  round {number}/2  accuracy " for name in ("fedavg", "swa") for number in (1, 2)
    ]
    assert [line[: len(start)] for line, start in zip(rounds, expected, strict=True)] == expected
    assert all("samples/s" in line and " s left" in line for line in rounds)
    table = answer.out.split(rounds[-1])[1]
    assert all(word in table for word in ("accuracy", "best", "to 5%", "up", "down", "fedavg", "swa", " ± "))
    assert f"results: {out / 'tiny'}\n" in answer.out
    assert f"plot: {out / 'tiny' / 'accuracy.png'}\n" in answer.out
    assert digest(answer) == json.loads((out / "tiny" / "summary.json").read_text())["digest"]


def test_a_note_is_printed_under_the_table_and_kept(command: Callable[..., Any], tiny: Path, out: Path):
    with tiny.open("a") as file:
        file.write("note: >\n  One method [alone]:\n  nothing to compare.\n")
    note = "One method [alone]: nothing to compare."
    answer = command("run", tiny)
    assert (answer.code, answer.err) == (0, "")
    table, below = answer.out.split(f"\n{note}\n")
    assert "accuracy" in table
    assert below.startswith("results: ")
    assert json.loads((out / "tiny" / "summary.json").read_text())["note"] == note
    assert load_config(out / "tiny" / "config.yaml").note == note
    assert f"\n{note}\n" in command("resume", out / "tiny").out


def test_the_same_command_gives_the_same_digest(command: Callable[..., Any], tiny: Path, out: Path):
    first = command("run", tiny)
    second = command("run", tiny, "name=again")
    assert digest(first) == digest(second)
    resolved = command("run", out / "tiny" / "config.yaml", "name=resolved")
    assert digest(first) == digest(resolved)


def test_overwriting_when_asked(command: Callable[..., Any], tiny: Path, out: Path):
    assert command("run", tiny).code == 0
    assert command("run", tiny, "rounds=1").code == 2
    assert len(lines(out / "tiny" / "metrics.jsonl")) == 2
    assert command("run", tiny, "rounds=1", "--overwrite").code == 0
    assert len(lines(out / "tiny" / "metrics.jsonl")) == 1


def test_resuming_a_complete_run_shows_its_table(command: Callable[..., Any], tiny: Path, out: Path):
    first = command("run", tiny)
    before = (out / "tiny" / "metrics.jsonl").read_bytes()
    again = command("resume", out / "tiny")
    assert (again.code, again.err) == (0, "")
    assert "round 1/2" not in again.out
    assert digest(again) == digest(first)
    assert first.out.endswith(again.out)  # the rounds come first, the table and the paths are the same
    assert (out / "tiny" / "metrics.jsonl").read_bytes() == before


def test_dropped_clients_are_shown(command: Callable[..., Any], tiny: Path):
    answer = command("run", tiny, "failure_rate=1.0", "rounds=1")
    assert answer.code == 0
    assert "dropped seed 0: client 0 (upload lost), seed 0: client 1 (upload lost)" in answer.out


def test_methods_as_json(command: Callable[..., Any]):
    answer = command("methods", "--json")
    assert (answer.code, answer.err) == (0, "")
    entries = {entry["name"]: entry for entry in json.loads(answer.out)}
    assert entries.keys() == METHODS.keys()
    assert entries["fedavg"]["bytes_up"] == entries["fedavg"]["bytes_down"]
    assert (entries["scaffold"]["star"], entries["scaffold"]["graph"]) == (True, False)


@pytest.mark.parametrize(
    ("words", "names"),
    [(["methods"], [*METHODS, "dechetero"]), (["models"], MODELS), (["datasets"], SOURCES)],
    ids=["methods", "models", "datasets"],
)
def test_listings(words: list[str], names: list[str], command: Callable[..., Any]):
    answer = command(*words)
    assert (answer.code, answer.err) == (0, "")
    flat = "".join(answer.out.split())
    assert all(name in flat for name in names)


def test_which_data_are_here(command: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CONSILIENCE_DATA", str(tmp_path))
    rows = [line for line in command("datasets").out.splitlines() if "yes" in line]
    assert len(rows) == 1
    assert "mnist-sample" in rows[0]


def test_partition(command: Callable[..., Any], tiny: Path, out: Path):
    answer = command("partition", tiny, "partition={name: dirichlet_class, alpha: 0.3}", "seeds=[0, 1]")
    assert (answer.code, answer.err) == (0, "")
    assert "label distance" in answer.out
    config = load_config(tiny, ["partition={name: dirichlet_class, alpha: 0.3}", "seeds=[0, 1]"])
    (arm,) = experiment.plan(config)
    for part in arm.scene.partitions.values():
        assert str(part.manifest()["sha256"])[:12] in answer.out
    (path,) = out.glob("*.png")
    assert f"plot: {path}" in answer.out
    with Image.open(path) as picture:
        assert picture.format == "PNG"
        assert min(picture.size) >= 200


def test_a_partition_without_classes_is_shown_by_its_sizes(
    command: Callable[..., Any], tiny: Path, out: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    code = """import numpy as np, consilience as cs
def load(target):
    inputs = np.linspace(0, 1, 60, dtype=np.float32).reshape(30, 2)
    if target == "next":
        return cs.Dataset.from_sequences([[1, 2, 3]] * 30)
    return cs.Dataset.from_arrays("line", inputs, inputs[:, 0], inputs, inputs[:, 0])
"""
    (tmp_path / "lines.py").write_text(code)
    monkeypatch.syspath_prepend(tmp_path)
    for target in ("number", "next"):
        answer = command("partition", tiny, f"data={{name: 'lines:load', target: {target}}}", "partition=iid")
        assert (answer.code, answer.err) == (0, "")
        assert "–" in answer.out
        assert "0.000" in answer.out  # of sizes
    assert len(list(out.glob("*.png"))) == 1


def test_partitions_of_every_setting(command: Callable[..., Any], tiny: Path, out: Path):
    answer = command(
        "partition", tiny, "compare=[{label: a b, partition: iid}, {label: c, partition: shards}]"
    )
    assert answer.code == 0
    assert "a b: iid, 3 clients of mnist-sample" in answer.out
    assert "c: shards, 3 clients of mnist-sample" in answer.out
    assert {path.name for path in out.iterdir()} == {"tiny-a-b-partition.png", "tiny-c-partition.png"}


def test_schema(command: Callable[..., Any]):
    answer = command("schema")
    assert (answer.code, answer.err) == (0, "")
    assert json.loads(answer.out)["properties"].keys() >= {"method", "data", "rounds"}


@pytest.mark.parametrize(
    "words",
    [["--help"], ["run", "--help"], ["resume", "--help"], ["partition", "--help"], ["data", "--help"]],
)
def test_help(words: list[str], command: Callable[..., Any]):
    answer = command(*words)
    assert (answer.code, answer.err) == (0, "")
    assert "Usage:" in answer.out


def test_version(command: Callable[..., Any]):
    assert command("--version").out == f"consilience {__version__}\n"


@pytest.mark.parametrize("words", [["walk"], ["run"], ["resume"], ["run", "a.yaml", "--overwrit"]])
def test_wrong_usage_is_exit_code_2(words: list[str], command: Callable[..., Any]):
    answer = command(*words)
    assert answer.code == 2
    assert "Traceback" not in answer.err


def test_data_that_come_with_the_package_need_no_download(command: Callable[..., Any]):
    answer = command("data", "get", "mnist-sample")
    assert (answer.code, answer.out, answer.err) == (0, "", "")


# On a terminal.


def test_a_live_display(tiny: Path):
    screen = Console(file=io.StringIO(), force_terminal=True, width=160)
    experiment.run(
        load_config(tiny, ["method=[fedavg, {name: swa, label: 'swa [ours]'}]"]), listener=LiveDisplay(screen)
    )
    assert isinstance(screen.file, io.StringIO)
    shown = screen.file.getvalue()
    assert all(
        text in shown for text in ("star fedavg", "star swa [ours]", "round 2/2", "accuracy", "samples/s")
    )


def test_the_time_that_is_left(
    tiny: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
):
    """A clock that moves 10 s a round, for a run that was resumed in the middle."""
    now = 0.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    display = PlainDisplay()
    (arm,) = experiment.plan(load_config(tiny, ["rounds=4"]))
    display.start([arm])
    for number in (3, 4):
        now += 10
        line = {"bytes_up": 1, "bytes_down": 1, "train_loss": None, "seconds": 1.0, "samples": 5, "seed": 0}
        display.round(arm, [{**line, "round": number, "dropped": []}])
    assert [line.split()[-3:] for line in capsys.readouterr().out.splitlines()] == [
        ["10", "s", "left"],
        ["0", "s", "left"],
    ]


def test_an_interrupt_that_a_library_wrapped_is_still_one(
    tiny: Path, command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
):
    def wrapped(*_: object) -> None:
        try:
            raise KeyboardInterrupt
        except KeyboardInterrupt as error:
            raise RuntimeError("a callback failed") from error

    monkeypatch.setattr(PlainDisplay, "round", wrapped)
    answer = command("run", tiny)
    assert answer.code == 130
    assert answer.err.count("\n") == 1
    assert "consilience resume" in answer.err


def test_a_complete_run_gets_more_rounds(command: Callable[..., Any], tiny: Path, out: Path):
    command("run", tiny, "schedule={name: step, every: 1}")
    answer = command("resume", out / "tiny", "rounds=4")
    assert (answer.code, answer.err) == (0, "")
    assert "round 4/4" in answer.out
    whole = command("run", tiny, "schedule={name: step, every: 1}", "rounds=4", "name=whole")
    assert digest(answer) == digest(whole)
