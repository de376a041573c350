"""Messages of fewer bytes, with error feedback.

A compressor C keeps the coordinates that are largest in absolute value (top_k), or 8 bits of each (int8).

To a server, a client sends C(u + e), u its update and e what earlier messages left out, and keeps the new
e <- u + e - C(u + e). Stich, Cordonnier, Jaggi: Sparsified SGD with Memory (NeurIPS 2018); Karimireddy et
al.: Error Feedback Fixes SignSGD and other Gradient Compression Schemes (ICML 2019).

On a graph, neighbours do not know the model that a node started from. A node and its neighbours keep a
public copy p of its model x instead, 0 at first. Koloskova, Stich, Jaggi: Decentralized Stochastic
Optimization and Gossip Algorithms with Compressed Communication (ICML 2019): a node sends C(x - p), all move
p by it, the method merges public copies to m, and x <- x + mixing (m - p). What was not sent stays in x:
that is the error feedback. Strong compression needs a `mixing` far below 1, or copies that lag behind are
followed over and over: on a ring of 10 nodes, averages of random vectors converged with 2 / one_in and
diverged with 4 / one_in where one coordinate in 5 was sent. News then spreads slowly: on sparse graphs with
very different clients, int8 learned as fast as whole messages and top_k far more slowly.

The encoded form of `params` travels in the groups `params.packed` and `params.scale`, from which a receiver
works `params` out: at a server from the model that it sent, on a graph from its copy. Other groups of a
message (buffers, curvature, controls) travel as they are.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, final

import torch
from torch import Tensor

from consilience import tree
from consilience.algorithm import Conditions, Inbox
from consilience.errors import UserError
from consilience.sweeping import check_non_negative
from consilience.transforms.base import GROUPS, MODELS, Message, Transform
from consilience.tree import concatenated, divided, largest, size_of, spread, taken
from consilience.types import Number, Params, State

Kind = Literal["top_k", "int8"]

PACKED, SCALE = ".packed", ".scale"
"""The endings of a group's name in the names of the groups that hold its packed form."""
REST = "packing_rest"
"""The group that holds what a node of a graph did not send yet."""
VALUES, POSITIONS = "values", "indices"
"""The tensors of a packed group: some values of the concatenated update, and where they are in it."""
KEPT = "kept"
"""The group that a client remembers: what was not sent yet; on a graph, its public copy."""
LEVELS = 127
"""The steps of int8 from 0 to the largest absolute value."""


@final
@dataclass(frozen=True)
class Compressed(Transform):
    """Sends the largest coordinates of the update, or 8 bits of each, with error feedback.

    Attributes:
        kind: What is sent: some coordinates, each with its position (top_k), or all, in steps of their
            tensor's largest absolute value / 127 (int8).
        one_in: How many coordinates there are for each one that top_k sends.
        error_feedback: Whether what a message leaves out is added to the next one.
        mixing: How far a node of a graph follows what it merged; None: 1, but 2 / one_in for top_k.
    """

    name: ClassVar[str] = "compressed"
    rebuilt: ClassVar[frozenset[str]] = frozenset(GROUPS)
    private: ClassVar[frozenset[str]] = frozenset({REST})
    kind: Kind = "top_k"
    one_in: int = 100
    error_feedback: bool = True
    mixing: float | None = None

    def __post_init__(self) -> None:
        if self.one_in < 1:
            raise UserError(f"compressed: one_in must be at least 1 (all coordinates), not {self.one_in}")
        if self.mixing is not None:
            check_non_negative(self, "mixing")

    def init_memory(self, params: Params) -> State:
        return {KEPT: tree.zeros_like(params)} if self.error_feedback else {}

    def apply(self, message: Message, memory: State) -> tuple[State, State]:
        assert message.group is not None
        if message.client.peer:
            return self._to_neighbours(message, message.upload[message.group], memory[KEPT])
        wanted = tree.add(message.update, memory[KEPT]) if self.error_feedback else message.update
        packed = self.encode(message.group, wanted)
        decoded = decode(message.group, packed, wanted)
        kept = {KEPT: tree.sub(wanted, decoded)} if self.error_feedback else {}
        return {**message.with_update(decoded), **packed}, kept

    def _to_neighbours(self, message: Message, model: Params, public: Params) -> tuple[State, State]:
        assert message.group is not None
        packed = self.encode(message.group, tree.sub(model, public))
        public = tree.add(public, decode(message.group, packed, model))
        rest = {REST: tree.sub(model, public)}
        return {**message.upload, message.group: public, **packed, **rest}, {KEPT: public}

    def receive(self, message: State, last: State) -> State:
        group = next((one for one in GROUPS if one + PACKED in message), None)
        if group is None:
            return message
        like = last[group] if group in last else last["params"]
        update = decode(group, message, like)
        relative = group in last or group in MODELS  # a gradient that is sent to a server is sent whole
        return {**message, group: tree.add(like, update) if relative else update}

    def settle(self, old: State, new: State, inbox: Inbox) -> State:
        own = inbox.own or {}
        if REST not in own or "params" not in own:  # nothing that was merged
            return new
        # A node that has nothing to say (no data, or a message that was dropped) stays where it was.
        spoke = (inbox.weights != inbox.peers).any()
        sent = {"public": own["params"], "model": tree.add(own["params"], own[REST])}
        at = tree.where(spoke, sent, {"public": old["params"], "model": old["params"]})
        step = tree.scale(self._mixing, tree.sub(new["params"], at["public"]))
        return {**new, "params": tree.add(at["model"], step)}

    @property
    def _mixing(self) -> Number:
        if self.mixing is not None:
            return self.mixing
        return 1.0 if self.kind == "int8" else min(1.0, 2 / self.one_in)

    def encode(self, group: str, update: Params) -> State:
        """The groups that travel in place of a group: the packed form of an update."""
        if self.kind == "int8":
            return _quantised(group, update)
        vector = concatenated(update)
        positions = largest(vector.abs(), -(-len(vector) // self.one_in))
        return {group + PACKED: {VALUES: taken(vector, positions), POSITIONS: positions}}

    def refuse(self, conditions: Conditions) -> str | None:
        if not conditions.graph:
            return None
        if conditions.unreliable or conditions.redrawn:
            return (
                "neighbours keep copies of what a node sent, so on a graph no message may be missing and "
                "neighbours stay the same"
            )
        if not self.error_feedback:
            return "on a graph there is no compression without error feedback"
        return None


def decode(group: str, packed: State, like: Params) -> Params:
    """The update that the packed form of a group stands for.

    Args:
        group: The group's name.
        packed: A State with the packed groups, e.g. a whole message.
        like: Tensors of the update's names and shapes, e.g. the receiver's parameters.
    """
    values = packed[group + PACKED]
    if group + SCALE in packed:
        scales = packed[group + SCALE]
        return {name: values[name].to(scales[name].dtype) * scales[name] for name in like}
    return divided(spread(values[VALUES], values[POSITIONS], size_of(like)), like)


def _quantised(group: str, update: Params) -> State:
    """Whole numbers from -127 to 127, and the size of a step, by tensor."""
    scales = {name: value.abs().amax() / LEVELS for name, value in update.items()}
    steps = {name: _steps(value, scales[name]) for name, value in update.items()}
    return {group + PACKED: steps, group + SCALE: scales}


def _steps(value: Tensor, scale: Tensor) -> Tensor:
    steps = value / torch.where(scale > 0, scale, 1.0)
    return steps.round().clamp(-LEVELS, LEVELS).to(torch.int8)
