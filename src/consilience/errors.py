"""The one exception that means "the input is wrong": its message is a single clear line."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(ValueError):
    """Bad input. The command line prints the message alone and exits with code 2."""


def unknown(kind: str, name: str, valid: Iterable[str]) -> UserError:
    """An error for a name that does not exist, with the nearest one that does.

    >>> str(unknown("method", "fedavgg", ["fedavg", "hwa"]))
    "unknown method 'fedavgg'; did you mean 'fedavg'? (known: fedavg, hwa)"
    """
    known = sorted(valid)
    near = difflib.get_close_matches(name, known, n=1, cutoff=0.5)
    hint = f"; did you mean {near[0]!r}?" if near else ""
    return UserError(f"unknown {kind} {name!r}{hint} (known: {', '.join(known)})")
