"""Numbers as people read them: three digits and a decimal unit."""

from __future__ import annotations

from collections.abc import Sequence


def human_bytes(count: float) -> str:
    """A number of bytes with a decimal unit and three digits.

    >>> [human_bytes(count) for count in (0, 999, 1234, 999_600, 45_600_000, 1.2e9)]
    ['0 B', '999 B', '1.23 kB', '1.00 MB', '45.6 MB', '1.20 GB']
    """
    return scaled(count, ("B", "kB", "MB", "GB", "TB", "PB"))


def scaled(value: float, units: Sequence[str]) -> str:
    """Three digits of a value that is not negative, in the fitting one of units 1000 times apart."""
    power = 0
    while float(f"{value:.3g}") >= 1000 and power < len(units) - 1:
        value, power = value / 1000, power + 1
    # The first unit counts whole things: 5 B, not 5.00 B.
    digits = f"{value:#.3g}".rstrip(".") if power else f"{value:.3g}"
    return f"{digits} {units[power]}".rstrip()
