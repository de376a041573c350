"""Most methods are three parts: an objective, a rule and a server step. A method names its parts."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar, final

from consilience import tree
from consilience.algorithm import Algorithm, Inbox, Setting
from consilience.client import Client
from consilience.errors import UserError
from consilience.objectives.base import Objective
from consilience.rules.base import Rule
from consilience.rules.by_data import ByData
from consilience.server_steps.base import ServerStep
from consilience.types import State


@dataclass(frozen=True)
class Parts:
    """How does a client train, how does a hub weigh what it hears, and what does it do with the result?"""

    objective: Objective = field(default_factory=Objective)
    rule: Rule = field(default_factory=ByData)
    server: ServerStep = field(default_factory=ServerStep)

    def __post_init__(self) -> None:
        reason = self.objective.refuse_rule(self.rule)
        if reason:
            raise UserError(f"{self.objective.name} with {self.rule.name}: {reason}")


class Method(Algorithm):
    """An algorithm that is a composition of parts."""

    @abstractmethod
    def parts(self) -> Parts:
        """The parts, made from the method's own numbers."""

    def __post_init__(self) -> None:
        self.parts()  # the parts check their numbers

    def init_hub(self, model: State) -> State:
        parts = self.parts()
        return tree.join(model, parts.objective.init_hub(model), parts.server.init(model["params"]))

    def init_memory(self, model: State) -> State:
        parts = self.parts()
        return tree.join(parts.objective.init_memory(model), parts.rule.init_memory(model))

    def broadcast(self, hub: State) -> State:
        return tree.join(super().broadcast(hub), self.parts().objective.download(hub))

    def local(self, client: Client, down: State, memory: State) -> tuple[State, State]:
        objective, rule = self.parts().objective, self.parts().rule
        trained = client.train(down, objective, objective.context(client, down, memory))
        extra, kept = objective.finish(client, down, trained, memory)
        evidence, accumulated = rule.evidence(client, trained.model, memory)
        return tree.join(trained.model, extra, evidence), {**memory, **kept, **accumulated}

    def combine(self, hub: State, inbox: Inbox) -> State:
        parts = self.parts()
        merged = parts.rule.merge(hub["params"], inbox)
        params, server = parts.server.apply(hub["params"], merged, hub)
        return {
            **hub,
            **server,
            **parts.objective.absorb(hub, inbox),
            "params": params,
            "buffers": inbox.buffers(),
        }

    def refuse(self, setting: Setting) -> str | None:
        parts = self.parts()
        reasons = (part.refuse(setting) for part in (parts.objective, parts.rule, parts.server))
        return next((reason for reason in reasons if reason), None)


@final
@dataclass(frozen=True)
class Composed(Method):
    """Any combination of an objective, a rule and a server step."""

    name: ClassVar[str] = "composed"
    objective: Objective = field(default_factory=Objective)
    rule: Rule = field(default_factory=ByData)
    server: ServerStep = field(default_factory=ServerStep)

    def parts(self) -> Parts:
        return Parts(self.objective, self.rule, self.server)
