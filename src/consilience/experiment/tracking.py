"""Trackers as listeners: they are told what happens, and whatever goes wrong with them is one line."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from textwrap import shorten
from typing import Any

from consilience.config import Config
from consilience.errors import DamageError, UserError
from consilience.experiment.folder import TRACKING, RunFolder
from consilience.experiment.planning import Arm
from consilience.experiment.result import Listener, Result
from consilience.experiment.sealing import read_sealed
from consilience.tracking.base import Curve, Session, TrackedRun, Tracker, flat, numbers

LOG = logging.getLogger("consilience")


class Tracked(Listener):
    """Passes everything on to a listener, and metrics to trackers. A tracker that fails is told no more."""

    def __init__(self, inner: Listener, config: Config, folder: RunFolder | None) -> None:
        self._inner, self._config, self._folder = inner, config, folder
        self._sessions: dict[Tracker, Session[Any]] = {}

    def start(self, arms: list[Arm]) -> None:
        path = self._folder.path if self._folder else self._config.out / self._config.name
        facts = TrackedRun(self._config.name, _key(self._folder), path, self._config.written())
        for tracker in self._config.tracking:
            self._try(tracker, lambda one: self._sessions.update({one: one.session(facts)}))
        self._inner.start(arms)

    def resumed(self, arm: Arm, lines: list[dict[str, Any]]) -> None:
        self._inner.resumed(arm, lines)

    def setting_up(self, arm: Arm) -> None:
        self._inner.setting_up(arm)

    def round(self, arm: Arm, lines: list[dict[str, Any]]) -> None:
        scores = {Curve(line["setting"], line["method"], line["seed"]): numbers(line) for line in lines}
        self._tell(lambda session: session.log(lines[0]["round"], scores))
        self._inner.round(arm, lines)

    def evaluating_clients(self, arm: Arm) -> None:
        self._inner.evaluating_clients(arm)

    def finish(self) -> None:
        self._inner.finish()

    def conclude(self, result: Result) -> None:
        """Hand over the final table."""
        table = [dict(flat(summary.to_json())) for summary in result.summaries]
        self._tell(lambda session: session.conclude(table))

    def close(self) -> None:
        """End all sessions."""
        self._tell(lambda session: session.close())

    def _tell(self, what: Callable[[Session[Any]], None]) -> None:
        for tracker in [*self._sessions]:
            self._try(tracker, lambda one: what(self._sessions[one]))

    def _try(self, tracker: Tracker, what: Callable[[Tracker], None]) -> None:
        """Do something with a tracker; where it fails, say so and leave it alone from then on."""
        try:
            what(tracker)
        except (Exception, SystemExit) as error:
            self._sessions.pop(tracker, None)
            missing = isinstance(error, ModuleNotFoundError)
            cure = f": pip install 'consilience[{tracker.library}]'" if missing else ""
            reason = shorten(f"{type(error).__name__}: {error}", 200)
            LOG.warning("tracking by %s is off, the run goes on (%s)%s", tracker.name, reason, cure)


@contextmanager
def tracked(config: Config, folder: RunFolder | None, listener: Listener) -> Iterator[Tracked]:
    """A listener that also tells the trackers of a configuration; their sessions end with the block."""
    told = Tracked(listener, config, folder)
    try:
        yield told
    finally:
        told.close()


def _key(folder: RunFolder | None) -> str:
    """A name that no other run has; it is kept in the run's folder, so that a resumed run has the same."""
    if folder is None:
        return uuid.uuid4().hex
    path: Path = folder.path / TRACKING
    if not path.exists():
        folder.write_sealed(TRACKING, {"key": uuid.uuid4().hex})
    try:
        return str(read_sealed(path)["key"])
    except DamageError as error:
        raise UserError(f"{error}; delete it, and trackers will take the rest for another run") from None
