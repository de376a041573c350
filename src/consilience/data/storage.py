"""Published files by name, read from their folder or straight from the archive they are published in."""

from __future__ import annotations

import gzip
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from consilience.data.sources import Source
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
    """The line for a data set that is not there: any of `places` would have done."""
    expected = " or ".join(str(place) for place in places)
    return UserError(f"{dataset} is not here: expected {expected}; run `consilience data get {dataset}`")


@dataclass(frozen=True)
class Store:
    """The published files of one data set.

    Attributes:
        dataset: Name of the data set, for messages.
        place: The folder or the archive that holds the files.
        names: Every file there.
        content: Gives the bytes of one of `names`.
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


def locate(source: Source, root: Path) -> Path | None:
    """The folder that holds every member, else the published archive, else None."""
    if _first_absent(source, root) is None:
        return root / source.folder
    archive = _archive(source, root)
    return archive if archive is not None and archive.is_file() else None


@contextmanager
def opened(source: Source, root: Path) -> Iterator[Store]:
    """The data set's files under the data directory `root`, or one line that says what is missing."""
    place = locate(source, root)
    if place is None:
        absent, archive = _first_absent(source, root), _archive(source, root)
        raise missing(source.name, *(path for path in (absent, archive) if path is not None))
    with ExitStack() as stack:
        if place.is_dir():
            yield _folder_store(source, place)
        elif place.suffix == ".zip":
            with blame(source.name, place):
                archive_file = stack.enter_context(zipfile.ZipFile(place))
            yield _zip_store(source, place, archive_file)
        else:
            yield _tar_store(source, place)


def _archive(source: Source, root: Path) -> Path | None:
    return None if source.inside is None else root / source.files[0].path


def _first_absent(source: Source, root: Path) -> Path | None:
    for member in source.members:
        plain, packed = root / source.folder / member, root / source.folder / f"{member}.gz"
        if not plain.is_file() and not packed.is_file():
            return packed if source.inside is None else plain
    return None


def _folder_store(source: Source, folder: Path) -> Store:
    names = frozenset(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return Store(source.name, folder, names, lambda name: (folder / name).read_bytes())


def _zip_store(source: Source, place: Path, archive: zipfile.ZipFile) -> Store:
    prefix = f"{source.inside}/"
    names = frozenset(name.removeprefix(prefix) for name in archive.namelist() if name.startswith(prefix))
    return Store(source.name, place, names, lambda name: archive.read(prefix + name))


def _tar_store(source: Source, place: Path) -> Store:
    """Only the members, all read in one pass, because a compressed tar has no random access."""
    wanted = {f"{source.inside}/{member}": member for member in source.members}
    contents: dict[str, bytes] = {}
    with blame(source.name, place), tarfile.open(place, "r|gz") as archive:
        for entry in archive:
            stream = archive.extractfile(entry) if entry.name in wanted else None
            if stream is not None:
                contents[wanted[entry.name]] = stream.read()
    return Store(source.name, place, frozenset(contents), contents.__getitem__)
