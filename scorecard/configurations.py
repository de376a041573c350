"""Configurations with mistakes: each must be planned, or refused in one line that names the field.

`judge` reads one as the command line would, plans the run, and raises `Failure` where anything else comes out
than a plan or a UserError of one line that names the field. Within `bounded_memory` what takes gigabytes
fails as well; what keeps a processor busy for `SECONDS` is given up.
`python -m scorecard.configurations 10000 0` judges many.
"""

from __future__ import annotations

import re
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np

from consilience.config import load_config
from consilience.data.dataset import Dataset
from consilience.deploy.agreeing import agree
from consilience.deploy.files import federation_of
from consilience.errors import UserError
from consilience.experiment.planning import plan
from consilience.reproduce import read_recipe
from consilience.reproduce.page import recipe_page
from consilience.sweep import read_study
from scorecard.finding import Finding, Tally, demand
from scorecard.mistakes import PARTS
from scorecard.mutated_configurations import Mutation, mutations

FEW = 100
"""Mutations of which nothing can be said on average."""
SECONDS = 20
"""How long a processor may be at work on one, whatever else the machine does."""
MEMORY = 3 << 30
"""How many bytes more than the process has already may be taken."""
LONGEST = 2100
"""How many characters a line may have, with the name of the file."""


def mutated(trials: int, folder: Path) -> Finding:
    """Check 25: configurations that were mutated at random, read and planned as the command line does it."""
    tally = Tally()
    with bounded_memory():
        for one in mutations(trials):
            with tally.trial(one.name), tally.timed("slowest (s)"):
                tally.count("valid" if judge(one, folder).valid else "refused in a line")
    valid = int(tally.figures.get("valid", 0))
    demand(
        trials < FEW or trials / 40 < valid < trials / 2,
        f"{valid} are valid: they try nothing, or too little",
    )
    return tally.finding()


class Failure(AssertionError):  # noqa: N818 - it is one of the judged, not of this code
    """A mutation came to something else than a plan, or one line that names the field."""


class _Hang(BaseException):
    pass


@dataclass(frozen=True)
class Verdict:
    """What came of a mutation."""

    valid: bool
    line: str
    """Why it was refused."""


@cache
def tiny() -> Dataset:
    """Data that are planned with in place of those that a file names."""
    random = np.random.default_rng(0)
    inputs = random.integers(0, 255, (240, 1, 28, 28), dtype=np.uint8)
    targets, groups = np.arange(240) % 10, np.arange(240) // 10
    rest: dict[str, Any] = {"groups": groups, "test_groups": groups[:60]}
    return Dataset.from_arrays("mnist-sample", inputs, targets, inputs[:60], targets[:60], classes=10, **rest)


def judge(mutation: Mutation, folder: Path) -> Verdict:
    """What comes of a mutation, whose file is written to a folder; a Failure where it is nothing allowed."""
    file = folder / "mutated.yaml"
    file.write_text(mutation.text, encoding="utf-8", errors="surrogatepass")
    try:
        with _watched():
            _use(mutation, file)
    except UserError as error:
        return _refused(mutation, str(error))
    except _Hang as hang:
        raise Failure(f"{mutation.name}: it takes more than {SECONDS} s") from hang
    except Exception as error:
        raise Failure(f"{mutation.name}: {type(error).__name__}: {str(error)[:300]}") from error
    return Verdict(True, "")


def _use(mutation: Mutation, file: Path) -> None:
    """Read the file as the command line would, and plan what it asks for."""
    if mutation.kind == "study":
        read_study(file, mutation.overrides)
        return
    if mutation.kind == "recipe":
        recipe = read_recipe(file)
        recipe.study(mutation.overrides, out=file.parent, quick=True)
        recipe_page(recipe, {})
        return
    if mutation.kind == "member":
        agree(federation_of(file, here=False))
        return
    load_config(file, mutation.overrides).resolved()
    arms = plan(load_config(file, mutation.overrides, tiny()).resolved())
    assert arms


def _refused(mutation: Mutation, line: str) -> Verdict:
    if "\n" in line or not line.isprintable() or len(line) > LONGEST:
        raise Failure(f"{mutation.name}: no line that can be shown: {line[:300]!r}")
    # A part that was put there may be blamed by its name.
    given = " ".join((mutation.text, *mutation.overrides))
    words = {*mutation.about, *(name for name in PARTS if name in given), "key", "line", "YAML"} - {""}
    if mutation.about and not any(_is_in(word, line) for word in words):
        raise Failure(f"{mutation.name}: it names none of {sorted(mutation.about)}: {line[:300]}")
    return Verdict(False, line)


def _is_in(word: str, line: str) -> bool:
    """Whether a line has a word, in the singular or the plural."""
    return re.search(rf"(?<!\w){re.escape(word.removesuffix('s'))}s?(?!\w)", line) is not None


@contextmanager
def _watched() -> Iterator[None]:
    """What takes too long in it is given up."""

    def give_up(number: int, frame: FrameType | None) -> None:
        raise _Hang

    before = signal.signal(signal.SIGPROF, give_up)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


@contextmanager
def bounded_memory() -> Iterator[None]:
    """What takes gigabytes in it fails."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + MEMORY, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def main(count: int, seed: int, folder: Path) -> int:
    """Judge so many, say what failed, and return how many did."""
    failed = valid = 0
    with bounded_memory():
        for mutation in mutations(count, seed):
            try:
                valid += judge(mutation, folder).valid
            except Failure as failure:
                failed += 1
                print(failure, flush=True)
    print(
        f"{count} mutations of seed {seed}: {valid} valid, {count - valid - failed} refused, {failed} failed"
    )
    return failed


if __name__ == "__main__":
    import tempfile

    with tempfile.TemporaryDirectory() as place:
        sys.exit(bool(main(int(sys.argv[1]), int(sys.argv[2]), Path(place))))
