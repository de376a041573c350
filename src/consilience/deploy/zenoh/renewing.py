"""Certificates in the course of a run: a node warns, says that one has expired, and takes a new one."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Collection

from consilience.deploy.zenoh.certificates import Credentials, credentials, now
from consilience.deploy.zenoh.words import Word
from consilience.errors import UserError

EXPIRED = "its certificate has expired ({:%Y-%m-%d %H:%M} UTC): it is not connected until it has another"

SECOND = datetime.timedelta(seconds=2)
"""How long after its end a certificate is surely accepted by nobody."""


class Renewal:
    """Looks after the certificates of a node and of its neighbours.

    Zenoh closes connections when a certificate expires, and reads new files for some connections only; so a
    node whose files were replaced opens its session anew.

    Args:
        keys: The node's own, as it has started with them.
        number: Which node it is.
        note: Called with a node and what there is to say of its certificate, once.
        renew: Called with credentials with which all connections are to be made anew.
    """

    def __init__(
        self,
        keys: Credentials,
        number: int,
        *,
        note: Callable[[int, str], None],
        renew: Callable[[Credentials], None],
    ) -> None:
        self.keys, self._number, self._note, self._renew = keys, number, note, renew
        self._used = self._seen = keys.stamp()
        self._said = set[tuple[int, datetime.datetime, str]]()
        self._closed = set[tuple[int, datetime.datetime]]()

    def look(self, words: list[Word], linked: Collection[int]) -> None:
        """See how things stand with all certificates.

        Args:
            words: The newest of each neighbour.
            linked: The neighbours that are connected.
        """
        self._reload()
        warning = self.keys.warning()
        if warning:
            self._say(self._number, self.keys.ends, warning)
            self._part(self._number, self.keys.ends)
        for word in words:
            ends = datetime.datetime.fromtimestamp(word.ends, datetime.UTC)
            if ends < now():
                self._say(word.sender, ends, EXPIRED.format(ends))
            if word.sender in linked:
                self._part(word.sender, ends)

    def _say(self, node: int, ends: datetime.datetime, line: str) -> None:
        if (node, ends, line) not in self._said:
            self._said.add((node, ends, line))
            self._note(node, line)

    def _part(self, node: int, ends: datetime.datetime) -> None:
        """Close all connections once where one was made in the second in which its certificate expired.

        In that second a certificate is still accepted, and Zenoh has no longer an eye on its end.
        """
        if ends + SECOND < now() and (node, ends) not in self._closed:
            self._closed.add((node, ends))
            self._renew(self.keys)

    def _reload(self) -> None:
        """Take other files, once they no longer change."""
        stamp, self._seen = self._seen, self.keys.stamp()
        if stamp != self._seen or stamp == self._used:
            return
        self._used = stamp
        try:
            found = credentials(self.keys.certificate.parent, self._number)
        except UserError as error:
            self._note(self._number, f"{error}; the node goes on with what it had")
            return
        self.keys = found
        self._renew(found)
        self._note(self._number, f"{found.certificate} was replaced; it is valid until {found.ends:%Y-%m-%d}")
