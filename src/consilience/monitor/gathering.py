"""The sources of a monitor: folders on this machine, and other monitors by their addresses."""

from __future__ import annotations

import itertools
import re
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import HTTPHandler, OpenerDirector

from pydantic import ValidationError

from consilience.errors import UserError
from consilience.monitor.members import MemberFolder, federations
from consilience.monitor.shown import MEMBERS, PANELS, VERSION, Offer, Page
from consilience.monitor.simulations import SimulationFolder

OFFER = "/offer.json"
"""Where a monitor tells others what it knows."""
BYTES = 32 * 2**20
"""The most that is read from another monitor."""
SECONDS = 5.0
"""How long another monitor may take."""
FOLDERS, DEPTH = 1000, 2
"""How many folders within one are looked at, and how deep they may lie."""


class Address:
    """Another monitor."""

    def __init__(self, address: str) -> None:
        self.address = checked(address)

    def offer(self) -> Offer:
        """What it offers; where that cannot be had, or is something else, a problem says why."""
        try:
            return Offer.model_validate_json(self._read())
        except ValidationError as error:
            first = error.errors(include_input=False, include_url=False)[0]
            where = ".".join(map(str, first["loc"]))
            reason = f"what it says is not what a monitor says ({where}: {first['msg']})"
        except UserError as error:
            reason = str(error)
        except (OSError, ValueError) as error:
            reason = f"no answer ({getattr(error, 'reason', None) or error})"
        return Offer(problems=[f"{self.address}: {reason}"])

    def _read(self) -> bytes:
        # Neither redirected nor through a proxy: what is read is what was asked for.
        opener = OpenerDirector()
        opener.add_handler(HTTPHandler())
        answer = opener.open(self.address + OFFER, timeout=SECONDS)
        if answer is None:
            raise UserError("no answer")
        with answer:
            if answer.status != 200:
                raise UserError(f"it answers {answer.status}: is it a monitor?")
            data, late = bytearray(), time.monotonic() + SECONDS
            while part := answer.read1(2**20):
                data += part
                if len(data) > BYTES:
                    raise UserError(f"it says more than {BYTES >> 20} MiB")
                if time.monotonic() > late:
                    raise UserError("it takes too long")
        return bytes(data)


class Folder:
    """A folder: a run's, a member's, or one that holds such folders."""

    def __init__(self, path: Path) -> None:
        if not path.is_dir():
            raise UserError(f"there is no folder {path}: give a run's, a member's, or http://HOST:PORT")
        self.path = path
        self._known: dict[Path, SimulationFolder | MemberFolder] = {}

    def offer(self) -> Offer:
        """What lies there now."""
        panels, members, problems = [], [], []
        for path in self._found():
            kind = MemberFolder if MemberFolder.fits(path) else SimulationFolder
            known = self._known.get(path)
            if not isinstance(known, kind):  # new, or turned out to be something else
                known = self._known[path] = kind(path)
            if isinstance(known, MemberFolder):
                members.append(known.member())
            else:
                panels += known.panels()
                problems += known.altered()
            if known.damaged:
                problems.append(f"{path}: {known.damaged} lines cannot be read")
        return Offer(panels=panels[:PANELS], members=members[:MEMBERS], problems=problems[:MEMBERS])

    def _found(self) -> list[Path]:
        return list(itertools.islice(_found(self.path, DEPTH), FOLDERS))


def _found(path: Path, depth: int) -> Iterator[Path]:
    """The folder, or those inside that are a run's or a member's."""
    if MemberFolder.fits(path) or SimulationFolder.fits(path):
        yield path
    elif depth:
        try:
            inside = sorted(one for one in path.iterdir() if one.is_dir())
        except OSError:  # not ours to read, or gone by now
            return
        for one in inside[:FOLDERS]:
            yield from _found(one, depth - 1)


def checked(address: str) -> str:
    """An address http://HOST:PORT, or one line that says what is wrong with it."""
    try:
        parts = urlsplit(address)
        port = parts.port
    except ValueError as error:
        raise UserError(f"{address!r} is no address: {error}") from None
    plain = not (parts.path.strip("/") or parts.query or parts.fragment or parts.username or parts.password)
    if parts.scheme != "http" or not parts.hostname or not port or not plain:
        raise UserError(f"{address!r} is no address of a monitor: give http://HOST:PORT")
    if not re.fullmatch(r"[\w.:%-]+", parts.hostname):
        raise UserError(f"{address!r}: {parts.hostname!r} is no name of a machine")
    return f"http://{parts.netloc}"


def source(written: str) -> Address | Folder:
    """The source that somebody names: an address has a scheme, a folder has none."""
    return Address(written) if "://" in written else Folder(Path(written))


class Gathered:
    """Several sources together."""

    def __init__(self, sources: list[str]) -> None:
        self._sources = [source(one) for one in sources]

    def offer(self, *, own: bool = False) -> Offer:
        """All that the sources say, or what this machine's folders say: monitors may look at each other."""
        asked = [one for one in self._sources if isinstance(one, Folder) or not own]
        with ThreadPoolExecutor(max_workers=min(len(asked), 16) or 1) as together:
            offers = list(together.map(lambda one: one.offer(), asked))
        return Offer(
            version=VERSION,
            panels=[panel for offer in offers for panel in offer.panels][:PANELS],
            members=[member for offer in offers for member in offer.members][:MEMBERS],
            problems=[problem for offer in offers for problem in offer.problems][:MEMBERS],
        )


def page_of(offer: Offer) -> Page:
    """What the page shows of it."""
    panels = [*federations(offer.members), *offer.panels]
    return Page(panels=panels, problems=offer.problems, time=time.time())


def state_of(path: Path) -> dict[str, Any]:
    """What the page shows of a folder, as plain values."""
    return page_of(Folder(path).offer()).model_dump(mode="json")
