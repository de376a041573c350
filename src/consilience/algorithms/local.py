"""Local training: no communication, the lower reference of the papers' tables.

Every client trains a model of its own, from its own initialisation where `init: different`; evaluated
are all clients' models on the global test set. The total of epochs is rounds times local epochs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from consilience.algorithm import Evaluated, Family, Inbox, SingleExchange
from consilience.client import Client
from consilience.types import State


@final
@dataclass(frozen=True)
class Local(SingleExchange):
    """Every client trains a model of its own, and nothing is sent."""

    name: ClassVar[str] = "local"
    paper: ClassVar[str] = "the reference without communication"
    family: ClassVar[Family] = "references"
    formula: ClassVar[str] = "w_k <- training of w_k on the client's own data"
    choose: ClassVar[str] = "As the lower reference: what clients reach without each other."

    def evaluated(self) -> Evaluated:
        return "client"

    def init_hub(self, model: State) -> State:
        return {}

    def init_memory(self, model: State) -> State:
        return model

    def broadcast(self, hub: State) -> State:
        return {}

    def local(self, client: Client, down: State, memory: State) -> tuple[State, State]:
        return {}, client.train(memory).model

    def combine(self, hub: State, inbox: Inbox) -> State:
        return hub

    def model(self, hub: State, memory: State) -> State:
        return memory
