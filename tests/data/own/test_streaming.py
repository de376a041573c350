"""Data larger than memory: the same batches, results and digests as of data that are held in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import consilience as cs
from consilience.config import read_config
from consilience.data.stored import Joined, Kept, Mapped, Stored
from consilience.experiment import storing
from consilience.types import IntArray

RANDOM = np.random.default_rng(0)
POINTS, CLASSES = RANDOM.normal(size=(90, 6)).astype(np.float32), np.arange(90) % 3
IMAGES = RANDOM.integers(0, 256, (90, 8, 6, 3), dtype=np.uint8)
TINY: dict[str, Any] = {
    "model": {"name": "mlp", "hidden": [4]},
    "clients": 4,
    "rounds": 2,
    "local": {"epochs": 1, "batch_size": 8},
}


def run(data: cs.Dataset, resident: str, **settings: Any) -> cs.Result:
    section = {"name": data.name, "own": data, "resident": resident, "normalize": "standard"}
    return cs.run("hwa", data=section, **{**TINY, **settings})


def saved(folder: Path, inputs: np.ndarray) -> cs.Dataset:
    """The data set of arrays in files."""
    for name, array in (("train", inputs[:70]), ("test", inputs[70:])):
        np.save(folder / f"{name}.npy", array)
    files = (str(folder / "train.npy"), CLASSES[:70], folder / "test.npy", CLASSES[70:])
    return cs.Dataset.from_arrays("stored", *files)


@pytest.fixture
def two_workers() -> Iterator[None]:
    """What makes runs use two processes of their own."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("executor", ["batched", "sequential"])
@pytest.mark.parametrize("inputs", [POINTS, IMAGES], ids=["points", "images"])
def test_mapped_files_give_the_results_of_arrays(tmp_path: Path, inputs, executor: str):
    mapped = saved(tmp_path, inputs)
    arrays = cs.Dataset.from_arrays("held", inputs[:70], CLASSES[:70], inputs[70:], CLASSES[70:])
    assert isinstance(mapped.inputs, Mapped)
    assert mapped.digest() == arrays.digest()
    held = run(arrays, "always", executor=executor)
    assert run(mapped, "never", executor=executor).digest == held.digest
    assert run(mapped, "always", executor=executor).digest == held.digest
    assert run(arrays, "never", executor=executor).digest == held.digest  # too large for a GPU, say


@pytest.mark.usefixtures("two_workers")
def test_worker_processes_read_for_themselves(tmp_path: Path):
    mapped = saved(tmp_path, POINTS)
    digests = {
        cs.run("fedavg", data={"name": "stored", "own": mapped, "resident": resident}, **TINY).digest
        for resident in ("never", "always")
    }
    assert len(digests) == 1


class Counted(Stored):
    """Rows that remember how many were asked for at a time."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.kept, self.most = Kept(tensor), 0
        self.shape, self.dtype = tensor.shape, tensor.dtype

    def rows(self, numbers: IntArray) -> torch.Tensor:
        self.most = max(self.most, len(numbers))
        return self.kept.rows(numbers)


def test_rows_are_read_as_batches_need_them(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("consilience.learning.batches.READ_BYTES", 8 * 6 * 4)  # one batch
    inputs, few = Counted(torch.from_numpy(POINTS)), torch.from_numpy(POINTS[:5])
    targets = torch.from_numpy(CLASSES)
    data = cs.Dataset("counted", inputs, targets, few, targets[:5], 3)
    inputs.most = 0
    section = {"name": "counted", "own": data, "resident": "never"}
    cs.run("fedavg", data=section, lanes=1, evaluate={"clients": False}, **TINY)
    assert inputs.most == 8


def test_the_choice_follows_from_the_size_and_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
):
    mapped = saved(tmp_path, POINTS)
    config = read_config({"data": mapped})
    assert not storing.is_streamed(config, mapped)
    assert not caplog.messages
    monkeypatch.setattr(storing, "usual_memory", lambda _: 2 * POINTS.nbytes - 2)
    assert storing.is_streamed(config, mapped)
    (said,) = caplog.messages
    assert said.startswith(
        "stored: inputs take 2.16e-06 GB, more than half of the 4.32e-06 GB of this machine"
    )
    arrays = cs.Dataset.from_arrays("held", POINTS, CLASSES, POINTS, CLASSES)
    assert not storing.is_streamed(read_config({"data": arrays}), arrays)  # they are in memory already
    caplog.clear()
    result = cs.run(["fedavg", "hwa"], data=mapped, **TINY)
    assert len(caplog.messages) == 1  # not once a method
    monkeypatch.undo()
    assert result.digest == cs.run(["fedavg", "hwa"], data=mapped, **TINY).digest


def test_clients_may_have_files_of_their_own(tmp_path: Path):
    clients = {}
    for number, name in enumerate(["Basel", "Bern"]):
        rows = slice(45 * number, 45 * number + 45)
        np.save(tmp_path / f"{name}.npy", IMAGES[rows])
        clients[name] = (tmp_path / f"{name}.npy", CLASSES[rows], IMAGES[rows][:5], CLASSES[rows][:5])
    data = cs.Dataset.from_clients(clients)
    assert isinstance(data.inputs, Joined)
    assert torch.equal(data.inputs[:], torch.from_numpy(IMAGES).permute(0, 3, 1, 2))
    some = np.array([80, 3, 44, 45, 3])
    assert torch.equal(data.inputs.rows(some), data.inputs[:][some])
    settings = {**TINY, "clients": 2}
    assert run(data, "never", **settings).digest == run(data, "always", **settings).digest


def draw(folder: Path, images: np.ndarray, names: list[str]) -> None:
    pillow = pytest.importorskip("PIL.Image")
    for number, (pixels, name) in enumerate(zip(images, names, strict=True)):
        (folder / name).mkdir(parents=True, exist_ok=True)
        pillow.fromarray(pixels).save(folder / name / f"{number:03}.png")


def test_a_folder_of_images(tmp_path: Path):
    kinds = [f"kind {kind}" for kind in np.sort(CLASSES)]
    draw(tmp_path / "train", IMAGES, kinds)
    draw(tmp_path / "test", IMAGES[::9], kinds[::9])
    data = cs.Dataset.from_images(tmp_path / "train", tmp_path / "test")
    targets = np.sort(CLASSES)
    arrays = cs.Dataset.from_arrays("held", IMAGES, targets, IMAGES[::9], targets[::9])
    assert (data.name, data.digest()) == ("train", arrays.digest())
    assert run(data, "never").digest == run(arrays, "always").digest


def test_a_folder_of_clients_with_images(tmp_path: Path):
    grey = RANDOM.integers(0, 256, (40, 5, 5), dtype=np.uint8)
    names = [f"{client}/{kind}" for client in ("Basel", "Bern") for kind in ("cat", "dog") for _ in range(10)]
    draw(tmp_path, grey, names)
    data = cs.Dataset.from_images(tmp_path, by_client=True, size=(np.int64(6), 7))  # type: ignore[arg-type]
    assert (data.shape, data.clients, data.outputs) == ((1, 6, 7), ("Basel", "Bern"), 2)
    assert torch.bincount(data.test_groups).tolist() == [4, 4]
    assert run(data, "auto", **{**TINY, "clients": 2}).accuracy is not None


def test_images_that_do_not_fit_are_named(tmp_path: Path):
    draw(tmp_path, IMAGES[:4], ["a", "a", "b", "b"])
    draw(tmp_path, np.zeros((1, 3, 3, 3), dtype=np.uint8), ["c"])
    data = cs.Dataset.from_images(tmp_path, holdout=0.3)
    with pytest.raises(cs.UserError, match=r"000\.png is 3x3, but the first image is 8x6; say size=.8, 6"):
        data.digest()
    with pytest.raises(cs.UserError, match="there are no images; they should be in CLIENT/CLASS/IMAGE"):
        cs.Dataset.from_images(tmp_path, by_client=True)
    with pytest.raises(cs.UserError, match=r"size is \(height, width\), two whole numbers, not 8"):
        cs.Dataset.from_images(tmp_path, size=8)  # type: ignore[arg-type]
    (tmp_path / "c" / "000.png").unlink()
    with pytest.raises(cs.UserError, match=r"^[^(]*000\.png cannot be read \(\[Errno 2\] No such file"):
        data.digest()
    with pytest.raises(cs.UserError, match=r"nothing\.npy is no \.npy file"):
        cs.Dataset.from_arrays("x", tmp_path / "nothing.npy", CLASSES, POINTS, CLASSES)


def test_a_file_that_becomes_shorter_does_not_end_the_process(tmp_path: Path):
    data = saved(tmp_path, POINTS)
    file = next(tmp_path.glob("*.npy"))
    for path in tmp_path.glob("*.npy"):
        np.save(path, POINTS[:1])
    with pytest.raises(cs.UserError, match=rf"{file.parent.name}.*npy has become shorter"):
        run(data, "never")
