"""Download the published files of a data set: resumed where cut, checked against the published digest."""

from __future__ import annotations

import hashlib
import http.client
import os
import re
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from urllib.parse import urlsplit

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)

from consilience.data.sets import PublishedFile, data_directory, find
from consilience.environment import Environment
from consilience.errors import UserError

Report = Callable[[str, int, int | None], None]
"""What is called with a file's name, the bytes there so far and the bytes in all (None if unknown)."""

BLOCK = 1 << 18
"""How many bytes are read at a time."""
TIMEOUT_SECONDS = 30.0
ATTEMPTS = 5
"""How often a transfer is tried that was cut."""
LOOPBACK = frozenset({"127.0.0.1", "::1", "localhost"})
"""The hosts that are this machine."""


def get(
    name: str, root: Path | None = None, mirror: str | None = None, progress: Report | None = None
) -> list[Path]:
    """Download what is missing of a data set and return its files.

    Args:
        name: A name of the catalogue.
        root: The data directory; by default the variable CONSILIENCE_DATA or the user's cache directory.
        mirror: An address to fetch `MIRROR/FILENAME` from in place of the published one; by default the
            variable CONSILIENCE_MIRROR. It must be https, except on this machine.
        progress: What is called as bytes arrive; by default there is a progress bar on a terminal and one
            line a file elsewhere.
    """
    source, directory = find(name), data_directory(root)
    advice = source.advice(directory)
    if advice is not None:
        raise UserError(advice)
    base = mirror or Environment().mirror
    pending = [file for file in source.files if _fault(directory / file.path, file) is not None]
    with _reporting(progress) as report:
        for position, file in enumerate(pending):
            url = _secure(f"{base.rstrip('/')}/{file.name}" if base else file.url)
            try:
                fetch(file, url, directory / file.path, report)
            except UserError:
                raise
            except (OSError, http.client.HTTPException, ValueError) as error:  # of addresses and lengths, say
                raise UserError(_by_hand(url, error, pending[position:], directory)) from None
    return [directory / file.path for file in source.files]


def fetch(file: PublishedFile, url: str, target: Path, report: Report) -> None:
    """Bring one file from `url` to `target`, which appears only when it is whole and right.

    What arrives is kept in `target.part`, so that a later call resumes a cut transfer.

    Args:
        file: What is published.
        url: Where to fetch it.
        target: Where to put it.
        report: What is called as bytes arrive.

    Raises:
        UserError: The content is not what is published; the part file is deleted.
        OSError: The server cannot be reached, or the transfer was cut; the part file is kept.
        http.client.HTTPException: The server does not speak HTTP.
    """
    part = target.with_name(f"{target.name}.part")
    target.parent.mkdir(parents=True, exist_ok=True)
    for attempt in range(ATTEMPTS):
        before = _size(part)
        if _transfer(file, url, part, report):
            break
        # Trying again pays only while bytes arrive.
        if attempt == ATTEMPTS - 1 or _size(part) == before:
            raise ConnectionError(f"the connection was cut after {_size(part)} bytes; run it again to resume")
    fault = _fault(part, file)
    if fault is not None:
        part.unlink()
        raise UserError(
            f"{url} is not the published {file.name}: {fault}; deleted it, try again or another mirror"
        )
    with part.open("rb+") as stream:
        os.fsync(stream.fileno())
    part.replace(target)


def _transfer(file: PublishedFile, url: str, part: Path, report: Report) -> bool:
    """Add to the part file what the server still has; True unless the connection was cut before the end."""
    start = _size(part)
    headers = {"User-Agent": "consilience"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        opener = urllib.request.build_opener(_Redirections)
        response = opener.open(urllib.request.Request(url, headers=headers), timeout=TIMEOUT_SECONDS)
    except urllib.error.HTTPError as error:
        error.close()
        if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE or not start:
            raise
        # The server has nothing after `start`: either all is here, or what is here is something else.
        if _fault(part, file) is None:
            return True
        part.unlink()
        return _transfer(file, url, part, report)
    with response:
        resumed = response.status == http.HTTPStatus.PARTIAL_CONTENT and _range_start(response) == start
        if not resumed:
            start = 0
        announced = _number(response.headers.get("Content-Length"))
        total = file.size if announced is None else start + announced
        with part.open("ab" if resumed else "wb") as stream:
            done = start
            try:
                while block := response.read(BLOCK):
                    stream.write(block)
                    done += len(block)
                    report(file.name, done, total)
                    if file.size is not None and done > file.size:
                        return True  # too long to be right: the check will say so
            except (TimeoutError, ConnectionError, http.client.IncompleteRead):
                return False
    return total is None or done >= total


def _range_start(response: http.client.HTTPResponse) -> int | None:
    """Where a partial answer starts, from `Content-Range: bytes START-END/TOTAL`."""
    unit, _, span = (response.headers.get("Content-Range") or "").partition(" ")
    return _number(span.partition("-")[0]) if unit == "bytes" else None


def _number(text: str | None) -> int | None:
    """The number that a server writes; None where it is none, or has more digits than any file."""
    return int(text) if text is not None and re.fullmatch("[0-9]{1,18}", text) else None


def _fault(path: Path, file: PublishedFile) -> str | None:
    """What is wrong with the file at `path`, None if it is the published one."""
    if not path.is_file():
        return "it is missing"
    if file.digest is None:
        size = _size(path)
        return None if file.size is None or size == file.size else f"{size} bytes instead of {file.size}"
    algorithm, _, expected = file.digest.partition(":")
    with path.open("rb") as stream:
        found = hashlib.file_digest(stream, algorithm).hexdigest()
    return None if found == expected else f"{algorithm} {found} instead of {expected}"


def _size(path: Path) -> int:
    return path.stat().st_size if path.is_file() else 0


def _secure(url: str) -> str:
    parts = urlsplit(url)
    if parts.scheme == "https" or (parts.scheme == "http" and parts.hostname in LOOPBACK):
        return url
    raise UserError(f"will not download from {url}: only https is accepted (http on this machine alone)")


class _Redirections(urllib.request.HTTPRedirectHandler):
    """Follows a redirection to where a download may come from, and from https to https alone."""

    def redirect_request(
        self,
        req: urllib.request.Request,
        fp: IO[bytes],
        code: int,
        msg: str,
        headers: http.client.HTTPMessage,
        newurl: str,
    ) -> urllib.request.Request | None:
        if req.type == "https" and urlsplit(newurl).scheme != "https":
            raise UserError(f"will not download from {newurl}, where {req.full_url} leads: it is not https")
        _secure(newurl)
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _by_hand(url: str, error: Exception, pending: list[PublishedFile], directory: Path) -> str:
    """The line for a user whose machine cannot download: which files to put where."""
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    wanted = "; ".join(f"{directory / file.path} from {file.url} ({_published(file)})" for file in pending)
    return f"cannot download {url} ({reason}); run it again with a network, or put here by hand: {wanted}"


def _published(file: PublishedFile) -> str:
    if file.digest is not None:
        return file.digest.replace(":", " ")
    return "no digest is published" if file.size is None else f"{file.size} bytes"


@contextmanager
def _reporting(progress: Report | None) -> Iterator[Report]:
    """Give the caller's callback, else a progress bar, else (no terminal) a line a file on standard error."""
    console = Console(stderr=True, highlight=False)
    if progress is not None:
        yield progress
    elif not console.is_terminal:
        yield _plain_report(console)
    else:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            DownloadColumn(),
            TransferSpeedColumn(),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=console) as bar:
            yield _bar_report(bar)


def _plain_report(console: Console) -> Report:
    announced: set[str] = set()

    def report(name: str, done: int, total: int | None) -> None:
        if name not in announced:
            announced.add(name)
            size = "" if total is None else f" ({total / 1e6:.1f} MB)"
            console.print(f"downloading {name}{size}", soft_wrap=True, markup=False)

    return report


def _bar_report(bar: Progress) -> Report:
    tasks = {}

    def report(name: str, done: int, total: int | None) -> None:
        if name not in tasks:
            tasks[name] = bar.add_task(name, total=total)
        bar.update(tasks[name], completed=done, total=total)

    return report
