"""A node that listens, and Zenoh sessions that keep to no rule of ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import zenoh

from consilience.deploy.terms import Terms
from consilience.deploy.zenoh.certificates import Credentials, credentials
from consilience.deploy.zenoh.link import Link
from consilience.deploy.zenoh.locked import session_config
from consilience.deploy.zenoh.mailbox import Mailbox
from consilience.deploy.zenoh.parcels import cut


class Listener:
    """Node 0 of a ring, whose neighbours are 1 and 3, and what it has heard and refused."""

    def __init__(self, terms: Terms, keys: Path, port: int) -> None:
        self.address = f"tls/127.0.0.1:{port}"
        self.terms, self.refused, self.seen = terms, list[tuple[Any, str]](), list[int]()
        self.mailbox = Mailbox([1, 3])
        self.mailbox.turn({0: 10, 1: 10})
        self.link = Link(
            terms,
            0,
            [1, 3],
            credentials(keys, 0),
            self.mailbox,
            refuse=self._refuse,
            heard=lambda word, new: None,
            seen=self.seen.append,
            listen=[self.address],
            connect=[],
            incarnation=1,
        )

    def _refuse(self, other: Any, reason: str) -> None:
        self.refused.append((other, reason))


def lawless(
    run: str, address: str, node: int, keys: Credentials, patience: int = 20_000, **changes: Any
) -> zenoh.Session:
    """A session with a certificate, without access control of its own; ZError where it is not let in.

    Args:
        run: What the run is called.
        address: Where node 0 listens.
        node: Which node it says that it is.
        keys: Its certificate.
        patience: How many milliseconds it tries to connect.
        changes: What else is otherwise in its configuration.
    """
    config = json.loads(session_config(run, node, [0], keys, listen=[], connect=[address]))
    config["access_control"] = {"enabled": False}
    config["transport"]["link"]["rx"] = {}
    config["connect"] |= {"timeout_ms": patience, "exit_on_failure": True}
    config |= {key: value for key, value in changes.items() if key != "tls"}
    config["transport"]["link"]["tls"] |= changes.get("tls", {})
    return zenoh.open(zenoh.Config.from_json5(json.dumps(config)))


def say(session: zenoh.Session, key: str, data: bytes = b"0123456789", number: int = 0) -> None:
    """Put something under a key, with the label of a short message."""
    ((label, _),) = cut(b"0123456789", number, 1)
    session.put(key, data, attachment=label, congestion_control=zenoh.CongestionControl.BLOCK)
