"""Files that may hold anything, read within limits: what is too large is refused before it is in memory.

What is wrong is a ValueError, which whoever reads a file turns into a line that names it.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Literal, Protocol, final

import numpy as np
import numpy.typing as npt

BLOCK = 1 << 20
"""How many bytes are read at a time."""


def machine_memory() -> int:
    """How many bytes of memory this machine has."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


class Reads(Protocol):
    """What gives bytes."""

    def read(self, size: int, /) -> bytes:
        """So many of the next ones, or fewer at the end."""
        ...


@final
class Bounded(io.RawIOBase):
    """What another stream gives, up to a number of bytes; more is a ValueError, at once."""

    def __init__(self, inner: Reads, most: int) -> None:
        self.inner, self.most, self.left = inner, most, most

    def read(self, size: int = -1, /) -> bytes:
        """So many of the next bytes, or fewer at the end; by default all that are left."""
        if size < 0:
            return b"".join(self.blocks())
        # A byte more than is allowed, so that too much is told from just enough.
        found = self.inner.read(min(size, self.left + 1))
        if len(found) > self.left:
            raise ValueError(f"it holds more than {self.most:,} bytes")
        self.left -= len(found)
        return found

    def blocks(self) -> Iterator[bytes]:
        """All that is left, in blocks: nobody has to believe what the stream says of its length."""
        while block := self.read(BLOCK):
            yield block


def content(path: Path, most: int) -> bytes:
    """The bytes of a file, of which there may be so many."""
    with path.open("rb") as file:
        stream = Bounded(file, most)
        return b"".join([stream.read(os.fstat(file.fileno()).st_size), *stream.blocks()])


def unpacked(packed: bytes, most: int) -> bytes:
    """What gzip has packed, whose checksum is checked; it may have so many bytes."""
    with gzip.GzipFile(fileobj=io.BytesIO(packed)) as stream:
        return Bounded(stream, most).read()


def member(archive: zipfile.ZipFile, name: str, most: int) -> bytes:
    """A file of a zip archive, whose checksum is checked; it may have so many bytes."""
    with archive.open(name) as stream:
        return Bounded(stream, most).read()


def parse_json(text: str | bytes) -> Any:
    """What JSON stands for; what nests too deeply is a ValueError, as whatever else is wrong."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it nests too deeply") from None


def arrays(
    file: Path | IO[bytes], most: int, names: Sequence[str] | None = None
) -> dict[str, npt.NDArray[Any]]:
    """The arrays in one of NumPy's `.npz` files by name, which may have so many bytes together.

    Objects are refused, and so are arrays that are not as large as their headers say.

    Args:
        file: The file.
        most: How many bytes all of it may have, decompressed.
        names: Which arrays are needed, by default all; one that is not there is a KeyError.
    """
    with zipfile.ZipFile(file) as archive:
        if sum(entry.file_size for entry in archive.infolist()) > most:
            raise ValueError(f"it holds more than {most:,} bytes")
        held = {name.removesuffix(".npy"): name for name in archive.namelist()}
        files = held if names is None else {name: held[name] for name in names}
        return {name: _array(archive, path) for name, path in files.items()}


def mapped(path: Path) -> npt.NDArray[Any]:
    """The array in an `.npy` file, whose pages are read as they are looked at; see `arrays`."""
    with path.open("rb") as file:
        shape, kind, order = _header(file, os.fstat(file.fileno()).st_size)
        return np.memmap(file, kind, "r", file.tell(), shape, order)


def _array(archive: zipfile.ZipFile, name: str) -> npt.NDArray[Any]:
    """The array in an `.npy` file of a zip archive, whose checksum is checked."""
    with archive.open(name) as stream:
        shape, kind, order = _header(stream, archive.getinfo(name).file_size)
        found = np.empty(math.prod(shape) * kind.itemsize, dtype=np.uint8)
        place = found.data
        while block := stream.read(BLOCK):
            place[: len(block)] = block
            place = place[len(block) :]
    if len(place):  # the archive says of itself how much it holds
        raise ValueError(f"it breaks off {len(place):,} bytes before its end")
    return found.view(kind).reshape(shape, order=order)


def _header(stream: IO[bytes], size: int) -> tuple[tuple[int, ...], np.dtype[Any], Literal["C", "F"]]:
    """What an `.npy` file of so many bytes holds, as its header says: the shape, the type and the order."""
    headers = {
        (1, 0): np.lib.format.read_array_header_1_0,
        (2, 0): np.lib.format.read_array_header_2_0,
    }
    version = np.lib.format.read_magic(stream)
    if version not in headers:
        raise ValueError(f"it is of NumPy's format {version}, in which no plain numbers are written")
    shape, transposed, kind = headers[version](stream)
    if kind.hasobject:
        raise ValueError("it holds objects, which are not read")
    held = size - stream.tell()
    if min(shape, default=0) < 0 or math.prod(map(int, shape)) * kind.itemsize != held:
        raise ValueError(f"{held:,} bytes do not make an array of {kind} of shape {shape}")
    return shape, kind, "F" if transposed else "C"
