"""Trackers are told metrics, configuration and table; whatever happens to them, the run is the same."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import pytest

import consilience as cs
from consilience.config import read_config
from consilience.errors import UserError
from consilience.tracking import TRACKERS, MLflow, Session, TensorBoard, Tracker, WandB
from consilience.tracking.base import numbers

pytestmark = pytest.mark.usefixtures("unpainted")

TOLD: list[tuple[Any, ...]] = []
"""What a tracker was told, in order."""


@dataclass(frozen=True)
class Diary(Tracker):
    """A tracker that writes everything down, and fails where it is asked to."""

    name: ClassVar[str] = "diary"
    library: ClassVar[str] = "diary"
    fails: str = ""

    def session(self, run):
        TOLD.append(("session", run.name, run.key, run.config["rounds"]))
        if self.fails == "session":
            raise ConnectionError("nobody\nis there")
        return Pages(run, self.fails)


class Pages(Session[str]):
    def __init__(self, run, fails):
        super().__init__(run)
        self.fails = fails

    def note(self, *what):
        TOLD.append(what)
        if what[0] == self.fails:
            raise ConnectionError("nobody\nis there")

    def begin(self, curve, number):
        self.note("begin", str(curve), number)
        return str(curve)

    def write(self, place, number, scores):
        self.note("write", place, number, dict(scores))

    def end(self, place):
        self.note("end", place)

    def conclude(self, table):
        self.note("conclude", [(row["method"], row["final_accuracy.mean"]) for row in table])


@pytest.fixture(autouse=True)
def _nothing_told():
    TOLD.clear()


def test_what_a_tracker_is_told(tracked: Callable[..., cs.Result], curve: Callable[..., list[Any]]):
    result = tracked(Diary())
    assert TOLD[0][:2] == ("session", "tiny")
    assert TOLD[0][3] == 2
    begun = [told[1:] for told in TOLD if told[0] == "begin"]
    assert begun == [(f"star {method} seed {seed}", 1) for method in ("fedavg", "local") for seed in (0, 1)]
    for seed in (0, 1):
        written = [told for told in TOLD if told[:2] == ("write", f"star fedavg seed {seed}")]
        for key in ("test_accuracy", "train_loss", "bytes_up"):
            found = [(number, scores[key]) for *_, number, scores in written]
            assert found == curve(result, "fedavg", seed, key)
    order = [told[0] for told in TOLD if told[0] in ("begin", "end")]
    assert order == ["begin", "begin", "end", "end"] * 2  # one method after the other
    assert TOLD[-3] == ("conclude", [(one.method, one.final_mean) for one in result.summaries])


def test_a_tracker_that_fails_is_one_line_and_changes_nothing(
    tracked: Callable[..., cs.Result], caplog: pytest.LogCaptureFixture
):
    alone = tracked().digest
    line = "tracking by diary is off, the run goes on (ConnectionError: nobody is there)"
    for fails in ("session", "begin", "write", "end", "conclude"):
        TOLD.clear()
        caplog.clear()
        with caplog.at_level(logging.WARNING, "consilience"):
            result = tracked(Diary(fails), Diary())
        assert [record.getMessage() for record in caplog.records] == [line]
        told = [what for what, *_ in TOLD]
        # The other tracker hears everything all the same.
        assert told.count("write") >= 8
        assert told.count("conclude") == (2 if fails == "conclude" else 1)
        assert result.digest == alone


@pytest.mark.parametrize("name", TRACKERS.builtin)
def test_a_library_that_is_not_there_is_one_line(
    name: str,
    tracked: Callable[..., cs.Result],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard" if name == "tensorboard" else name, None)
    with caplog.at_level(logging.WARNING, "consilience"):
        tracked(name, rounds=1)
    (record,) = caplog.records
    assert f"tracking by {name} is off" in record.getMessage()
    assert record.getMessage().endswith(f": pip install 'consilience[{name}]'")


class Stop(cs.Listener):
    """An interrupt in the second round."""

    def round(self, arm, lines):
        if lines[0]["round"] == 2:
            raise KeyboardInterrupt


def test_a_resumed_run_is_the_same_to_a_tracker(tracked: Callable[..., cs.Result], tmp_path: Path):
    with pytest.raises(KeyboardInterrupt):
        tracked(Diary(), listener=Stop(), seeds=[0])
    assert TOLD[-1] == ("end", "star fedavg seed 0")  # also where the run is interrupted
    result = cs.resume(tmp_path / "runs" / "tiny")
    first, second = (told for told in TOLD if told[0] == "session")
    assert first == second
    begun = [told[1:] for told in TOLD if told[0] == "begin"]
    assert begun == [("star fedavg seed 0", 1), ("star fedavg seed 0", 2), ("star local seed 0", 1)]
    assert result.digest == tracked(seeds=[0]).digest
    tracked(Diary(), seeds=[0])  # which replaces the run
    assert [told[2] for told in TOLD if told[0] == "session"].count(first[2]) == 2


def test_trackers_in_a_configuration():
    config = read_config({"tracking": ["tensorboard", {"name": "wandb", "mode": "offline"}, MLflow("uri")]})
    assert config.tracking == [TensorBoard(), WandB(mode="offline"), MLflow(uri="uri")]
    assert read_config(config.written()) == config
    assert read_config({"tracking": "mlflow"}).tracking == [MLflow()]
    assert read_config({}).tracking == []
    with pytest.raises(UserError, match=r"unknown tracking 'wandbb'; did you mean 'wandb'\?"):
        read_config({"tracking": ["wandbb"]})
    with pytest.raises(UserError, match="tracking belongs to the whole run"):
        read_config({"compare": [{"tracking": "wandb"}]}).settings()


def test_metrics_are_the_numbers_of_a_line():
    line = {"seed": 3, "round": 1, "method": "x", "test_accuracy": None, "samples": 5, "traffic": {}}
    assert numbers({**line, "seconds": 0.5}) == {"samples": 5.0, "seconds": 0.5}
