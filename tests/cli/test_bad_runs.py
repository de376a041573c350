"""Runs that exist are not touched by bad input: one clear line, exit code 2, and nothing is lost."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from consilience.config.config import read_config
from consilience.experiment import Arm, Listener
from consilience.experiment import execution as experiment
from consilience.experiment.folder import RunFolder
from consilience.experiment.sealing import FOOTER, with_footer


class _Stop(Listener):
    def __init__(self) -> None:
        self.left = 3

    def round(self, arm: Arm, lines: list[dict[str, Any]]) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def interrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of four rounds that was stopped in the third, after a checkpoint."""
    values = {
        "method": "scaffold",
        "model": {"name": "mlp", "hidden": [8]},
        "clients": 3,
        "rounds": 4,
        "local": {"steps": 2},
        "checkpoint": {"every": 2},
    }
    path = tmp_path_factory.mktemp("runs") / "run"
    with pytest.raises(KeyboardInterrupt):
        experiment.run(read_config(values), folder=RunFolder(path), listener=_Stop())
    return path


@pytest.fixture
def run(interrupted: Path, tmp_path: Path) -> Path:
    """A copy of that run."""
    return Path(shutil.copytree(interrupted, tmp_path / "run"))


def content(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != ".lock"
    }


def test_an_existing_run(run: Path, command: Callable[..., Any], tiny: Path, refused: Callable[..., None]):
    before = content(run)
    answer = command("run", tiny, f"out={run.parent}", "name=run")
    refused(answer, f"{run} holds a run already")
    assert f"consilience resume {run}" in answer.err
    assert "--overwrite" in answer.err
    assert content(run) == before


def flipped(position: float) -> Callable[[bytes], bytes]:
    def flip(whole: bytes) -> bytes:
        place = int(position * (len(whole) - 1))
        return whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :]

    return flip


def resealed(whole: bytes, old: str, new: str) -> bytes:
    """A configuration that was changed, with the digest of what it is now."""
    return with_footer(whole.decode().rpartition(FOOTER)[0].replace(old, new))


DAMAGES = [
    *(
        ("checkpoint.safetensors", flipped(share), "checkpoint.safetensors is damaged")
        for share in (0, 0.01, 0.5, 1)
    ),
    ("checkpoint.safetensors", lambda whole: whole[:-1], "checkpoint.safetensors is damaged"),
    ("checkpoint.safetensors", lambda whole: whole[:100], "checkpoint.safetensors is damaged"),
    ("checkpoint.safetensors", lambda whole: b"", "checkpoint.safetensors is damaged"),
    ("metrics.jsonl", lambda whole: b"", "metrics.jsonl is damaged: 0 lines, but the checkpoint knows 2"),
    (
        "metrics.jsonl",
        lambda whole: whole[:50],
        "metrics.jsonl is damaged: 0 lines, but the checkpoint knows 2",
    ),
    ("metrics.jsonl", lambda whole: b"x" + whole[1:], "metrics.jsonl is damaged"),
    (
        "metrics.jsonl",
        lambda whole: whole.replace(b"star", b"st\xffr"),
        "metrics.jsonl is damaged",
    ),
    ("metrics.jsonl", lambda whole: b"7\n" + whole, "metrics.jsonl is damaged"),
    ("config.yaml", lambda whole: b"{", "config.yaml is damaged or was edited"),
    ("config.yaml", lambda whole: b"", "config.yaml is damaged or was edited"),
    (
        "config.yaml",
        lambda whole: whole.replace(b"rounds", b"roundz"),
        "config.yaml is damaged or was edited",
    ),
    ("config.yaml", lambda whole: with_footer("{"), "config.yaml is not valid YAML"),
    ("config.yaml", lambda whole: with_footer(""), "config.yaml: expected keys and values"),
    ("config.yaml", lambda whole: resealed(whole, "rounds", "roundz"), "unknown key 'roundz'"),
]


@pytest.mark.parametrize(("name", "damage", "line"), DAMAGES)
def test_damaged_files(
    name: str,
    damage: Callable[[bytes], bytes],
    line: str,
    run: Path,
    command: Callable[..., Any],
    refused: Callable[..., None],
):
    path = run / name
    path.write_bytes(damage(path.read_bytes()))
    before = content(run)
    refused(command("resume", run), line)
    assert content(run) == before


def test_a_missing_file(run: Path, command: Callable[..., Any], refused: Callable[..., None]):
    (run / "metrics.jsonl").unlink()
    refused(command("resume", run), "metrics.jsonl is missing")


@pytest.mark.parametrize(
    ("old", "new"), [("- 8", "- 9"), ("clients: 3", "clients: 4"), ("lr: 0.01", "lr: 0.02")]
)
def test_a_configuration_that_was_changed_in_between(
    old: str, new: str, run: Path, command: Callable[..., Any], refused: Callable[..., None]
):
    path = run / "config.yaml"
    assert old in path.read_text()
    path.write_bytes(resealed(path.read_bytes(), old, new))
    before = content(run)
    refused(command("resume", run), "was made with another configuration")
    assert content(run) == before


@pytest.mark.parametrize("name", ["empty", "absent", "file"])
def test_resuming_where_there_is_no_run(
    name: str, command: Callable[..., Any], tmp_path: Path, refused: Callable[..., None]
):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("mine")
    refused(command("resume", tmp_path / name), f"{tmp_path / name} does not hold a run")
    assert not (tmp_path / "absent").exists()
    assert list((tmp_path / "empty").iterdir()) == []


def test_a_run_that_another_process_works_on(
    run: Path, command: Callable[..., Any], tmp_path: Path, refused: Callable[..., None]
):
    config = tmp_path / "same.yaml"
    config.write_text(
        yaml.safe_dump({**yaml.safe_load((run / "config.yaml").read_text()), "out": str(run.parent)})
    )
    before = content(run)
    with RunFolder(run).locked():
        refused(command("resume", run), f"another process is working on {run}")
        refused(command("run", config, "--overwrite"), f"another process is working on {run}")
    assert content(run) == before


@pytest.mark.parametrize("room", [0, 2, 3, 4])
def test_a_full_disk(
    room: int, run: Path, command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch, interrupted: Path
):
    calls = 0
    sync = os.fsync

    def fsync(handle: int) -> None:
        nonlocal calls
        calls += 1
        if calls > room:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        sync(handle)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        answer = command("resume", run)
    assert (answer.code, answer.err.count("\n")) == (2, 1)
    assert "No space left on device" in answer.err
    assert RunFolder(run).load_checkpoint() is not None
    assert command("resume", run).code == 0
