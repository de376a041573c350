"""What a command says when it is told to stop."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from consilience.errors import TerminatedError, interrupt_of, printable


@contextmanager
def stoppable(hint: Callable[[], str]) -> Iterator[None]:
    """Within it, Ctrl-C and SIGTERM end the command with a hint, and with the exit codes that shells expect.

    Args:
        hint: Gives the words that say how to go on.
    """
    main = threading.current_thread() is threading.main_thread()
    before = signal.signal(signal.SIGTERM, _terminate) if main else None
    try:
        yield
    except BaseException as error:
        cause = interrupt_of(error)
        if cause is None:
            raise
        terminated = isinstance(cause, TerminatedError)
        said = "terminated" if terminated else "interrupted"
        print(f"consilience: {said}; {printable(hint())}", file=sys.stderr)
        sys.exit(128 + (signal.SIGTERM if terminated else signal.SIGINT))
    finally:
        if main:
            signal.signal(
                signal.SIGTERM, before or signal.SIG_DFL
            )  # nothing is known of one that is not Python's


def _terminate(number: int, frame: FrameType | None) -> None:
    raise TerminatedError
