"""Recorded programs that run again and again in memory of their own, on a CPU.

Small operations take less time than asking for memory and making views of it. Here both happen once: every
result has its place, which it shares with results that are needed at other times, and all that is left is a
list of operations that write into their places. Little memory that is used again also stays in the caches.
"""

from __future__ import annotations

import logging
import mmap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule, Node

from consilience.torch_internals import (
    QUICK,
    has_fixed_form,
    leaves,
    map_leaves,
    map_nodes,
    map_tensors,
    to_copy,
    writing_variant,
    written,
)

LOG = logging.getLogger("consilience")
_ATEN = torch.ops.aten
_MADE: dict[Any, Callable[..., list[Call]]] = {
    _ATEN.empty_like.default: lambda place, *_: [],
    _ATEN.new_empty.default: lambda place, *_: [],
    _ATEN.new_zeros.default: lambda place, *_: [place.zero_],
    _ATEN.full.default: lambda place, _, value: [partial(place.fill_, value)],
    _ATEN.clone.default: lambda place, value: [partial(place.copy_, value)],
    to_copy: lambda place, value: [partial(place.copy_, value)],
    _ATEN.relu.default: lambda place, value: [partial(torch.clamp_min, value, 0, out=place)],
}
"""What fills a place instead of operations that make tensors; a place has their type and layout already."""
_ADDRESSED = {
    _ATEN.as_strided_scatter.default,
    _ATEN.as_strided_scatter.out,
    _ATEN.as_strided_copy.default,
    _ATEN.as_strided_copy.out,
}
"""Operations that count from where a tensor's memory begins."""

SMALL_BYTES = 2**16
"""The most bytes that may be copied to their place where an operation cannot write there."""
ALIGNMENT = 64
SPOILED = 255
"""The byte that spoils memory: a number that consists of it is not a number."""

Call = Callable[[], object]


@dataclass(frozen=True)
class Run:
    """A program that is ready to run."""

    call: Callable[[], Sequence[Tensor]]
    """Runs the program and gives its results."""
    lasting: Sequence[Tensor] | None = None
    """The results, where they are always the same tensors."""
    obstacle: str | None = None
    """Why it runs as it was recorded, if it does, in memory that is asked for anew."""


class Arena:
    """Memory for programs of which one runs at a time, in this process or in one forked from it."""

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)

    @property
    def size(self) -> int:
        """How many bytes it has."""
        return len(self._memory)

    def bytes(self, size: int) -> Tensor:
        """Memory of at least so many bytes, the same as before where that is enough."""
        if len(self._memory) < size:
            self._memory = torch.frombuffer(mmap.mmap(-1, size), dtype=torch.uint8)
        return self._memory


def placed(module: GraphModule, arguments: Sequence[Tensor], arena: Arena) -> Run:
    """A recorded program that always runs on the same tensors; only their values change.

    Its results last until a program of the arena runs. Where an operation with a large result insists on
    memory of its own, as torch's convolutions do, the program runs as it was recorded.

    Args:
        module: The program; it must not change its arguments.
        arguments: The tensors, with values by which a mistake would be noticed: not all zeros.
        arena: Where results lie.
    """
    try:
        calls, results = _Tape(module, arguments).placed(arena)
    except Exception as error:  # whatever an operation does not like: it works as it was recorded
        LOG.debug("a step runs as it was recorded", exc_info=error)
        known = isinstance(error, _NoPlaceError)
        kind = str(error) if known else f"an operation raised {type(error).__name__}"
        return Run(lambda: module.forward(*arguments), obstacle=kind)
    return Run(partial(_play, calls, results), results)


def _play(calls: Sequence[Call], results: Sequence[Tensor]) -> Sequence[Tensor]:
    for call in calls:
        call()
    return results


class _NoPlaceError(Exception):
    """An operation cannot write into a given place, or cannot be trusted to."""


@dataclass(eq=False)
class _Block:
    """The memory of a result."""

    size: int
    first: int
    """The number of the operation that writes it first."""
    last: int
    """The number of the last operation that uses it."""
    alone: bool
    """Whether the first operation takes no tensors, so that it always makes the same."""
    changed: bool = False
    """Whether other operations write into it, too."""
    offset: int = 0


@dataclass(frozen=True)
class _Form:
    """A result without its values: where it lies, and how."""

    block: _Block
    dtype: torch.dtype
    shape: torch.Size
    stride: tuple[int, ...]
    start: int
    value: Tensor | None
    """The result itself, where it may be a constant."""

    @classmethod
    def of(cls, value: Tensor, block: _Block) -> _Form:
        """The form of a tensor that lies in a block."""
        kept = value if block.alone else None
        return cls(block, value.dtype, value.shape, value.stride(), int(value.storage_offset()), kept)

    def within(self, memory: Tensor) -> Tensor:
        """The place of the result in memory that all blocks share."""
        offset = self.block.offset // self.dtype.itemsize + self.start
        return memory.view(self.dtype).as_strided(self.shape, self.stride, offset)


class _Tape:
    """The operations of a program, and what they make, read and write.

    A first run shows that. Its values go as soon as nobody reads them any more: all of them together would
    take many times the memory of the program.
    """

    def __init__(self, module: GraphModule, arguments: Sequence[Tensor]) -> None:
        self._nodes: list[Node] = list(module.graph.nodes)
        self._forms: dict[Node, Any] = {}
        """What operations make; tensors that lie in no block are themselves."""
        self._blocks: list[_Block] = []
        self._wanted = self._try(module, arguments)

    def placed(self, arena: Arena) -> tuple[Sequence[Call], Sequence[Tensor]]:
        """What is left to call, and the places of the results."""
        memory = arena.bytes(_lay_out([block for block in self._blocks if not self._is_constant(block)]))
        calls, places = self._place(memory)
        memory.fill_(SPOILED)
        found = _play(calls, self._results(places))
        if not all(map(_same, self._wanted, found)):
            raise _NoPlaceError("some operation does not write all that it should")  # torch has such
        return calls, found

    def _try(self, module: GraphModule, arguments: Sequence[Tensor]) -> tuple[Tensor, ...]:
        """The results of the first run."""
        given = iter(arguments)
        foreign = {_storage(value) for value in arguments}
        readers = {used: number for number, node in enumerate(self._nodes) for used in node.all_input_nodes}
        values: dict[Node, Any] = {}
        blocks: dict[int, _Block] = {}  # those in use, by address: later ones may have the same

        def lying_in(value: object) -> list[_Block]:
            return [blocks[_storage(one)] for one in _tensors(value) if _storage(one) in blocks]

        def form(value: Tensor) -> Tensor | _Form:
            block = blocks.get(_storage(value)) if value.numel() else None
            return value if block is None else _Form.of(value, block)

        for number, node in enumerate(self._nodes[:-1]):
            _refuse(node, values)
            if node.op == "placeholder":
                values[node] = next(given)
            elif node.op == "get_attr":
                values[node] = getattr(module, str(node.target))
                foreign.add(_storage(values[node]))
            else:
                values[node] = _called(node, values)
                for block in lying_in([values[one] for one in _written(node)]):
                    block.changed = True
                for value in _tensors(values[node]):
                    if _storage(value) not in foreign and _storage(value) not in blocks:
                        block = _Block(_size(value), number, number, not node.all_input_nodes)
                        blocks[_storage(value)] = block
                        self._blocks.append(block)
            for block in lying_in(values[node]):
                block.last = max(block.last, readers.get(node, number))
            self._forms[node] = map_tensors(form, values[node])
            for done in {node, *node.all_input_nodes}:
                if readers.get(done, number) == number:
                    values.pop(done)
            blocks = {at: block for at, block in blocks.items() if block.last > number or block.alone}
        return self._results(values)

    def _is_constant(self, block: _Block) -> bool:
        """Whether what lies there is always the same.

        Results are not, because whoever takes them may change them.
        """
        is_result = block.last == len(self._nodes) - 1
        return block.alone and not (block.changed or is_result)

    def _place(self, memory: Tensor) -> tuple[list[Call], dict[Node, Any]]:
        """Make all views, and write down what is left to call."""

        def place(form: object) -> object:
            if not isinstance(form, _Form):
                return form
            return form.value if self._is_constant(form.block) else form.within(memory)

        calls: list[Call] = []
        places: dict[Node, Any] = {}
        for number, node in enumerate(self._nodes[:-1]):
            places[node] = map_leaves(place, self._forms[node])
            if node.op != "call_function":
                continue
            blocks = [form.block for form in leaves(self._forms[node]) if isinstance(form, _Form)]
            made = [block for block in blocks if block.first == number and not self._is_constant(block)]
            function: Any = node.target
            args, kwargs = _arguments(node, places)
            if made and _written(node):
                raise _NoPlaceError("what it was to write into had another size")
            if made:
                calls += _into(function, args, kwargs, _tensors(places[node]))
            elif _written(node):
                calls.append(partial(QUICK.get(function, function), *args, **kwargs))
        return calls, places

    def _results(self, values: dict[Node, Any]) -> tuple[Tensor, ...]:
        results: Any = self._nodes[-1].args[0]
        return tuple(values[result] for result in results)


def _same(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors are equal; what is not a number equals its like."""
    # The first comparison is nearly always enough, and needs no memory.
    return torch.equal(one, other) or torch.allclose(one, other, rtol=0, atol=0, equal_nan=True)


def _lay_out(blocks: Sequence[_Block]) -> int:
    """Let blocks that are needed at the same time lie apart, and return how many bytes all need."""
    taken: list[_Block] = []
    for block in sorted(blocks, key=lambda one: one.first):
        taken = sorted((one for one in taken if one.last >= block.first), key=lambda one: one.offset)
        for other in taken:
            if block.offset + block.size <= other.offset:
                break
            block.offset = other.offset + other.size
        taken.append(block)
    return max((block.offset + block.size for block in blocks), default=0)


def _into(
    function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], places: Sequence[Tensor]
) -> list[Call]:
    """What is to be called for an operation to write its results into some places."""
    if function in _MADE:
        return _MADE[function](places[0], *args)
    if function in QUICK:
        return [partial(QUICK[function], *args, **kwargs, out=places[0])]
    writing = writing_variant(function)
    if writing is not None and len(writing.places) == len(places):
        return [partial(writing.call, *args, **kwargs, **dict(zip(writing.places, places, strict=True)))]
    if sum(place.nbytes for place in places) > SMALL_BYTES:
        raise _NoPlaceError(f"{function} wants memory of its own")

    def copied() -> None:
        for place, value in zip(places, _tensors(function(*args, **kwargs)), strict=True):
            place.copy_(value)

    return [copied]


def _tensors(value: object) -> list[Tensor]:
    return [leaf for leaf in leaves(value) if isinstance(leaf, Tensor) and leaf.numel()]


def _storage(value: Tensor) -> int:
    """The address of the memory that a tensor and its views share."""
    return value.untyped_storage().data_ptr()


def _size(value: Tensor) -> int:
    """The bytes of a tensor's memory, rounded up."""
    return -(-value.untyped_storage().nbytes() // ALIGNMENT) * ALIGNMENT


def _refuse(node: Node, values: dict[Node, Any]) -> None:
    """Refuse operations whose results have no form of their own, or that mean an address by a number."""
    function: Any = node.target
    masked = function in (_ATEN.index.Tensor, _ATEN.index_put.default, _ATEN.index_put_.default) and any(
        one.dtype in (torch.bool, torch.uint8) for one in _tensors(_arguments(node, values)[0][1])
    )
    if masked or function in _ADDRESSED or not has_fixed_form(function):
        raise _NoPlaceError(f"nobody knows beforehand where the result of {function} lies")


def _arguments(node: Node, values: dict[Node, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    found: tuple[tuple[Any, ...], dict[str, Any]] = map_nodes((node.args, node.kwargs), values.__getitem__)
    return found


def _called(node: Node, values: dict[Node, Any]) -> Any:
    args, kwargs = _arguments(node, values)
    function: Any = node.target
    return function(*args, **kwargs)


def _written(node: Node) -> list[Node]:
    """The arguments that an operation changes."""
    return [one for one in written(node.target, node.args, node.kwargs) if isinstance(one, Node)]
