"""The configuration of a Zenoh session that hears its neighbours alone, and each of them under its own name.

A key expression says who speaks, and access control at either end of a link ties it to the common name of the
certificate that was shown there; so nobody is believed, and what comes under a neighbour's name is by it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from consilience.deploy.zenoh.certificates import Credentials, name_of

ROOT = "dfl"
ALL, ALIVE = "all", "alive"
LEASE = 2.0
"""Seconds of silence after which a connection is given up."""
PIECE = 250_000
"""The bytes of a message that travel at once."""
FRAME = PIECE + 4_096
"""The bytes that anything arriving has at most."""


def spoken(run: str, sender: int, receiver: int | None, what: int | str) -> str:
    """The key under which something is said, to one neighbour or to all."""
    return f"{ROOT}/{run}/{sender}/{ALL if receiver is None else receiver}/{what}"


def token(run: str, node: int, incarnation: int | str) -> str:
    """The key of a node that is alive."""
    return f"{ROOT}/{run}/{node}/{ALIVE}/{incarnation}"


def session_config(
    run: str,
    node: int,
    neighbours: Sequence[int],
    keys: Credentials,
    *,
    listen: Sequence[str],
    connect: Sequence[str],
    lease: float = LEASE,
) -> str:
    """The configuration of a node's session, as Zenoh reads it."""
    tls = {
        "root_ca_certificate": str(keys.authority.resolve()),
        "enable_mtls": True,
        "listen_certificate": str(keys.certificate.resolve()),
        "listen_private_key": str(keys.key.resolve()),
        "connect_certificate": str(keys.certificate.resolve()),
        "connect_private_key": str(keys.key.resolve()),
        # Who a node is, its certificate's name says, not the address of the machine on which it runs.
        "verify_name_on_connect": False,
        "close_link_on_expiration": True,
    }
    link = {
        "protocols": ["tls"],
        "tls": tls,
        "tx": {"lease": round(1000 * lease), "keep_alive": 4},
        "rx": {"max_message_size": FRAME},
    }
    return json.dumps(
        {
            "mode": "peer",
            "listen": {"endpoints": list(listen), "exit_on_failure": True},
            "connect": {
                "endpoints": list(connect),
                "timeout_ms": -1,  # whoever is not there yet is tried again, for ever and in the background
                "exit_on_failure": False,
                "retry": {"period_init_ms": 200, "period_max_ms": 1000, "period_increase_factor": 1.5},
            },
            # Either would bring the messages of nodes that are no neighbours.
            "scouting": {"multicast": {"enabled": False}, "gossip": {"enabled": False}},
            "adminspace": {"enabled": False},
            "transport": {
                "link": link,
                "unicast": {"max_links": 1},
                "shared_memory": {"enabled": False},  # it would pass by the encryption
            },
            "access_control": _access(run, node, neighbours),
            "low_pass_filter": [
                {
                    "id": "size",
                    "messages": ["put", "delete", "query", "reply"],
                    "flows": ["ingress"],
                    "key_exprs": ["**"],
                    "size_limit": FRAME,
                }
            ],
        }
    )


def _access(run: str, node: int, neighbours: Iterable[int]) -> dict[str, Any]:
    """What each neighbour may do here, and what is sent to it; nothing else passes."""
    rules, subjects, policies = [], [], []
    for other in neighbours:
        allowed = _rules(run, node, other)
        rules += allowed
        subjects.append({"id": name_of(other), "cert_common_names": [name_of(other)]})
        policies.append({"rules": [rule["id"] for rule in allowed], "subjects": [name_of(other)]})
    return {
        "enabled": True,
        "default_permission": "deny",
        "rules": rules,
        "subjects": subjects,
        "policies": policies,
    }


def _rules(run: str, node: int, other: int) -> list[dict[str, Any]]:
    def rule(name: str, flow: str, messages: list[str], keys: list[str]) -> dict[str, Any]:
        return {
            "id": f"{name} {other}",
            "permission": "allow",
            "flows": [flow],
            "messages": messages,
            "key_exprs": keys,
        }

    theirs = [spoken(run, other, None, "*"), spoken(run, other, node, "*")]
    ours = [spoken(run, node, None, "*"), spoken(run, node, other, "*")]
    alive = ["liveliness_token"]
    asking = ["declare_liveliness_subscriber", "liveliness_query"]
    # Of a token's run nothing is asked: that a neighbour has other terms is worth a line.
    return [
        rule("hear", "ingress", ["put"], theirs),
        rule("tell", "egress", ["put"], ours),
        rule("listen", "egress", ["declare_subscriber"], theirs),
        rule("be heard", "ingress", ["declare_subscriber"], ours),
        rule("see", "ingress", alive, [token("*", other, "*")]),
        rule("be seen", "egress", alive, [token("*", node, "*")]),
        rule("look", "egress", asking, [token("*", other, "*")]),
        rule("be looked at", "ingress", asking, [token("*", node, "*")]),
    ]
