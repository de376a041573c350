"""Configurations with mistakes: each is read, or refused in one line."""

from __future__ import annotations

from pathlib import Path

from consilience.config import load_config
from consilience.config.config import read_config
from consilience.errors import UserError
from consilience.experiment import plan
from scorecard.finding import Finding, Tally
from scorecard.mutations import configurations
from scorecard.runs import FRAGILE

LONGEST = 2_000
"""How many characters a line has at most."""


def mutated(trials: int, folder: Path) -> Finding:
    """Check 25: configurations that were mutated at random, read and planned as the command line does it."""
    tally, file = Tally(), folder / "mutated.yaml"
    plan(read_config(FRAGILE))  # what takes time once
    for key, text in configurations(trials, 25):
        file.write_text(text)
        fault = None
        with tally.timed("slowest (s)"):
            try:
                plan(load_config(file, []))
                tally.count("valid")
            except UserError as error:
                fault = _line_fault(str(error), key, file)
                tally.count("refused in a line", int(fault is None))
            except Exception as error:
                fault = f"{type(error).__name__}: {error}"
        tally.note(key or "damaged text", fault)
    return tally.finding()


def _line_fault(line: str, key: str, file: Path) -> str | None:
    if "\n" in line or len(line) > LONGEST:
        return f"no line that can be shown: {line[:200]!r}"
    named = key in line or (not key and file.name in line)
    return None if named or "not valid YAML" in line else f"it does not name the field: {line[:200]}"
