"""Most methods are three parts: an objective, a rule and a server step. A method names its parts."""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass, field, replace
from typing import ClassVar, final

from consilience import tree
from consilience.algorithm import Conditions, Inbox, Phase, SingleExchange
from consilience.client import Client
from consilience.errors import UserError
from consilience.objectives.base import Objective
from consilience.rules.base import Rule
from consilience.rules.by_data import ByData
from consilience.server_steps.base import ServerStep
from consilience.types import State

GRADIENT, MERGED = "gradient", "merged"
"""Groups of messages beside `params`: a gradient, and a model that is not a trained one."""


@dataclass(frozen=True)
class Parts:
    """How a client trains, how a hub weighs what it hears, and what it does with the result."""

    objective: Objective = field(default_factory=Objective)
    rule: Rule = field(default_factory=ByData)
    server: ServerStep = field(default_factory=ServerStep)

    def __post_init__(self) -> None:
        kinds = (("objective", Objective), ("rule", Rule), ("server", ServerStep))
        for name, kind in kinds:
            if not isinstance(getattr(self, name), kind):
                raise UserError(f"{name} must be of type {kind.__name__}, not {getattr(self, name)!r}")
        reason = self.objective.refuse_rule(self.rule)
        if reason:
            raise UserError(f"{self.objective.name} with {self.rule.name}: {reason}")
        reason = self.rule.refuse_objective(self.objective)
        if reason:
            raise UserError(f"{self.rule.name} with {self.objective.name}: {reason}")
        reason = self.server.refuse_parts(self.objective, self.rule)
        if reason:
            raise UserError(f"{self.server.name} with {self.objective.name} and {self.rule.name}: {reason}")


class Method(SingleExchange):
    """An algorithm that is a composition of parts."""

    @abstractmethod
    def parts(self) -> Parts:
        """The parts, made from the method's own numbers."""

    def __post_init__(self) -> None:
        self.parts()  # the parts check their numbers

    def init_hub(self, model: State) -> State:
        parts = self.parts()
        own = tree.join(parts.objective.init_hub(model), parts.server.init(model["params"]))
        return tree.join(model, own, _no_gradient(parts.objective, model))

    def init_memory(self, model: State) -> State:
        parts = self.parts()
        own = tree.join(parts.objective.init_memory(model), parts.rule.init_memory(model))
        return tree.join(own, _no_gradient(parts.objective, model))

    def fleeting(self) -> frozenset[str]:
        return frozenset({GRADIENT}) if self.parts().objective.gradients_first else frozenset()

    def broadcast(self, hub: State) -> State:
        objective = self.parts().objective
        gradient = {GRADIENT: hub[GRADIENT]} if objective.gradients_first else {}
        return tree.join(super().broadcast(hub), gradient, objective.download(hub))

    def local(self, client: Client, down: State, memory: State) -> tuple[State, State]:
        objective, rule = self.parts().objective, self.parts().rule
        client = objective.prepare(client)
        context = objective.context(client, down, memory)
        trained = client.train(objective.start(down, context), objective, context)
        extra, kept = objective.finish(client, down, trained, memory)
        evidence, accumulated = rule.evidence(replace(client, steps=trained.steps), trained.model, memory)
        return {**trained.model, **tree.join(extra, evidence)}, {**memory, **kept, **accumulated}

    def combine(self, hub: State, inbox: Inbox) -> State:
        parts = self.parts()
        merged = parts.rule.merge(hub["params"], inbox)
        hub = {**hub, **parts.objective.absorb(hub, inbox)}
        weighed = replace(inbox, weights=parts.rule.shares(inbox))
        params, server = parts.server.apply(hub, merged, weighed)
        return {**hub, **server, "params": params, "buffers": inbox.buffers()}

    def phases(self) -> tuple[Phase, ...]:
        objective, rule = self.parts().objective, self.parts().rule
        training = Phase(
            self.broadcast,
            self.local,
            self.combine,
            rebuilt=objective.rebuilt(),
            receive=objective.receive,
            ordinary=rule.ordinary,
        )
        if not objective.gradients_first:
            return (training,)
        gradients = Phase(super().broadcast, _gradient, self._mean_gradient)
        return (gradients, training._replace(known=frozenset({"params", "buffers"})))

    def _mean_gradient(self, hub: State, inbox: Inbox) -> State:
        return {**hub, GRADIENT: inbox.mean(GRADIENT, self.parts().rule.shares(inbox))}

    def model(self, hub: State, memory: State) -> State:
        return {"params": self.parts().server.evaluated(hub), "buffers": hub["buffers"]}

    def refuse(self, conditions: Conditions) -> str | None:
        parts = self.parts()
        reasons = (part.refuse(conditions) for part in (parts.objective, parts.rule, parts.server))
        return next((reason for reason in reasons if reason), None)


def _no_gradient(objective: Objective, model: State) -> State:
    return {GRADIENT: tree.zeros_like(model["params"])} if objective.gradients_first else {}


def _gradient(client: Client, down: State, memory: State) -> tuple[State, State]:
    """The first exchange of a round: a client sends its gradient and remembers it."""
    own = {GRADIENT: client.grad(down).params}
    return own, {**memory, **own}


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
