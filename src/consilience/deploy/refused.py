"""The one exception by which members of a federation turn a message away."""

from __future__ import annotations


class RefusedError(Exception):
    """A message that is not what it should be; the reason is one line, for a log at either end."""
