"""The files of a run: whole or not there, never overwritten by accident, damage is noticed."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from consilience.errors import UserError
from consilience.experiment.checkpoint import Checkpoint
from consilience.experiment.folder import (
    CHECKPOINT,
    CONFIG,
    METRICS,
    RunFolder,
    atomic_write,
)
from consilience.experiment.lines import finite_line, json_line
from consilience.experiment.sealing import with_footer

STATE = {"params/w": torch.arange(6.0).reshape(2, 3), "clock/round": torch.tensor(4)}


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def content(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    made = RunFolder(tmp_path / "run")
    made.prepare({"name": "run", "rounds": 3}, "refuse")
    return made


def test_an_atomic_write_replaces(tmp_path: Path):
    path = tmp_path / "file"
    for data in (b"one", b"", b"three"):
        atomic_write(path, data)
        assert content(tmp_path) == {"file": data}


@pytest.mark.parametrize("point", ["os.fsync", "pathlib.Path.replace", "pathlib.Path.open"])
def test_a_full_disk_leaves_the_old_file(point: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    path = tmp_path / "file"
    atomic_write(path, b"old")
    with monkeypatch.context() as patch:
        patch.setattr(point, full)
        with pytest.raises(UserError, match=r"cannot write .*file: No space left on device"):
            atomic_write(path, b"new")
    assert content(tmp_path) == {"file": b"old"}


def test_an_interrupted_write_leaves_the_old_file(folder: RunFolder, monkeypatch: pytest.MonkeyPatch):
    folder.save_checkpoint(Checkpoint(1, 2, 3, STATE))

    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", stop)
        with pytest.raises(KeyboardInterrupt):
            folder.save_checkpoint(Checkpoint(9, 9, 9, {}))
    found = folder.load_checkpoint()
    assert found is not None
    assert (found.arm, found.metrics, found.clients) == (1, 2, 3)


def test_a_checkpoint_comes_back(folder: RunFolder):
    assert folder.load_checkpoint() is None
    folder.save_checkpoint(Checkpoint(1, 20, 30, STATE))
    found = folder.load_checkpoint()
    assert found is not None
    assert (found.arm, found.metrics, found.clients) == (1, 20, 30)
    assert found.state.keys() == STATE.keys()
    assert all(torch.equal(found.state[name], value) for name, value in STATE.items())


def test_the_same_state_is_the_same_file(folder: RunFolder):
    files = set()
    for _ in range(16):
        folder.save_checkpoint(Checkpoint(1, 20, 30, STATE))
        folder.save_state("a", 3, STATE)
        files.add(
            (folder.path / CHECKPOINT).read_bytes() + (folder.path / "states/a@3.safetensors").read_bytes()
        )
    assert len(files) == 1


def test_any_flipped_byte_of_a_checkpoint_is_noticed(folder: RunFolder):
    folder.save_checkpoint(Checkpoint(1, 20, 30, STATE))
    path = folder.path / CHECKPOINT
    whole = path.read_bytes()
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 4
        path.write_bytes(damaged)
        with pytest.raises(UserError, match=r"checkpoint\.safetensors is damaged: [^\n]+\Z"):
            folder.load_checkpoint()


@pytest.mark.parametrize("keep", [0, 1, 8, 50, -33, -1])
def test_a_cut_checkpoint_is_noticed(keep: int, folder: RunFolder):
    folder.save_checkpoint(Checkpoint(1, 20, 30, STATE))
    path = folder.path / CHECKPOINT
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UserError, match=r"checkpoint\.safetensors is damaged"):
        folder.load_checkpoint()


def test_lines(folder: RunFolder):
    assert folder.read_lines(METRICS) == []
    folder.truncate(METRICS, 0)
    assert not (folder.path / METRICS).exists()
    folder.append(METRICS, [{"a": 1}, {"a": "zwölf\n"}])
    folder.append(METRICS, [{"a": None}])
    assert folder.read_lines(METRICS) == [{"a": 1}, {"a": "zwölf\n"}, {"a": None}]
    folder.truncate(METRICS, 2)
    assert folder.read_lines(METRICS) == [{"a": 1}, {"a": "zwölf\n"}]
    folder.truncate(METRICS, 0)
    assert folder.read_lines(METRICS) == []


def test_a_torn_last_line_is_left_out(folder: RunFolder):
    folder.append(METRICS, [{"a": 1}, {"a": 2}])
    path = folder.path / METRICS
    path.write_bytes(path.read_bytes()[:-4])
    assert folder.read_lines(METRICS) == [{"a": 1}]
    folder.truncate(METRICS, 1)
    folder.append(METRICS, [{"a": 3}])
    assert folder.read_lines(METRICS) == [{"a": 1}, {"a": 3}]


@pytest.mark.parametrize(
    ("damage", "line"),
    [
        (lambda whole: whole[: len(whole) // 2], "is damaged: 1 lines, but the checkpoint knows 3"),
        (lambda whole: b"", "is damaged: 0 lines, but the checkpoint knows 3"),
        (lambda whole: b"x" + whole[1:], "is damaged"),
        (lambda whole: whole[:10] + b"\xff" + whole[11:], "is damaged"),
        (lambda whole: b"3\n" + whole, "is damaged"),
    ],
    ids=["cut", "empty", "no JSON", "no text", "no object"],
)
def test_damaged_lines_are_noticed(damage: Callable[[bytes], bytes], line: str, folder: RunFolder):
    folder.append(METRICS, [{"a": 1}, {"a": 2}, {"a": 3}])
    path = folder.path / METRICS
    path.write_bytes(damage(path.read_bytes()))

    def recover() -> None:
        folder.truncate(METRICS, 3)
        folder.read_lines(METRICS)

    with pytest.raises(UserError, match=rf"metrics\.jsonl {line}"):
        recover()


def test_missing_lines_are_noticed(folder: RunFolder):
    with pytest.raises(UserError, match=r"metrics\.jsonl is missing"):
        folder.truncate(METRICS, 1)


def test_states_come_back(folder: RunFolder):
    folder.save_state("star hwa mu=0.1", 3, STATE)
    assert torch.equal(folder.load_state("star hwa mu=0.1", 3)["params/w"], STATE["params/w"])


@pytest.mark.parametrize(
    ("first", "second"),
    [("a b", "a_b"), ("dechw*", "dechw_"), ("x/y", "x:y")],
    ids=["space", "star", "slash"],
)
def test_states_of_different_labels_are_kept_apart(first: str, second: str, folder: RunFolder):
    folder.save_state(first, 3, {"w": torch.zeros(1)})
    folder.save_state(second, 3, {"w": torch.ones(1)})
    assert [folder.load_state(label, 3)["w"].item() for label in (first, second)] == [0, 1]


def test_damaged_states_are_noticed(folder: RunFolder):
    folder.save_state("a", 3, STATE)
    (path,) = (folder.path / "states").iterdir()
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"safetensors is damaged"):
        folder.load_state("a", 3)


def test_an_existing_run_is_refused(folder: RunFolder):
    before = content(folder.path)
    with pytest.raises(UserError, match=r"holds a run already; .*consilience resume .*run.*--overwrite"):
        folder.prepare({"name": "run", "rounds": 3}, "refuse")
    assert content(folder.path) == before


@pytest.mark.parametrize(
    ("config", "fine"), [({"rounds": 3, "name": "run"}, True), ({"rounds": 4, "name": "run"}, False)]
)
def test_a_run_is_resumed_with_its_own_configuration_only(
    config: dict[str, Any], fine: bool, folder: RunFolder
):
    before = content(folder.path)
    if fine:
        folder.prepare(config, "resume")
    else:
        with pytest.raises(UserError, match="was made with another configuration"):
            folder.prepare(config, "resume")
    assert content(folder.path) == before


def test_overwriting_spares_what_is_not_ours(folder: RunFolder):
    folder.save_checkpoint(Checkpoint(1, 2, 3, STATE))
    folder.append(METRICS, [{"a": 1}])
    folder.save_state("a", 3, STATE)
    (folder.path / "notes.txt").write_text("mine")
    folder.prepare({"name": "run", "rounds": 8}, "overwrite")
    assert content(folder.path) == {CONFIG: with_footer("name: run\nrounds: 8\n"), "notes.txt": b"mine"}


def test_a_file_in_the_way(tmp_path: Path):
    (tmp_path / "run").write_text("a file")
    with pytest.raises((UserError, OSError)):
        RunFolder(tmp_path / "run").prepare({}, "refuse")
    assert content(tmp_path) == {"run": b"a file"}


def test_one_process_at_a_time(folder: RunFolder):
    second = RunFolder(folder.path).locked()
    with folder.locked(), pytest.raises(UserError, match="another process is working on"):
        second.__enter__()
    with folder.locked():
        pass


def test_numbers_that_are_not_finite_become_null():
    line = {"a": float("nan"), "b": [float("inf"), 1.5], "c": {"d": float("-inf")}, "e": (2,), "f": "nan"}
    assert finite_line(line) == {"a": None, "b": [None, 1.5], "c": {"d": None}, "e": [2], "f": "nan"}
    assert json_line(line) == '{"a": null, "b": [null, 1.5], "c": {"d": null}, "e": [2], "f": "nan"}'
