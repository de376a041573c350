"""Data directories with a few rows in the published formats, and what is asked of every data set there."""

from __future__ import annotations

import io
import re
import tarfile
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from consilience.data import Dataset, load
from consilience.data.sets import Source, find
from consilience.errors import UserError

TRAIN, TEST = 6, 3

Content = bytes | dict[str, bytes]
"""What a file holds: bytes, or the files of an archive, which is packed as its name says."""


def packed(name: str, content: Content) -> bytes:
    if isinstance(content, bytes):
        return content
    buffer = io.BytesIO()
    if name.endswith((".zip", ".npz")):
        with zipfile.ZipFile(buffer, "w") as archive:
            for member, inside in content.items():
                archive.writestr(member, inside)
    else:
        with tarfile.open(fileobj=buffer, mode="w:gz") as tape:
            for member, inside in content.items():
                entry = tarfile.TarInfo(member)
                entry.size = len(inside)
                tape.addfile(entry, io.BytesIO(inside))
    return buffer.getvalue()


@pytest.fixture
def source_of() -> Callable[[str], Source]:
    """The published description of a data set, with the few rows written here."""
    return lambda name: replace(find(name), training_rows=TRAIN, test_rows=TEST)


@pytest.fixture
def put() -> Callable[[Path, dict[str, Content]], None]:
    """Writes files into a data directory."""

    def write(root: Path, files: dict[str, Content]) -> None:
        for name, content in files.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(packed(name, content))

    return write


@pytest.fixture
def loaded(put: Callable[..., None], source_of: Callable[[str], Source]) -> Callable[..., Dataset]:
    """Writes the files of a data set and reads it."""

    def read(name: str, files: dict[str, Content], root: Path) -> Dataset:
        put(root, files)
        dataset, source = source_of(name).read(root), find(name)
        assert (dataset.name, dataset.shape, dataset.outputs) == (source.name, source.shape, source.classes)
        assert (len(dataset.inputs), len(dataset.test_inputs)) == (TRAIN, TEST)
        assert dataset.inputs.dtype == torch.uint8
        return dataset

    return read


@pytest.fixture
def check_damage(
    put: Callable[..., None], source_of: Callable[[str], Source], tmp_path: Path
) -> Callable[..., None]:
    """A damaged file is one line that names it, the reason and the remedy."""

    def check(
        name: str, files: dict[str, Content], file: str, damage: Callable[[bytes], Content], reason: str
    ) -> None:
        put(tmp_path, {**files, file: damage(packed(file, files[file]))})
        with pytest.raises(UserError) as caught:
            source_of(name).read(tmp_path)
        line = str(caught.value)
        # A wrong number of rows is found when all files are read: then the folder is named.
        blamed = Path(file).parts[0] if "expected (6" in reason else file
        assert str(tmp_path / blamed) in line
        assert reason in line
        assert f"`consilience data get {name}`" in line
        assert "\n" not in line

    return check


@pytest.fixture
def check_missing(put: Callable[..., None], tmp_path: Path) -> Callable[..., None]:
    """A missing file is one line that names it and the remedy."""

    def check(name: str, files: dict[str, Content], file: str, expected: list[str]) -> None:
        put(tmp_path, {path: content for path, content in files.items() if path != file})
        with pytest.raises(UserError, match=f"run `consilience data get {name}`$") as caught:
            load(name, tmp_path)
        assert all(part in str(caught.value) for part in [str(tmp_path), *expected])
        assert "\n" not in str(caught.value)

    return check


@pytest.fixture
def check_member(
    put: Callable[..., None], source_of: Callable[[str], Source], tmp_path: Path
) -> Callable[..., None]:
    """An archive that lacks a member is one line that names both."""

    def check(name: str, archive: str, files: dict[str, bytes], member: str) -> None:
        put(tmp_path, {archive: files})
        with pytest.raises(UserError, match=re.escape(f"expected {tmp_path / archive / member}; run")):
            source_of(name).read(tmp_path)

    return check
