"""A complete run gets more rounds, and ends as one that had them from the beginning."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from torch import nn

import consilience as cs
from consilience.cli.app import _changes
from consilience.config.config import Config
from consilience.data.dataset import Dataset
from consilience.errors import UserError
from consilience.experiment import Listener, drawing, resume
from consilience.experiment import execution as experiment
from consilience.experiment import folder as run_folder
from consilience.experiment.folder import RunFolder

CHANGES: dict[str, Any] = {
    "method": ["scaffold", "pfedme"],
    "seeds": [0, 1],
    "participation": 3,
    "checkpoint": {"every": 2},
    "evaluate": {"every": 2},
    "schedule": {"name": "step", "every": 2, "gamma": 0.5},
}


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"topology": "ring", "method": ["dechetero", "local"]},
        {"stop_when": {"accuracy": 0.97}, "solver": {"name": "sgd", "lr": [0.01, 0.3]}},
        {"method": {"name": "fedma", "max_growth": 3}, "seeds": [0]},
        {"compare": [{"topology": "ring", "method": "dechetero"}, {"label": "plain", "method": "fedavg"}]},
    ],
    ids=["star", "graph", "stopping", "growing", "comparison"],
)
def test_an_extended_run_is_a_longer_run(
    more: dict[str, Any],
    tmp_path: Path,
    configure: Callable[..., Config],
    harvest: Callable[[Path], dict[str, Any]],
    blobs: Dataset,
):
    changes = {**CHANGES, **more}
    experiment.run(configure(**changes, rounds=3), folder=RunFolder(tmp_path / "run"))
    extended = resume(tmp_path / "run", rounds=7, data=blobs)
    whole = experiment.run(configure(**changes, rounds=7), folder=RunFolder(tmp_path / "whole"))
    assert extended.digest == whole.digest
    assert harvest(tmp_path / "run") == harvest(tmp_path / "whole")
    configs = [yaml.safe_load((tmp_path / name / "config.yaml").read_text()) for name in ("run", "whole")]
    assert configs[0] == configs[1]
    assert resume(tmp_path / "run", rounds=7, data=blobs).digest == whole.digest
    assert resume(tmp_path / "run", data=blobs).digest == whole.digest


def test_twice_and_after_an_interrupt(
    tmp_path: Path,
    configure: Callable[..., Config],
    stop_after: Callable[[int], Listener],
    blobs: Dataset,
):
    config = configure(**CHANGES, rounds=3)
    with pytest.raises(KeyboardInterrupt):
        experiment.run(config, folder=RunFolder(tmp_path / "run"), listener=stop_after(4))
    with pytest.raises(KeyboardInterrupt):  # the three rounds are done, and of the second method's nothing
        resume(tmp_path / "run", stop_after(5), rounds=5, data=blobs)
    extended = resume(tmp_path / "run", rounds=8, data=blobs)
    assert extended.digest == experiment.run(configure(**CHANGES, rounds=8)).digest


@pytest.fixture(autouse=True)
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leaves pictures out, which take longer than these runs."""
    monkeypatch.setattr(drawing, "score_plot", lambda records, metric, path, title: path.touch())


class Killed(BaseException):
    """Stands for kill -9."""


BRIEF: dict[str, Any] = {**CHANGES, "local": {"steps": 1, "batch_size": 4}, "seeds": [0]}
WRITES = range(5, 18)
"""Those of the run that goes on; four come before, of the one that is complete."""


@pytest.fixture(scope="module")
def short_and_long(tmp_path_factory: pytest.TempPathFactory, configure: Callable[..., Config]) -> Path:
    """A folder with a run of two rounds and one of four."""
    path = tmp_path_factory.mktemp("runs")
    for rounds in (2, 4):
        experiment.run(configure(**BRIEF, rounds=rounds), folder=RunFolder(path / str(rounds)))
    return path


@pytest.mark.parametrize("deadly", WRITES)
def test_killed_while_it_is_extended(
    deadly: int,
    short_and_long: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    harvest: Callable[[Path], dict[str, Any]],
    blobs: Dataset,
):
    path, count, write = tmp_path / "run", 0, run_folder.atomic_write
    shutil.copytree(short_and_long / "2", path)

    def dies(place: Path, data: bytes) -> None:
        nonlocal count
        count += 1
        if count == deadly:
            raise Killed
        write(place, data)

    with monkeypatch.context() as patch:
        patch.setattr(run_folder, "atomic_write", dies)
        with pytest.raises(Killed):
            resume(path, rounds=4, data=blobs)
    assert resume(path, rounds=4, data=blobs)
    assert harvest(path) == harvest(short_and_long / "4")


def test_what_cannot_be(tmp_path: Path, configure: Callable[..., Config], blobs: Dataset):
    result = experiment.run(configure(rounds=2), folder=RunFolder(tmp_path / "run"))
    with pytest.raises(UserError, match="has 2 rounds: rounds=1 would be fewer"):
        cs.resume(result, rounds=1, data=blobs)
    with pytest.raises(UserError, match="this run wrote no files"):
        cs.resume(experiment.run(configure(rounds=1)), rounds=2)
    unlike = configure(compare=[{"rounds": 1}, {"rounds": 2, "label": "longer"}])
    compared = experiment.run(unlike, folder=RunFolder(tmp_path / "compared"))
    with pytest.raises(UserError, match="have 1 and 2 rounds: it is not clear which to give more"):
        cs.resume(compared, rounds=3, data=blobs)
    assert cs.resume(compared, data=blobs).digest == compared.digest
    shutil.rmtree(tmp_path / "run" / "states")
    with pytest.raises(UserError, match="is missing, so this run cannot go on"):
        cs.resume(result, rounds=4, data=blobs)
    assert (_changes([]), _changes(["rounds=200"])) == ({}, {"rounds": 200})
    for wrong in ("rounds=-1", "rounds", "solver.lr=0.1"):
        with pytest.raises(UserError, match="takes no other change than"):
            _changes([wrong])


def test_a_stretched_schedule_says_so(
    tmp_path: Path, configure: Callable[..., Config], blobs: Dataset, caplog: pytest.LogCaptureFixture
):
    experiment.run(configure(rounds=1, schedule="cosine"), folder=RunFolder(tmp_path / "run"))
    resume(tmp_path / "run", rounds=2, data=blobs)
    assert "the schedule is stretched over 2 rounds" in caplog.text


def test_a_run_of_data_and_a_model_from_python_gets_more_rounds(tmp_path: Path, blobs: Dataset):
    module = nn.Linear(5, 3)
    settings: dict[str, Any] = {"data": blobs, "model": module, "clients": 3, "local": {"steps": 1}}
    short = cs.run("fedavg", rounds=1, out=tmp_path, **settings)
    with pytest.raises(
        UserError, match=r"\(blobs\) were given from Python.*cs.resume\(..., data=the same data\)"
    ):
        cs.resume(short, rounds=3)
    with pytest.raises(UserError, match=r"\(Linear\) was given from Python.*cs.resume\(..., model=the same"):
        cs.resume(short, rounds=3, data=blobs)
    with pytest.raises(UserError, match="was made with another model"):
        cs.resume(short, rounds=3, data=blobs, model=nn.Linear(5, 3))
    longer = cs.resume(short, rounds=np.int64(3), data=blobs, model=module)  # type: ignore[arg-type]
    assert longer.digest == cs.run("fedavg", rounds=3, **settings).digest
    with pytest.raises(UserError, match="data is to be the Dataset that the run was given, not a tuple"):
        cs.resume(short, data=(1, 2))  # type: ignore[arg-type]
    with pytest.raises(UserError, match="rounds is a whole number, not '4'"):
        cs.resume(short, rounds="4", data=blobs, model=module)  # type: ignore[arg-type]
