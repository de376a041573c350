"""Published files by name, read from their folder or straight from the archive they are published in."""

from __future__ import annotations

import gzip
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from consilience.errors import UserError

Parsed = TypeVar("Parsed")


@contextmanager
def blame(dataset: str, path: Path) -> Iterator[None]:
    """Turn whatever goes wrong while `path` is read into one line that names it and the remedy."""
    try:
        yield
    except UserError:
        raise
    except (
        OSError,
        ValueError,
        TypeError,
        KeyError,
        EOFError,
        zlib.error,
        zipfile.BadZipFile,
        tarfile.TarError,
    ) as error:
        said = " ".join(f"{error}".split()) or type(error).__name__
        reason = f"lacks {said}" if isinstance(error, KeyError) else said
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
    """

    dataset: str
    place: Path
    names: frozenset[str]
    content: Callable[[str], bytes]

    def parse(self, name: str, parser: Callable[[bytes], Parsed]) -> Parsed:
        """What `parser` makes of the file `name`, or of `name.gz` decompressed."""
        published = name if name in self.names else f"{name}.gz"
        if published not in self.names:
            raise missing(self.dataset, self.place / name)
        with blame(self.dataset, self.place / published):
            content = self.content(published)
            return parser(gzip.decompress(content) if published.endswith(".gz") else content)


@contextmanager
def opened(dataset: str, place: Path, inside: str | None, members: Sequence[str]) -> Iterator[Store]:
    """Give the published files of a data set, and close the archive that holds them afterwards.

    Args:
        dataset: The name of the data set, for messages.
        place: The folder that holds the files, or an archive.
        inside: The folder of the files inside the archive.
        members: The files that are needed of a tar archive.
    """
    with ExitStack() as stack:
        if place.is_dir():
            yield _folder_store(dataset, place)
        elif place.suffix == ".zip":
            with blame(dataset, place):
                archive = stack.enter_context(zipfile.ZipFile(place))
            yield _zip_store(dataset, place, archive, f"{inside}/")
        else:
            yield _tar_store(dataset, place, {f"{inside}/{member}": member for member in members})


def _folder_store(dataset: str, folder: Path) -> Store:
    names = frozenset(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return Store(dataset, folder, names, lambda name: (folder / name).read_bytes())


def _zip_store(dataset: str, place: Path, archive: zipfile.ZipFile, prefix: str) -> Store:
    names = frozenset(name.removeprefix(prefix) for name in archive.namelist() if name.startswith(prefix))
    return Store(dataset, place, names, lambda name: archive.read(prefix + name))


def _tar_store(dataset: str, place: Path, wanted: Mapping[str, str]) -> Store:
    """A store of what is wanted, all read in one pass, because a compressed tar has no random access."""
    contents: dict[str, bytes] = {}
    with blame(dataset, place), tarfile.open(place, "r|gz") as archive:
        for entry in archive:
            stream = archive.extractfile(entry) if entry.name in wanted else None
            if stream is not None:
                contents[wanted[entry.name]] = stream.read()
    return Store(dataset, place, frozenset(contents), contents.__getitem__)
