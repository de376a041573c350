"""Things that are read while something else is done with those before."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Read = TypeVar("Read")


def ahead(read: Callable[[Item], Read], items: Sequence[Item]) -> Iterator[Read]:
    """What `read` gives for every item, in order; the next is read while the caller is at work.

    >>> list(ahead(str, [1, 2, 3]))
    ['1', '2', '3']
    """
    with ThreadPoolExecutor(1) as reader:
        waiting = [reader.submit(read, item) for item in items[:1]]
        for upcoming in range(1, len(items) + 1):
            found = waiting.pop().result()
            waiting += [reader.submit(read, item) for item in items[upcoming : upcoming + 1]]
            yield found
