"""What is said of damaged and edited files of a run; more in checks 3 and 4 of the scorecard."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import consilience as cs
from consilience.config.config import Config
from consilience.data.dataset import Dataset
from consilience.errors import UserError
from consilience.experiment import Listener, resume
from consilience.experiment import execution as experiment
from consilience.experiment.checkpoint import Checkpoint
from consilience.experiment.drawing import redraw
from consilience.experiment.folder import CHECKPOINT, CLIENTS, METRICS, PARTITIONS, PREVIOUS, RunFolder
from consilience.experiment.lines import json_line
from consilience.experiment.sealing import with_footer
from consilience.monitor.gathering import Folder
from scorecard.damages import Damage

SETTING: dict[str, Any] = {
    "method": ["scaffold", "fedavg"],
    "clients": 3,
    "participation": 2,
    "rounds": 3,
    "checkpoint": {"every": 1},
    "memories": {"resident": "never"},
}


@pytest.fixture(scope="module")
def unfinished(
    tmp_path_factory, configure: Callable[..., Config], stop_after: Callable[[int], Listener]
) -> Path:
    """A run that was stopped in its second method, when it had saved two checkpoints of that."""
    path = tmp_path_factory.mktemp("unfinished") / "run"
    with pytest.raises(KeyboardInterrupt):
        experiment.run(configure(**SETTING), folder=RunFolder(path), listener=stop_after(6))
    return path


@pytest.fixture(scope="module")
def finished(tmp_path_factory, configure: Callable[..., Config]) -> Path:
    path = tmp_path_factory.mktemp("finished") / "run"
    experiment.run(configure(**SETTING), folder=RunFolder(path))
    return path


@pytest.fixture
def going_on(blobs: Dataset) -> Callable[[Path], str]:
    return lambda path: resume(path, data=blobs).digest


def everything(path: Path) -> Any:
    """What readers of a run that has ended make of it."""
    models = {
        str(file.relative_to(path)): [value.tolist() for value in cs.load_model(file).state_dict().values()]
        for file in sorted((path / "weights").rglob("*.safetensors"))
    }
    problems = Folder(path).offer().problems
    if problems:
        raise UserError(problems[0])
    return models, [one.name for one in redraw(path)]


@pytest.mark.parametrize("name", [METRICS, CLIENTS])
def test_an_edited_score_is_noticed_and_the_checkpoint_before_is_offered_where_it_serves(
    name, unfinished, tmp_path, going_on, blobs
):
    path = shutil.copytree(unfinished, tmp_path / "run")
    whole = going_on(shutil.copytree(unfinished, tmp_path / "whole"))
    lines = [json.loads(line) for line in (path / name).read_text().splitlines()]
    edited = lines[-2 if name == METRICS else 0]
    edited["train_loss"] += 0.001
    (path / name).write_text("".join(json_line(line) + "\n" for line in lines))
    with pytest.raises(
        UserError, match=rf"{name} is damaged or was edited: its \d lines are not those"
    ) as told:
        going_on(path)
    if name == CLIENTS:  # of the first method, which both checkpoints count on
        assert "there is no earlier checkpoint that what is left would fit" in str(told.value)
        return
    assert f"`consilience resume {path} --previous` goes on" in str(told.value)
    assert resume(path, data=blobs, previous=True).digest == whole


def test_a_damaged_checkpoint_is_replaced_by_the_one_before_if_somebody_says_so(
    unfinished, tmp_path, going_on, blobs
):
    path = shutil.copytree(unfinished, tmp_path / "run")
    whole = going_on(shutil.copytree(unfinished, tmp_path / "whole"))
    Damage(CHECKPOINT, "cut", 100).on(path)
    with pytest.raises(UserError, match=r"checkpoint\.safetensors is damaged.*resume .* --previous` goes on"):
        going_on(path)
    assert resume(path, data=blobs, previous=True).digest == whole
    (path / PREVIOUS).unlink()
    with pytest.raises(UserError, match="has no checkpoint before the last"):
        resume(path, data=blobs, previous=True)


def test_nothing_is_promised_where_both_checkpoints_count_on_what_is_damaged(unfinished, tmp_path, going_on):
    path = shutil.copytree(unfinished, tmp_path / "run")
    (file,) = (path / "memories").glob("*scaffold*")
    file.write_bytes(b"")
    with pytest.raises(UserError, match=r"is damaged: it is shorter .* there is no earlier checkpoint"):
        going_on(path)


def test_a_run_killed_between_two_checkpoints_goes_on_from_the_first(unfinished, tmp_path, going_on):
    path = shutil.copytree(unfinished, tmp_path / "run")
    whole = going_on(shutil.copytree(unfinished, tmp_path / "whole"))
    (path / CHECKPOINT).unlink()
    assert going_on(path) == whole


def test_memories_of_the_checkpoint_before_are_still_there(tmp_path, configure, stop_after, blobs):
    config = configure(**{**SETTING, "method": "scaffold", "rounds": 6})
    whole = experiment.run(config)
    with pytest.raises(KeyboardInterrupt):
        experiment.run(config, folder=RunFolder(tmp_path / "run"), listener=stop_after(5))
    assert resume(tmp_path / "run", data=blobs, previous=True).digest == whole.digest


def test_the_checkpoint_before_is_offered_for_memories_only_where_it_does_without_them(
    tmp_path, configure, stop_after, blobs
):
    config = configure(**{**SETTING, "method": "scaffold", "rounds": 6})
    whole, path = experiment.run(config).digest, tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        experiment.run(config, folder=RunFolder(path), listener=stop_after(5))
    before, (file,) = tmp_path / "before", (path / "memories").iterdir()
    shutil.copytree(path, before)
    slots = [
        set(Checkpoint.decoded((path / name).read_bytes()).state["rows/slot"].tolist())
        for name in (CHECKPOINT, PREVIOUS)
    ]
    row = file.stat().st_size // (1 + max(slots[0] | slots[1]))
    for serves, places in ((True, slots[0] - slots[1]), (False, slots[0] & slots[1])):
        shutil.rmtree(path)
        shutil.copytree(before, path)
        Damage(str(file.relative_to(path)), "flip", 8 * row * min(places)).on(path)
        with pytest.raises(UserError, match=rf"{file.name} is damaged: the digest of row") as told:
            resume(path, data=blobs)
        assert ("--previous` goes on" in str(told.value)) == serves
        if serves:
            assert resume(path, data=blobs, previous=True).digest == whole
        else:
            with pytest.raises(UserError, match=rf"{file.name} is damaged.*there is no earlier checkpoint"):
                resume(path, data=blobs, previous=True)
            for name in (CHECKPOINT, PREVIOUS):  # what would not help has replaced nothing
                assert (path / name).read_bytes() == (before / name).read_bytes()


def test_a_damaged_name_for_trackers_can_be_deleted(tmp_path, configure):
    path = tmp_path / "run"
    config = configure(tracking=["tensorboard"], rounds=1)
    whole = experiment.run(config, folder=RunFolder(path)).digest
    Damage("tracking.json", "flip", 40).on(path)
    with pytest.raises(UserError, match=r"tracking\.json is damaged: .*; delete it") as told:
        experiment.run(config, folder=RunFolder(path), existing="resume")
    assert "--previous" not in str(told.value)
    (path / "tracking.json").unlink()
    assert experiment.run(config, folder=RunFolder(path), existing="resume").digest == whole


def test_partitions_that_are_damaged_are_written_again_when_they_are_gone(unfinished, tmp_path, going_on):
    path = shutil.copytree(unfinished, tmp_path / "run")
    before = (path / PARTITIONS).read_bytes()
    Damage(PARTITIONS, "flip", 80).on(path)
    with pytest.raises(UserError, match=r"partitions\.json is damaged.*delete it, and it is written again"):
        going_on(path)
    (path / PARTITIONS).unlink()
    going_on(path)
    assert (path / PARTITIONS).read_bytes() == before


def test_a_configuration_that_was_edited_is_refused_however_well(unfinished, tmp_path, going_on):
    path = shutil.copytree(unfinished, tmp_path / "run")
    text = (path / "config.yaml").read_text()
    edited = yaml.safe_load(text)
    edited["solver"]["lr"] = 0.2
    (path / "config.yaml").write_text(yaml.safe_dump(edited))
    with pytest.raises(
        UserError, match=r"config\.yaml is damaged or was edited.*takes no other configuration"
    ):
        going_on(path)
    (path / "config.yaml").write_bytes(with_footer(yaml.safe_dump(edited)))
    with pytest.raises(UserError, match="was made with another configuration"):
        going_on(path)


def test_an_extended_run_has_not_ended_until_it_has(finished, tmp_path, blobs, stop_after):
    path = shutil.copytree(finished, tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        resume(path, stop_after(1), rounds=5, data=blobs)
    with pytest.raises(UserError, match="does not hold a run that has ended"):
        redraw(path)
    assert Folder(path).offer().problems == []
    whole = resume(path, data=blobs).digest
    assert everything(path)
    Damage(CHECKPOINT, "flip", 800).on(path)  # the one before no longer counts on states of the shorter run
    with pytest.raises(UserError, match=r"checkpoint\.safetensors is damaged.*--previous` goes on"):
        resume(path, data=blobs)
    assert resume(path, data=blobs, previous=True).digest == whole


def test_the_monitor_says_that_metrics_were_edited(finished, tmp_path):
    path = shutil.copytree(finished, tmp_path / "run")
    watched = Folder(path)
    assert watched.offer().problems == []
    (path / METRICS).write_text((path / METRICS).read_text().replace('accuracy": 0.', 'accuracy": 0.9'))
    assert f"{path / METRICS} is not as the run left it" in watched.offer().problems
