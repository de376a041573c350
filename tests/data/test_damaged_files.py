"""Files of data that are damaged, or made to take all memory: one line that names the file."""

from __future__ import annotations

import contextlib
import gzip
import importlib.util
import io
import json
import random
import struct
import tarfile
import tracemalloc
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import consilience as cs
from consilience import reading
from consilience.data.sets import find
from consilience.errors import UserError
from consilience.graphs.files import read_graph

LITTLE = 24_000_000
"""How many bytes may be taken to refuse a bomb, which would take far more."""
BOMB = 1 << 26
ROWS = np.random.default_rng(0).integers(0, 10, (9, 3073), dtype=np.uint8)
"""Rows of CIFAR-10: labels and pixels."""
FILES = dict(zip(find("cifar10").members, np.split(ROWS, [1, 2, 3, 4, 6]), strict=True))
CIFAR = "cifar-10-binary.tar.gz"


def tape(**sizes: int) -> bytes:
    """CIFAR-10 as a packed tar; files of other sizes than they have are longer, all zeros."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as archive:
        for name, rows in FILES.items():
            entry = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            data = rows.tobytes().ljust(sizes.get(name.partition(".")[0], 0), b"\0")
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return buffer.getvalue()


def sparse() -> bytes:
    """CIFAR-10 as a packed tar in which a file says that it is a hole of 2^60 bytes."""
    entry = tarfile.TarInfo("cifar-10-batches-bin/data_batch_1.bin")
    entry.pax_headers = {
        "GNU.sparse.major": "0",
        "GNU.sparse.minor": "1",
        "GNU.sparse.map": f"{2**60},0",
        "GNU.sparse.size": str(2**60),
    }
    return gzip.compress(entry.tobuf(tarfile.PAX_FORMAT) + tarfile.NUL * 2 * tarfile.BLOCKSIZE)


def cifar(root: Path) -> cs.Dataset:
    return replace(find("cifar10"), training_rows=6, test_rows=3).read(root)


def test_a_bit_that_flips_in_a_packed_archive_never_gives_other_data(tmp_path: Path):
    whole = tape()
    (tmp_path / CIFAR).write_bytes(whole)
    right = cifar(tmp_path).digest()
    places, refused = random.Random(0), 0
    for _ in range(100):
        damaged = bytearray(whole)
        damaged[places.randrange(len(whole))] ^= 1 << places.randrange(8)
        (tmp_path / CIFAR).write_bytes(damaged)
        try:
            assert cifar(tmp_path).digest() == right  # the header names the machine and the time
        except UserError:
            refused += 1
    assert refused >= 95


def npy(shape: tuple[int, ...], kind: str = "<f4", data: bytes = b"\0" * 64) -> bytes:
    """A file of NumPy whose header says what it likes."""
    buffer = io.BytesIO()
    np.lib.format.write_array_header_1_0(buffer, {"descr": kind, "fortran_order": False, "shape": shape})
    return buffer.getvalue() + data


LABELS = npy((4,), "<i8", b"\0" * 32)


def npz(**members: bytes) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, data in members.items():
            archive.writestr(f"{name}.npy", data)
    return buffer.getvalue()


def put(path: Path, data: bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def of_cifar(data: bytes) -> Callable[[Path], object]:
    def load(root: Path) -> object:
        put(root / CIFAR, data)
        return cifar(root)

    return load


def of_mnist(data: bytes) -> Callable[[Path], object]:
    def load(root: Path) -> object:
        for name in find("mnist").members:
            put(root / "mnist" / f"{name}.gz", data)
        return replace(find("mnist"), training_rows=6, test_rows=3).read(root)

    return load


def of_emnist(data: bytes) -> Callable[[Path], object]:
    def load(root: Path) -> object:
        source = find("emnist-mnist")
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(f"gzip/{source.members[0]}", data)
        put(root / "emnist/gzip.zip", buffer.getvalue())
        return replace(source, training_rows=6, test_rows=3).read(root)

    return load


def of_leaf(data: bytes) -> Callable[[Path], object]:
    def load(root: Path) -> object:
        put(root / "femnist/train/a.json", data)
        return find("femnist").read(root)

    return load


def of_folder(data: bytes) -> Callable[[Path], object]:
    return lambda root: cs.Dataset.from_folder(put(root / "Basel.npz", data).parent)


def of_array(data: bytes) -> Callable[[Path], object]:
    targets = np.zeros(4, dtype=np.int64)

    def load(root: Path) -> object:
        rows = np.zeros((4, 4), dtype=np.float32)
        return cs.Dataset.from_arrays("own", put(root / "x.npy", data), targets, rows, targets)

    return load


def of_image(data: bytes) -> Callable[[Path], object]:
    def load(root: Path) -> object:
        for number in range(4):
            put(root / f"cats/{number}.png", data)
        return cs.Dataset.from_images(root)

    return load


def of_table(name: str, data: bytes) -> Callable[[Path], object]:
    return lambda root: cs.Dataset.from_table(put(root / name, data), "y")


def of_graph(name: str, data: bytes) -> Callable[[Path], object]:
    return lambda root: read_graph(put(root / name, data))


def lying() -> bytes:
    """An archive that says that it holds an array of 4 MB, and has the checksum of the little it holds."""
    body = npy((10**6,))
    data = bytearray(npz(x=body, y=LABELS))
    size = struct.pack("<I", len(body) - 64 + 4 * 10**6)
    for mark, place in ((b"PK\x03\x04", 22), (b"PK\x01\x02", 24)):
        begin = data.index(mark) + place
        data[begin : begin + 4] = size
    return bytes(data)


def png(width: int, height: int) -> bytes:
    """The beginning of an image that says how large it is."""
    size = width.to_bytes(4, "big") + height.to_bytes(4, "big") + bytes([8, 2, 0, 0, 0])
    return b"\x89PNG\r\n\x1a\n" + (13).to_bytes(4, "big") + b"IHDR" + size + b"\0\0\0\0"


DEEP = b"[" * 100_000
DAMAGED: dict[str, tuple[Callable[[Path], object], str]] = {
    # What is read, and the file that the line must name.
    "gzip bomb in a tar": (of_cifar(tape(data_batch_2=BOMB)), CIFAR),
    "gzip bomb beside the files": (of_cifar(gzip.compress(bytes(BOMB))), CIFAR),
    "sparse tar": (of_cifar(sparse()), CIFAR),
    "gzip bomb": (of_mnist(gzip.compress(bytes(BOMB))), "train-images-idx3-ubyte.gz"),
    "zip bomb": (of_emnist(bytes(BOMB)), "train-images-idx3-ubyte"),
    "packed twice": (of_emnist(gzip.compress(bytes(BOMB))), "train-images-idx3-ubyte"),
    "deep JSON": (of_leaf(DEEP), "a.json"),
    "JSON of another form": (of_leaf(b'{"users": 5, "num_samples": [1]}'), "a.json"),
    "npz: header of 2^50": (of_folder(npz(x=npy((2**50,)), y=LABELS)), "Basel.npz"),
    "npz: header beyond 64 bits": (of_folder(npz(x=npy((2**62, 2**62)), y=LABELS)), "Basel.npz"),
    "npz: less than it says": (of_folder(lying()), "Basel.npz"),
    "npz: negative": (of_folder(npz(x=npy((-1, -16)), y=LABELS)), "Basel.npz"),
    "npz: objects": (of_folder(npz(x=npy((4,), "|O"), y=LABELS)), "Basel.npz"),
    "npz: no zip": (of_folder(b"PK\x03\x04" + bytes(50)), "Basel.npz"),
    "npy: header of 2^50": (of_array(npy((2**50,))), "x.npy"),
    "npy: header beyond 64 bits": (of_array(npy((2**62, 2**62))), "x.npy"),
    "npy: deep header": (of_array(b"\x93NUMPY\x01\x00\x10\x27" + b"(" * 10_000), "x.npy"),
    "npy: an archive": (of_array(npz(x=LABELS)), "x.npy"),
    "an image of 10^18 pixels": (of_image(png(10**9, 10**9)), ".png"),
    "an image that breaks off": (of_image(png(8, 8)), ".png"),
    "CSV: a quote without an end": (of_table("t.csv", b'a,y\n"' + b"x" * 200_000), "t.csv"),
    "CSV: no text": (of_table("t.csv", b"a,y\n\xff\xfe"), "t.csv"),
    "Parquet": (of_table("t.parquet", b"PAR1" + bytes(40) + b"PAR1"), "t.parquet"),
    "graph: deep JSON": (of_graph("g.json", DEEP), "g.json"),
    "graph: deep GraphML": (of_graph("g.graphml", b"<graphml>" + b"<g>" * 50_000), "g.graphml"),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_file_is_one_line_and_little_memory(case: str, tmp_path: Path):
    load, name = DAMAGED[case]
    with contextlib.suppress(UserError):
        load(tmp_path)  # what is imported does not count
    tracemalloc.start()
    try:
        with pytest.raises(UserError) as caught:
            load(tmp_path)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    line = str(caught.value)
    assert name in line
    assert "\n" not in line
    assert len(line) < 500
    assert peak < LITTLE


def test_files_of_a_folder_may_not_take_more_than_half_the_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    for client in "AB":
        put(tmp_path / f"{client}.npz", npz(x=npy((4, 4)), y=LABELS))
    monkeypatch.setattr("consilience.reading.machine_memory", lambda: 800)
    with pytest.raises(UserError, match=r"B\.npz cannot be read \(it holds more than 304 bytes\)"):
        cs.Dataset.from_folder(tmp_path, holdout=0.5)


def test_a_table_of_a_billion_rows_is_refused_before_it_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    if importlib.util.find_spec("pyarrow") is None:
        pytest.skip("pyarrow is not installed")
    import pyarrow
    from pyarrow import parquet

    path = tmp_path / "t.parquet"
    parquet.write_table(pyarrow.table({"a": np.zeros(10_000), "y": np.zeros(10_000)}), path)
    monkeypatch.setattr("consilience.data.own.tables.machine_memory", lambda: 200_000)
    with pytest.raises(UserError, match=r"10,000 rows of 2 columns take more than 100,000 bytes"):
        cs.Dataset.from_table(path, "y")


def test_arrays_are_read_as_numpy_reads_them(tmp_path: Path):
    random = np.random.default_rng(0)
    given = {
        "plain": random.normal(size=(3, 4)),
        "transposed": np.asfortranarray(random.normal(size=(3, 4))),
        "bytes": random.integers(0, 255, (2, 3), dtype=np.uint8),
        "empty": np.empty((0, 3)),
        "single": np.float32(3),
    }
    np.savez(tmp_path / "a.npz", **given)
    found = reading.arrays(tmp_path / "a.npz", 10_000)
    assert found.keys() == given.keys()
    for name, array in given.items():
        np.testing.assert_array_equal(found[name], array)
        assert found[name].dtype == array.dtype
        assert found[name].flags.writeable


def test_just_enough_is_read_and_a_byte_more_is_refused():
    assert reading.unpacked(gzip.compress(bytes(10)), 10) == bytes(10)
    with pytest.raises(ValueError, match="more than 9 bytes"):
        reading.unpacked(gzip.compress(bytes(10)), 9)
    assert json.loads("[1]") == reading.parse_json("[1]")
