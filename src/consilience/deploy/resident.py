"""A site that stays: it holds data and memory, and answers the orders that come to its socket."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from consilience.deploy import sockets
from consilience.deploy.agreeing import Agreement
from consilience.deploy.journal import Journal
from consilience.deploy.refused import RefusedError
from consilience.deploy.secret import secret_of
from consilience.deploy.site import Order, Own, Site
from consilience.errors import described
from consilience.experiment.folder import RunFolder

LOG = logging.getLogger("consilience")

PATIENCE = 60.0
"""How many seconds whoever brings an order may be silent in the middle of it."""


def site_in(folder: Path, agreement: Agreement, number: int, own: Own) -> Site:
    """A site whose files are in a folder."""
    secret = secret_of(folder, agreement)
    return Site(agreement.terms, number, own, secret=secret, file=folder / f"site-{number}.safetensors")


@contextmanager
def stationed(folder: Path, path: Path) -> Iterator[socket.socket]:
    """A socket to listen at, and a folder that no other process writes to; the socket goes in the end."""
    with RunFolder(folder).locked():
        listener = sockets.listen(path)
        try:
            yield listener
        finally:
            listener.close()
            path.unlink(missing_ok=True)


class Resident:
    """A site at work.

    Args:
        site: What answers.
        journal: Where it writes down what it did and what it refused.
    """

    def __init__(self, site: Site, journal: Journal) -> None:
        self.site, self.journal = site, journal
        self._answered = self._refused = 0

    def attend(self, listener: socket.socket) -> None:
        """Answer whoever comes, one after the other, until the process is told to end."""
        self._stand()
        while True:
            connection, _ = listener.accept()
            with connection:
                connection.settimeout(PATIENCE)
                try:
                    self._attend_one(connection)
                except OSError as error:  # whoever brought the order is gone; the hub will ask again
                    LOG.warning("an order or its answer got lost: %s", error.strerror or error)

    def _attend_one(self, connection: socket.socket) -> None:
        if not connection.recv(1, socket.MSG_PEEK):
            return  # somebody only looked whether a site is here
        try:
            _, accepted, data = sockets.receive(connection, {sockets.ORDER: self.site.largest})
            answer = self._answer(Order(data, accepted))
        except RefusedError as error:
            reason = str(error)
            self._refused += 1
            self.journal.refuse("hub", reason)
            LOG.warning("an order was refused: %s", reason)
            sockets.send(connection, sockets.REFUSAL, 0, reason.encode()[: sockets.LONGEST_REASON])
        else:
            self._answered += 1
            sockets.send(connection, sockets.ANSWER, 0, answer)
        self._stand()

    def _answer(self, order: Order) -> bytes:
        try:
            return self.site.answer(order)
        except RefusedError:
            raise
        except Exception as error:  # out of memory, say: the site stays, and others go on without it
            LOG.exception("an order could not be carried out")
            raise RefusedError(f"it could not be carried out: {described(error)}") from None

    def _stand(self) -> None:
        self.journal.stand(
            {
                "samples": self.site.own.samples,
                "exchange": self.site.answered,
                "answered": self._answered,
                "refused": self._refused,
            }
        )
