"""Bad input, damage, interrupts and pauses: exceptions whose messages are single clear lines."""

from __future__ import annotations

import difflib
import inspect
import reprlib
from collections.abc import Callable, Iterable, Sequence

POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)
"""The kinds of parameters that cannot be given by name."""


LONGEST = 2000
"""How many characters a message may have; what is longer is cut in the middle."""


def printable(text: str) -> str:
    r"""The text in one line that does nothing to a terminal: what is not seen is escaped.

    >>> print(printable("Größe \x1b[2J\r\n"))
    Größe \x1b[2J\r\n
    """
    return "".join(one if one.isprintable() else one.encode("unicode_escape").decode() for one in text)


class UserError(ValueError):
    """Bad input. The command line prints the message alone and exits with code 2.

    It may quote what came from elsewhere, a server or a file, so that it is made printable.
    """

    def __str__(self) -> str:
        return printable(super().__str__())

    def __init__(self, message: str = "") -> None:
        line = " ".join(message.splitlines())
        half = LONGEST // 2
        super().__init__(line if len(line) <= LONGEST else f"{line[:half]} ... {line[-half:]}")


class DamageError(UserError):
    """A file of a run is missing, or is not as it was written."""


class Paused(Exception):  # noqa: N818 (nothing is wrong)
    """A run has saved its state and ended for now, as it was asked to."""


class TerminatedError(KeyboardInterrupt):
    """SIGTERM: whoever runs the machine wants this process to end, as a user does with Ctrl-C."""


def interrupt_of(error: BaseException | None) -> KeyboardInterrupt | None:
    """The interrupt behind an error, if there is one: a library interrupted in a callback may wrap it."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error


def kind_of(value: object) -> str:
    """What a value is, with its article.

    >>> kind_of(3), kind_of("3")
    ('an int', 'a str')
    """
    name = type(value).__name__
    return f"{'an' if name[0].lower() in 'aeiou' else 'a'} {name}"


class _Abridged(reprlib.Repr):
    """Values in a few words."""

    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = 60
        self.maxlevel, self.maxlist, self.maxtuple, self.maxdict = 3, 5, 5, 4

    def repr_int(self, x: int, level: int) -> str:
        # Python refuses to write numbers of some thousand digits.
        return repr(x) if x.bit_length() < 128 else f"a number of {x.bit_length()} bits"


_ABRIDGED = _Abridged()

NAMED = 4
"""The most names that are listed one by one."""


def abridged(value: object) -> str:
    """A value that somebody gave, as an error may show it: it may be of any length.

    >>> abridged("short"), abridged(list(range(1000)))
    ("'short'", '[0, 1, 2, 3, 4, ...]')
    """
    return _ABRIDGED.repr(value)


def some_of(names: Sequence[str]) -> str:
    """The first names, and how many more there are.

    >>> some_of(["a", "b"]), some_of(["a", "b", "c", "d", "e", "f"])
    ('a, b', 'a, b, c, and 3 more')
    """
    if len(names) <= NAMED:
        return ", ".join(names)
    return f"{', '.join(names[: NAMED - 1])}, and {len(names) - NAMED + 1} more"


def described(error: Exception) -> str:
    """An error of somebody's code in one line: its class, and what it says, if that is not too long.

    >>> described(KeyError("age"))
    "KeyError: 'age'"
    """
    name, says = type(error).__name__, said(error)
    return name if says == name else f"{name}: {says}"


def said(error: Exception) -> str:
    """What an error says, in one line that is not too long; its class where it says nothing.

    >>> said(ValueError("no  number")), said(EOFError())
    ('no number', 'EOFError')
    """
    return " ".join(f"{error}".split())[:160] or type(error).__name__


def unknown(kind: str, name: str, valid: Iterable[str], meant: str | None = None) -> UserError:
    """An error for a name that does not exist, with the one that was meant, or the nearest one that exists.

    >>> str(unknown("method", "fedavgg", ["fedavg", "hwa"]))
    "unknown method 'fedavgg'; did you mean 'fedavg'? (known: fedavg, hwa)"
    >>> str(unknown("key", "local.lr", ["local.clip", "local.steps"], meant="solver.lr"))
    "unknown key 'local.lr'; did you mean 'solver.lr'? (known: local.clip, local.steps)"
    """
    known = sorted(valid)
    meant = meant or _nearest(name, known)
    hint = f"; did you mean {meant!r}?" if meant else ""
    return UserError(f"unknown {kind} {abridged(name)}{hint} (known: {', '.join(known) or 'none'})")


def _nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that is spelled most like another; of dotted ones the ends are compared."""
    ends = {one.rpartition(".")[2]: one for one in known}
    near = difflib.get_close_matches(name[-100:].rpartition(".")[2], ends, n=1, cutoff=0.5)
    return ends[near[0]] if near else None


def check_options(what: str, function: Callable[..., object], places: int, options: Iterable[str]) -> None:
    """Refuse options that a function does not have, and a function that takes something else.

    Args:
        what: The function, in an error.
        function: What will be called.
        places: How many arguments it is given by their places.
        options: The names of the others.
    """
    try:
        signature = inspect.signature(function)
    except ValueError:  # of something that is not written in Python
        return
    named = [one for one in list(signature.parameters.values())[places:] if one.kind not in POSITIONAL]
    if all(one.kind is not inspect.Parameter.VAR_KEYWORD for one in named):
        known = [one.name for one in named]
        for option in options:
            if option not in known:
                raise unknown(f"option of {what}", option, known)
    try:
        signature.bind(*[None] * places, **dict.fromkeys(options))
    except TypeError as error:
        raise UserError(f"{what}: {error}") from None
