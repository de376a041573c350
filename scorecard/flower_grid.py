"""A Flower Grid whose nodes are in this process, and sites behind real sockets."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
import yaml
from flwr.app import Context, Error, Message, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from consilience import tree
from consilience.config import Config
from consilience.config.config import read_config
from consilience.deploy.agreeing import Agreement, agree
from consilience.deploy.files import described, federation_of
from consilience.deploy.flower.client import client_app
from consilience.deploy.hub import Hub
from consilience.deploy.journal import Journal
from consilience.deploy.resident import Resident, site_in, stationed
from consilience.deploy.serving import HUB_FILE
from consilience.engine.build import simulate
from consilience.types import State


def federation(method: Any = "fedavg", **changes: Any) -> Config:
    """A small federation of three sites."""
    values: dict[str, Any] = {
        "method": method,
        "data": {"name": "mnist-sample", "normalize": "half"},
        "partition": {"name": "dirichlet_class", "alpha": 0.5, "holdout": 0.1},
        "model": {"name": "mlp", "hidden": [8]},
        "clients": 3,
        "rounds": 3,
        "local": {"steps": 3, "batch_size": 16},
        "solver": {"name": "sgd", "lr": 0.05},
        "deploy": {"secret": "seed", "deadline": 30.0},
    }
    return read_config({**values, **changes})


def simulated(agreement: Agreement) -> State:
    """The hub's state after all rounds of the simulation."""
    simulation = simulate(agreement.scene, agreement.arm.variants)
    for _ in range(agreement.terms.rounds):
        simulation.step(evaluate=False)
    return tree.index(simulation.hub, 0)


def ended(agreement: Agreement, folder: Path) -> State:
    """The hub's state in a folder's file."""
    hub = Hub(agreement.terms, agreement.initial(), file=folder / HUB_FILE)
    assert hub.done
    return hub.state


def equal(left: State, right: State) -> bool:
    """Whether two states are equal to the bit."""
    one, other = tree.flatten(left), tree.flatten(right)
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@dataclass
class Loop(Grid):
    """A Grid whose nodes are ClientApps in this process; replies can be lost or changed on the way."""

    nodes: dict[int, dict[str, Any]]
    """What every node is configured with."""
    file: Path
    run_config: dict[str, Any] = field(default_factory=dict)
    changed: Callable[[int, Message], Message | None] = lambda node, reply: reply
    """What becomes of a node's reply; None: it is lost."""
    replies: dict[str, Message] = field(default_factory=dict)
    sent: list[Message] = field(default_factory=list)

    def set_run(self, run: Any) -> None:
        raise NotImplementedError

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **options: Any) -> Message:
        raise NotImplementedError

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> Any:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return list(self.nodes)

    def push_messages(self, messages: Any) -> list[str]:
        return [self._push(message) for message in messages]

    def _push(self, message: Message) -> str:
        number = message.metadata.__dict__["_message_id"] = f"{len(self.sent)}"
        self.sent.append(message)
        node = message.metadata.dst_node_id
        if node not in self.nodes:  # as the SuperLink says it, in the place of the node
            error = Message(Error(code=3, reason="Node Unavailable"), reply_to=message)
            error.metadata.__dict__["_src_node_id"] = 1
            self.replies[number] = error
            return number
        context = Context(1, node, self.nodes[node], RecordDict(), self.run_config)
        reply = self.changed(node, client_app(self.file)(message, context))
        if reply is not None:
            self.replies[number] = reply
        return number

    def pull_messages(self, message_ids: Any) -> list[Message]:
        return [self.replies.pop(number) for number in message_ids if number in self.replies]


@contextlib.contextmanager
def as_a_server() -> Iterator[None]:
    """Who makes messages must be somebody: Flower sets this when it starts a ServerApp."""
    with contextlib.ExitStack() as stack:
        for name in ("_task_id", "_run_id", "_node_id"):
            stack.enter_context(mock.patch.object(TaskIdentity, name, 1))
        yield


@contextlib.contextmanager
def places(parent: Path) -> Iterator[Callable[..., SimpleNamespace]]:
    """Gives the sites of a configuration, each behind its socket, and a Grid that reaches them."""
    with contextlib.ExitStack() as stack:

        def made(config: Config, name: str = "place", **options: Any) -> SimpleNamespace:
            folder = parent / name
            folder.mkdir()
            file = folder / "federation.yaml"
            file.write_text(yaml.safe_dump(described(agree(config))))
            agreement = agree(federation_of(file, here=True))
            nodes = {}
            for number in range(agreement.terms.population):
                path = folder / f"{number}.sock"
                station(stack, agreement, number, folder / f"site{number}", path)
                nodes[100 + number] = {"number": number, "socket": str(path)}
            grid = Loop(nodes, file, **options)
            return SimpleNamespace(
                agreement=agreement, grid=grid, folder=folder, hub=folder / "hub", file=file
            )

        yield made


def station(stack: contextlib.ExitStack, agreement: Agreement, number: int, folder: Path, path: Path) -> None:
    """Keep a site at work in a thread until the stack is left."""
    listener = stack.enter_context(stationed(folder, path))
    site = site_in(folder, agreement, number, agreement.dealt(number))
    resident = Resident(site, Journal(folder, agreement.terms.run, str(number)))
    thread = threading.Thread(target=_until_closed, args=(resident, listener))
    thread.start()
    stack.callback(thread.join)
    stack.callback(listener.shutdown, socket.SHUT_RDWR)


def _until_closed(resident: Resident, listener: socket.socket) -> None:
    with contextlib.suppress(OSError):
        resident.attend(listener)
