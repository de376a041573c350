"""Published files by name, read from their folder or straight from the archive they are published in."""

from __future__ import annotations

import gzip
import tarfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from consilience.errors import UserError, abridged, said
from consilience.reading import Bounded, content, member, unpacked

Parsed = TypeVar("Parsed")


@contextmanager
def readable(path: str | Path) -> Iterator[None]:
    """Turn whatever goes wrong while a user's file is read into one line that names it."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # of libraries that meet damaged files, too little memory, ...
        raise UserError(f"{path} cannot be read ({said(error)})") from None


def folder_of(path: object) -> Path:
    """The folder that somebody names; anything but a name is refused."""
    if isinstance(path, str | Path) and "\0" not in str(path):
        return Path(path)
    raise UserError(f"folder: the name of one is wanted, not {abridged(path)}")


@contextmanager
def blame(dataset: str, path: Path) -> Iterator[None]:
    """Turn whatever goes wrong while `path` is read into one line that names it and the remedy."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # damaged files make libraries raise all kinds of errors
        reason = f"lacks {said(error)}" if isinstance(error, KeyError) else said(error)
        raise UserError(
            f"{dataset}: {path} is damaged or unreadable ({reason}); "
            f"delete it and run `consilience data get {dataset}`"
        ) from None


def missing(dataset: str, *places: Path) -> UserError:
    """The error for a data set that is not there: any of `places` would have done."""
    expected = " or ".join(str(place) for place in places)
    return UserError(f"{dataset} is not here: expected {expected}; run `consilience data get {dataset}`")


@dataclass(frozen=True)
class Store:
    """The published files of one data set.

    Attributes:
        dataset: The name of the data set, for messages.
        place: The folder or the archive that holds the files.
        names: The names of all files there.
        content: What gives the bytes of one of `names`.
        most: How many bytes a file may have, also once it is decompressed.
    """

    dataset: str
    place: Path
    names: frozenset[str]
    content: Callable[[str], bytes]
    most: int

    def parse(self, name: str, parser: Callable[[bytes], Parsed]) -> Parsed:
        """What `parser` makes of the file `name`, or of `name.gz` decompressed."""
        published = name if name in self.names else f"{name}.gz"
        if published not in self.names:
            raise missing(self.dataset, self.place / name)
        with blame(self.dataset, self.place / published):
            data = self.content(published)
            return parser(unpacked(data, self.most) if published.endswith(".gz") else data)


@contextmanager
def opened(
    dataset: str, place: Path, inside: str | None, members: Sequence[str], most: int
) -> Iterator[Store]:
    """Give the published files of a data set, and close the archive that holds them afterwards.

    Args:
        dataset: The name of the data set, for messages.
        place: The folder that holds the files, or an archive.
        inside: The folder of the files inside the archive.
        members: The files that are needed of a tar archive.
        most: How many bytes a file may have, and all of a tar archive together, once decompressed.
    """
    with ExitStack() as stack:
        if place.is_dir():
            yield _folder_store(dataset, place, most)
        elif place.suffix == ".zip":
            with blame(dataset, place):
                archive = stack.enter_context(zipfile.ZipFile(place))
            yield _zip_store(dataset, place, archive, f"{inside}/", most)
        else:
            yield _tar_store(dataset, place, {f"{inside}/{name}": name for name in members}, most)


def _folder_store(dataset: str, folder: Path, most: int) -> Store:
    names = frozenset(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return Store(dataset, folder, names, lambda name: content(folder / name, most), most)


def _zip_store(dataset: str, place: Path, archive: zipfile.ZipFile, prefix: str, most: int) -> Store:
    names = frozenset(name.removeprefix(prefix) for name in archive.namelist() if name.startswith(prefix))
    return Store(dataset, place, names, lambda name: member(archive, prefix + name, most), most)


def _tar_store(dataset: str, place: Path, wanted: Mapping[str, str], most: int) -> Store:
    """A store of what is wanted, all read in one pass, because a compressed tar has no random access."""
    contents: dict[str, bytes] = {}
    with blame(dataset, place), gzip.open(place) as packed:
        whole = Bounded(packed, most)
        with tarfile.open(fileobj=whole, mode="r|") as archive:
            for entry in archive:
                stream = archive.extractfile(entry) if entry.name in wanted else None
                if stream is not None:
                    # A sparse file may be larger than the archive.
                    contents[wanted[entry.name]] = Bounded(stream, most).read()
        for _ in whole.blocks():
            pass  # gzip's checksum is behind the last byte: who stops before it never looks
    return Store(dataset, place, frozenset(contents), contents.__getitem__, most)
