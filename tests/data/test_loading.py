"""Known data sets by name, and where they are kept."""

from __future__ import annotations

from pathlib import Path

import pytest

from consilience.data import data_directory, describe, load
from consilience.errors import UserError


def test_the_data_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CONSILIENCE_DATA", "~/data")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert data_directory() == tmp_path / "data"
    assert data_directory(Path("here")) == Path("here")
    monkeypatch.setenv("CONSILIENCE_DATA", "")
    assert data_directory().name == "consilience"


def test_the_catalogue_says_what_is_present(tmp_path: Path):
    present = {listing.source.name: listing.present for listing in describe(tmp_path)}
    assert [name for name, there in present.items() if there] == ["mnist-sample"]
    assert set(present) == {
        "mnist-sample", "mnist", "fashion-mnist", "cifar10", "cifar100", "tiny-imagenet", "femnist",
        "femnist-letters",
        *(f"emnist-{split}" for split in ("balanced", "byclass", "bymerge", "digits", "letters", "mnist")),
    }  # fmt: skip
    (tmp_path / "femnist-3w.npz").touch()
    (tmp_path / "cifar-10-binary.tar.gz").touch()
    present = {listing.source.name: listing.present for listing in describe(tmp_path)}
    assert [name for name, there in present.items() if there] == [
        "cifar10",
        "femnist",
        "femnist-letters",
        "mnist-sample",
    ]


def test_an_unknown_data_set_is_refused():
    with pytest.raises(UserError, match="unknown data set 'cifar'; did you mean 'cifar10'"):
        load("cifar")
