"""Resuming: a run that was interrupted goes on, and one that is complete gets more rounds."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from consilience.config import Config
from consilience.config.files import read_values, with_given
from consilience.data.dataset import Dataset
from consilience.data.sets import SOURCES
from consilience.data.storage import folder_of
from consilience.errors import UserError, kind_of
from consilience.experiment.execution import run
from consilience.experiment.folder import CLIENTS, CONFIG, SUMMARY, RunFolder
from consilience.experiment.planning import plan
from consilience.experiment.result import Listener, Result
from consilience.experiment.sealing import digest_of_bytes
from consilience.experiment.stopping import Functions, Pause, never
from consilience.plugins import is_reference

LOG = logging.getLogger("consilience")


def resume(
    path: str | Path | Result,
    listener: Listener | None = None,
    *,
    rounds: int | None = None,
    workers: int | None = None,
    cluster: str | None = None,
    on_round: Functions = (),
    pause: Pause = never,
    data: Dataset | None = None,
    model: object = None,
    previous: bool = False,
) -> Result:
    """Continue a run from its last checkpoint; it ends as if it had never been interrupted.

    Args:
        path: The run's folder, or what came out of it.
        listener: What is told about every round.
        rounds: How many rounds it shall have in all, where that is more than it was to have. It ends, bit for
            bit, as a run of so many rounds, unless a schedule of learning rates is stretched over a run.
        workers: How many workers of a cluster there are from now on; by default as before.
        cluster: Where these are; by default as before.
        on_round: A function, or several, as for `run`.
        pause: Asked after every round whether to save the state and raise `Paused`.
        data: The data set, where it was one from Python.
        model: The model, where it was one from Python that no file can name.
        previous: Whether to go on from the checkpoint before the last, where files of the run are damaged.
    """
    folder = RunFolder(path.folder if isinstance(path, Result) else folder_of(path))
    if not (folder.path / CONFIG).exists():
        raise UserError(f"{folder.path} does not hold a run: there is no {CONFIG}")
    if data is not None and not isinstance(data, Dataset):
        raise UserError(f"data is to be the Dataset that the run was given, not {kind_of(data)}")
    if rounds is not None and not isinstance(rounds, int | np.integer):
        raise UserError(f"rounds is a whole number, not {rounds!r}")
    given = _Given(
        data, model, {k: v for k, v in (("workers", workers), ("cluster", cluster)) if v is not None}
    )
    if previous:
        with folder.locked(), folder.advised():
            folder.step_back()
    with folder.advised():
        config = _written(folder, given)
    before = {one.rounds for _, one in config.settings()}
    if rounds is not None and rounds < max(before):
        raise UserError(f"{folder.path} has {max(before)} rounds: rounds={rounds} would be fewer")
    if rounds is not None and len(before) > 1:
        some = " and ".join(map(str, sorted(before)))
        raise UserError(f"settings of {folder.path} have {some} rounds: it is not clear which to give more")
    result = run(config, folder=folder, existing="resume", listener=listener, on_round=on_round, pause=pause)
    if rounds is None or rounds == config.length:
        return result
    longer = given.read(folder, (config.length, int(rounds)))
    schedules = [one.schedule for _, one in config.settings() if one.schedule]
    if any(one.stretches for schedule in schedules for one in schedule.variants):
        LOG.warning(
            "the schedule is stretched over %d rounds from here on; those so far followed one over %d",
            rounds,
            config.length,
        )
    with folder.locked(), folder.advised():
        _extend(folder, config, longer)
    return run(longer, folder=folder, existing="resume", listener=listener, on_round=on_round, pause=pause)


@dataclass(frozen=True)
class _Given:
    """What a run was given from Python, so that its files cannot say it."""

    data: Dataset | None
    model: object
    place: Mapping[str, object]
    """Where it is computed from now on: keys of a configuration."""

    def read(self, folder: RunFolder, longer: tuple[int, int] | None = None) -> Config:
        """The run's configuration; `longer`: how many rounds it has, and how many it is to have."""
        path = folder.path / CONFIG
        folder.check_config()
        values = read_values(path)
        for section in (one.get("data") for one in (values, *values.get("compare", ()))):
            name = section.get("name") if isinstance(section, dict) else section
            if self.data is None and name is not None and not is_reference(name) and name not in SOURCES:
                raise UserError(
                    f"{path}: the data of this run ({name}) were given from Python, and no file names them: "
                    "continue with cs.resume(..., data=the same data)"
                )
        for section in (values, *values.get("compare", ())) if longer else ():
            if longer and section["rounds"] == longer[0]:  # others are of no setting
                section["rounds"] = longer[1]
        for section in (values, *values.get("compare", ())):
            section.update(self.place)
        return with_given(values, path, self.data, self.model)


def _written(folder: RunFolder, given: _Given) -> Config:
    """The run's configuration; a kill may have come before its new number of rounds was written there."""
    config = given.read(folder)
    checkpoint = folder.load_checkpoint()
    if checkpoint is None or not checkpoint.rounds or checkpoint.rounds == config.length:
        return config
    longer = given.read(folder, (config.length, checkpoint.rounds))
    with folder.locked():
        folder.write_config(longer.resolved().written())
    return longer


def _extend(folder: RunFolder, config: Config, longer: Config) -> None:
    """Let all arms begin again where they ended; their clients' results will be written anew."""
    checkpoint = folder.load_checkpoint()
    assert checkpoint is not None  # that of a complete run
    for arm in plan(longer.resolved()):  # before anything is changed
        folder.check_memories(arm.name, folder.load_state(arm.name, config.length))
    files = {**checkpoint.files, CLIENTS: [digest_of_bytes(b"")]}
    begun = replace(
        checkpoint, arm=0, clients=0, state={}, name="", base=config.length, rounds=longer.length, files=files
    )
    folder.save_checkpoint(begun)
    (folder.path / SUMMARY).unlink(missing_ok=True)  # it has not ended any more
    folder.write_config(longer.resolved().written())
