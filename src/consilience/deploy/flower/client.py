"""The ClientApp of a federation: it hands bytes to the site beside it.

Flower starts a process for every message, so that nothing heavy is imported here: torch, data and memory are
in the resident `consilience site`, behind a Unix socket. In Flower's own simulation there is no socket; the
site is then made in the process, from its file on disk.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from flwr.app import Context, Message
from flwr.clientapp import ClientApp

from consilience.deploy.flower.records import fact, packed, said, unpacked
from consilience.deploy.refused import RefusedError
from consilience.deploy.sockets import hand_over

if TYPE_CHECKING:
    from consilience.deploy.agreeing import Agreement


def client_app(file: Path) -> ClientApp:
    """The ClientApp of the federation that a file describes."""
    app = ClientApp()

    @app.query()
    def introduce(message: Message, context: Context) -> Message:
        try:
            return Message(said(number=_number(context)), reply_to=message)
        except RefusedError as error:
            return Message(said(refused=str(error)), reply_to=message)

    @app.train()
    def work(message: Message, context: Context) -> Message:
        try:
            data, accepted = unpacked(message.content), fact(message.content, "accepted")
            socket = context.node_config.get("socket")
            if socket is None:
                answer = _answer_here(file, context, data, accepted)
            else:
                answer = hand_over(Path(str(socket)), data, accepted, message.metadata.ttl)
        except RefusedError as error:
            return Message(said(refused=str(error)), reply_to=message)
        return Message(packed(answer), reply_to=message)

    return app


def _number(context: Context) -> int:
    """The number of the site, from the node's configuration; in a simulation that of its partition."""
    found = context.node_config.get("number", context.node_config.get("partition-id"))
    if not isinstance(found, int) or isinstance(found, bool):
        raise RefusedError("its node configuration does not say which site it is, e.g. number=0")
    return found


def _answer_here(file: Path, context: Context, data: bytes, accepted: int) -> bytes:
    """The answer of a site that is made for this one order, from its file."""
    if "partition-id" not in context.node_config:
        raise RefusedError('its node configuration names no socket, e.g. socket="/run/consilience/site"')
    from consilience.deploy.resident import site_in
    from consilience.deploy.site import Order

    agreement, number = _agreement(file), _number(context)
    folder = Path(str(context.run_config["out"])) / "sites" / str(number)
    return site_in(folder, agreement, number, agreement.dealt(number)).answer(Order(data, accepted))


@cache
def _agreement(file: Path) -> Agreement:
    """What was agreed on; made once in a process, which answers for several sites."""
    from consilience.deploy.agreeing import agree
    from consilience.deploy.files import federation_of

    return agree(federation_of(file, here=True))
