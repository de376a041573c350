"""What is done around the folds of a round, recorded once and repeated from then on.

A method's code for clients and hubs is ordinary Python under `vmap`: every round it takes milliseconds to
find out again which operations it comes down to. A routine is the list of these operations, with folds as
single ones among them. On a GPU the operations between two folds are a CUDA graph, which is launched at once.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.fx import Graph, GraphModule, Node

from consilience import tree
from consilience.engine.executors.captured import GraphMemory
from consilience.engine.executors.machine import copy_all_kinds
from consilience.engine.executors.program import Recorder
from consilience.tree import Schema
from consilience.types import State

MOST, KEPT = 32, 8
"""How many routines are kept at most, and how many times the largest states' bytes they hold."""

LOG = logging.getLogger("consilience")

Act = Callable[[Any, Sequence[Tensor], Sequence[Tensor] | None], Sequence[Tensor]]
"""A function that does what a point stands for, of its facts and tensors, into places if there are any."""
Enter = Callable[[Any, Sequence[Tensor]], Sequence[Tensor]]
"""A function by which recorded code reaches a point, with facts and tensors, and gets results."""
Work = Callable[[Enter, Sequence[State]], State]
"""A pure function of states, which may enter points."""


class Routines:
    """The routines that were recorded, by what they do and the form of what they do it with.

    Args:
        largest: The most bytes of states; a routine holds copies of them.
    """

    def __init__(self, largest: int) -> None:
        self.largest = largest
        self._known: OrderedDict[Hashable, Routine] = OrderedDict()  # the oldest use first
        self._graphs = GraphMemory()

    def run(self, key: Hashable, work: Work, states: Sequence[State], act: Act) -> State:
        """What some work gives for some states.

        Args:
            key: What tells the work from other work on states of the same form; None: do not record it.
            work: Which operations it does must follow from the key and the form of the states.
            states: What it is done with.
            act: What does what the work's points stand for.
        """
        routine = None if key is None else self._find((key, *(Schema.of(state) for state in states)), states)
        if routine is None:
            return _at_once(work, states, act)
        try:
            return routine(work, states, act)
        except torch.OutOfMemoryError:
            raise
        except RuntimeError as error:  # e.g. code that reads a tensor's value, a copy from the host
            LOG.debug("a routine is less than it could be", exc_info=error)
            routine.give_in()
        return _at_once(work, states, act)

    def _find(self, name: Hashable, states: Sequence[State]) -> Routine | None:
        """The routine of that name, a new one where there is none; None where there shall be none."""
        try:
            routine = self._known.pop(name, None)
        except TypeError:  # not hashable: a method with a list among its numbers
            return None
        if routine is None:
            if sum(tree.nbytes(state) for state in states) > self.largest:
                return None
            routine = Routine(self._graphs)
        self._known[name] = routine
        self._make_room()
        return routine

    def _make_room(self) -> None:
        """Let routines go that were not used for longest, while there are too many or they are too large."""
        held = sum(routine.held_bytes for routine in self._known.values())
        while len(self._known) > 1 and (len(self._known) > MOST or held > KEPT * self.largest):
            held -= self._known.popitem(last=False)[1].held_bytes

    def clear(self) -> None:
        """Forget all routines, and let the memory of their graphs go."""
        self._known.clear()
        self._graphs = GraphMemory()


def _at_once(work: Work, states: Sequence[State], act: Act) -> State:
    return work(lambda facts, tensors: act(facts, tensors, None), states)


class Point(nn.Module):
    """A place in a routine at which something is done anew every time, such as a fold."""

    def __init__(self, facts: Any) -> None:
        super().__init__()
        self.facts = facts
        self.act: Act | None = None
        """What does it, this time."""

    def forward(self, *tensors: Tensor) -> Sequence[Tensor]:
        """What is done with some tensors."""
        assert self.act is not None
        return self.act(self.facts, tensors, None)


@dataclass(eq=False)
class _Stretch:
    """Operations between points, as a program of their own."""

    module: GraphModule
    inputs: list[Node]
    outputs: list[Node]
    graph: torch.cuda.CUDAGraph | None = None


@dataclass(eq=False)
class _Stop:
    """A point, and where its tensors come from and go to."""

    point: Point
    inputs: list[Node]
    outputs: list[Node]
    """Those of its results that are read; the second argument of each says which it is."""
    places: list[Tensor] = field(default_factory=list)
    """Where all of its results are."""


@dataclass(eq=False)
class Routine:
    """The operations of some work, for states of one form."""

    graphs: GraphMemory
    held_bytes: int = 0
    """How much memory it holds."""
    _module: GraphModule | None = None
    _result: Schema | None = None
    _points: list[Point] = field(default_factory=list)
    _parts: list[_Stretch | _Stop] = field(default_factory=list)
    _state: Literal["captured", "as recorded", "at once"] = "captured"
    """How far it can go."""
    _idle: bool = False
    """Whether what comes in goes out, and there is nothing to capture."""
    _seen: bool = False
    """Whether it was asked for before."""
    _static: dict[Node, Tensor] = field(default_factory=dict)
    """The values that go into a part or come out of it, whose places on a GPU stay the same."""
    _given: list[Tensor] = field(default_factory=list)
    _found: list[Tensor] = field(default_factory=list)
    """Those that come from outside, and those that are the result."""

    def __call__(self, work: Work, states: Sequence[State], act: Act) -> State:
        """What the work gives for some states of that form."""
        if self._module is not None:
            return self._repeat(states, act)
        again, self._seen = self._seen, True
        # To write down what happens only once would take longer than to do it.
        return (self._record if again and self._state != "at once" else _at_once)(work, states, act)

    def give_in(self) -> None:
        """Do it in a slower way from now on, since it did not work."""
        self._state = "at once" if self._module is None else "as recorded"
        self._static, self._parts, self._given, self._found = {}, [], [], []
        self.held_bytes = 0

    def _record(self, work: Work, states: Sequence[State], act: Act) -> State:
        """What the work gives, while its operations are written down."""
        forms = [Schema.of(state) for state in states]
        recorder = Recorder(_flat(states))

        def enter(facts: Any, tensors: Sequence[Tensor]) -> Sequence[Tensor]:
            self._points.append(Point(facts))
            self._points[-1].act = act
            return recorder.enter(self._points[-1], tensors)

        def flat(*tensors: Tensor) -> list[Tensor]:
            rest = iter(tensors)
            result = work(enter, [form.state([next(rest) for _ in form.paths]) for form in forms])
            self._result = Schema.of(result)
            return list(tree.flatten(result).values())

        results = recorder.run(flat)
        self._module = recorder.module()
        self._idle = all(node.op in ("placeholder", "output") for node in self._module.graph.nodes)
        if any(_decomposes(node) for node in self._module.graph.nodes):
            self._state = "as recorded"
        assert self._result is not None
        return self._result.state(results)

    def _repeat(self, states: Sequence[State], act: Act) -> State:
        """What the work gives, by what was written down."""
        assert self._module is not None
        assert self._result is not None
        given = _flat(states)
        for point in self._points:
            point.act = act
        if self._idle or self._state == "as recorded" or not self.graphs.captures(given[0].device):
            with torch.no_grad():
                return self._result.state(self._module.forward(*given))
        if not self._parts:
            self._capture(given, act)
        else:
            copy_all_kinds(self._given, given)
            for part in self._parts:
                if isinstance(part, _Stretch):
                    assert part.graph is not None
                    part.graph.replay()
                else:
                    act(part.point.facts, [self._static[node] for node in part.inputs], part.places)
        results = [torch.empty_like(value) for value in self._found]  # which are written over next time
        copy_all_kinds(results, self._found)
        return self._result.state(results)

    def _capture(self, given: Sequence[Tensor], act: Act) -> None:
        """Do the work once, part by part, and capture its operations."""
        assert self._module is not None
        for node, value in zip(self._module.graph.nodes, given, strict=False):
            self._static[node] = value.clone(memory_format=torch.preserve_format)
        parts = _parts_of(self._module, self._static)
        for part in parts:
            tensors = [self._static[node] for node in part.inputs]
            if isinstance(part, _Stop):
                part.places = list(act(part.point.facts, tensors, None))
                self._static |= {node: part.places[_place(node)] for node in part.outputs}
            else:
                found: list[Tensor] = []
                part.graph = self.graphs.capture(
                    partial(_collect, found, part.module, tensors), given[0].device
                )
                part.graph.replay()
                self._static |= dict(zip(part.outputs, found, strict=True))
        self._parts = parts
        output: Any = self._module.graph.output_node().args[0]
        self._given = [self._static[node] for node in self._module.graph.nodes if node.op == "placeholder"]
        self._found = [self._static[node] for node in output]
        self.held_bytes = sum(value.nbytes for value in self._static.values())


def _collect(found: list[Tensor], module: GraphModule, tensors: Sequence[Tensor]) -> None:
    found += module.forward(*tensors)


def _decomposes(node: Node) -> bool:
    """Whether a node is a decomposition of a matrix.

    cuSOLVER cannot be captured, and one whose capture failed (QR) fails ever after in that process.
    """
    name = str(node.target)
    return node.op == "call_function" and "linalg" in name and "norm" not in name


def _place(item: Node) -> int:
    place: Any = item.args[1]
    return int(place)


def _flat(states: Sequence[State]) -> list[Tensor]:
    return [value for state in states for value in tree.flatten(state).values()]


def _parts_of(module: GraphModule, static: dict[Node, Tensor]) -> list[_Stretch | _Stop]:
    """A recorded module cut at its points; constants are put among what is static."""
    nodes = list(module.graph.nodes)
    runs: list[list[Node]] = [[]]
    stops: list[_Stop] = []
    for node in nodes:
        if node.op == "get_attr":
            static[node] = getattr(module, str(node.target))
        elif node.op == "call_module":
            point: Any = module.get_submodule(str(node.target))
            stops.append(_Stop(point, list(node.args), list(node.users)))
            runs.append([])
        elif node.op == "call_function" and not _is_item(node):
            runs[-1].append(node)
    parts: list[_Stretch | _Stop] = []
    for number, run in enumerate(runs):
        if run:
            parts.append(_stretch(module, run))
        if number < len(stops):
            parts.append(stops[number])
    return parts


def _is_item(node: Node) -> bool:
    source = node.args[0] if node.args else None
    return isinstance(source, Node) and source.op == "call_module"


def _stretch(module: GraphModule, run: list[Node]) -> _Stretch:
    """A program of some operations, of what they read from elsewhere to what is read elsewhere."""
    inside = set(run)
    inputs = list(dict.fromkeys(one for node in run for one in node.all_input_nodes if one not in inside))
    outputs = [node for node in run if any(user not in inside for user in node.users)]
    graph = Graph()
    copies = {node: graph.placeholder(f"given_{number}") for number, node in enumerate(inputs)}
    for node in run:
        copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(tuple(copies[node] for node in outputs))
    return _Stretch(GraphModule(module, graph), inputs, outputs)
