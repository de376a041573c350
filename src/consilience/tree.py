"""Named tensors: arithmetic, rows, vectors, schemas. Pure functions: nothing here writes to its arguments."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from consilience.errors import UserError
from consilience.types import Number, Params, State

Layers = Literal["output", "last2", "all"]
"""Which layers: the output layer, the last two, or all convolutional and linear ones."""


def add(left: Params, right: Params) -> Params:
    """`left + right`."""
    return {name: left[name] + right[name] for name in left}


def sub(left: Params, right: Params) -> Params:
    """`left - right`."""
    return {name: left[name] - right[name] for name in left}


def mul(left: Params, right: Params) -> Params:
    """`left * right`, coordinate by coordinate."""
    return {name: left[name] * right[name] for name in left}


def scale(factor: Number, params: Params) -> Params:
    """`factor * params`."""
    return {name: factor * value for name, value in params.items()}


def axpy(factor: Number, left: Params, right: Params) -> Params:
    """`factor * left + right`."""
    return {name: factor * left[name] + right[name] for name in left}


def zeros_like(params: Params) -> Params:
    """Zeros with the names and shapes of `params`, the same tensors for all clients of a `vmap`."""
    return {
        name: torch.zeros(value.shape, dtype=value.dtype, device=value.device)
        for name, value in params.items()
    }


def dot(left: Params, right: Params) -> Tensor:
    """The inner product over all coordinates, a 0-d tensor."""
    return torch.stack([(left[name] * right[name]).sum() for name in left]).sum()


def sq_norm(params: Params) -> Tensor:
    """The squared Euclidean norm over all coordinates, a 0-d tensor."""
    return dot(params, params)


def shorten(params: Params, norm: Number) -> Params:
    """`params` scaled down to some Euclidean norm where theirs is larger."""
    return scale(norm / sq_norm(params).sqrt().clamp(min=norm), params)


def unit(params: Params) -> Params:
    """`params` divided by their Euclidean norm; zeros stay zeros.

    The largest entry is divided out first, so that squares of tiny entries do not underflow.
    """
    largest = torch.stack([value.abs().amax() for value in params.values()]).amax()
    alive = largest > 0
    scaled = {name: value / torch.where(alive, largest, 1.0) for name, value in params.items()}
    norm = torch.where(alive, sq_norm(scaled).sqrt(), 1.0)
    return {name: value / norm for name, value in scaled.items()}


def where(condition: Tensor, left: State, right: State) -> State:
    """`left` where a condition over the leading axes holds, else `right`."""

    def choose(one: Tensor, other: Tensor) -> Tensor:
        shape = (*condition.shape, *[1] * (one.ndim - condition.ndim))
        return torch.where(condition.reshape(shape), one, other)

    return {
        group: {name: choose(value, right[group][name]) for name, value in params.items()}
        for group, params in left.items()
    }


def layers(params: Params) -> tuple[tuple[str, ...], ...]:
    """Parameter names grouped by layer (weight and bias together), in the model's order.

    >>> layers({"a.weight": torch.ones(1), "a.bias": torch.ones(1), "b.weight": torch.ones(1)})
    (('a.weight', 'a.bias'), ('b.weight',))
    """
    groups: dict[str, list[str]] = {}
    for name in params:
        groups.setdefault(name.rpartition(".")[0], []).append(name)
    return tuple(tuple(names) for names in groups.values())


def weight_layers(params: Params, dimensions: int = 2) -> tuple[tuple[str, ...], ...]:
    """The layers that hold a matrix or a convolution; normalisation layers are left out.

    Args:
        params: Named parameters.
        dimensions: The least number of dimensions of such a weight (3 where a client axis is in front).
    """
    return tuple(names for names in layers(params) if any(params[name].ndim >= dimensions for name in names))


def select_layers(params: Params, which: Layers) -> tuple[tuple[str, ...], ...]:
    """The chosen convolutional and linear layers, in the model's order."""
    weighted = weight_layers(params)
    if not weighted:
        raise UserError("the model has no convolutional or linear layer, so there is no layer to weigh")
    return {"output": weighted[-1:], "last2": weighted[-2:], "all": weighted}[which]


def join(*states: State) -> State:
    """One State from several whose groups must not clash."""
    joined: State = {}
    for state in states:
        clash = joined.keys() & state.keys()
        if clash:
            raise UserError(
                f"two parts of this method both use the state {', '.join(map(repr, sorted(clash)))}"
            )
        joined |= state
    return joined


def only(state: State, groups: Set[str]) -> State:
    """Some groups of the State, those of them that it has."""
    return {group: params for group, params in state.items() if group in groups}


def without(state: State, groups: Set[str]) -> State:
    """The State without some groups."""
    return {group: params for group, params in state.items() if group not in groups}


def map_leaves(function: Callable[[Tensor], Tensor], state: State) -> State:
    """The State with `function` of each tensor in place of the tensor."""
    return {
        group: {name: function(value) for name, value in params.items()} for group, params in state.items()
    }


def index(state: State, position: int | slice | Tensor) -> State:
    """Some rows of a State whose tensors have a leading axis."""
    return map_leaves(lambda value: value[position], state)


def with_rows(state: State, rows: Tensor, new: State) -> State:
    """A State whose tensors have a leading axis, with others in place of some rows."""
    return {
        group: {name: value.index_copy(0, rows, new[group][name]) for name, value in params.items()}
        for group, params in state.items()
    }


def stack(states: Sequence[State]) -> State:
    """States of equal structure as one, with a new leading axis."""
    return {
        group: {name: torch.stack([state[group][name] for state in states]) for name in params}
        for group, params in states[0].items()
    }


def concatenate(states: Sequence[State]) -> State:
    """States of equal structure as one, joined along the leading axis."""
    return {
        group: {name: torch.cat([state[group][name] for state in states]) for name in params}
        for group, params in states[0].items()
    }


def reshape_leading(state: State, old: int, *new: int) -> State:
    """The State with axes of the sizes `new` in place of the first `old` axes of every tensor."""
    return map_leaves(lambda value: value.reshape(*new, *value.shape[old:]), state)


def flatten(state: State) -> dict[str, Tensor]:
    """The tensors as one flat dict, with names such as `params/fc1.weight`."""
    return {f"{group}/{name}": value for group, params in state.items() for name, value in params.items()}


def unflatten(flat: dict[str, Tensor], groups: Iterable[str] = ()) -> State:
    """The State of a flat dict: the inverse of `flatten`. `groups` may name some that have no tensors."""
    state: State = {group: {} for group in groups}
    for path, value in flat.items():
        group, _, name = path.partition("/")
        state.setdefault(group, {})[name] = value
    return state


def nbytes(state: State) -> int:
    """The bytes of all tensors together."""
    return sum(value.nbytes for params in state.values() for value in params.values())


def concatenated(params: Params) -> Tensor:
    """[size] all coordinates, tensor after tensor."""
    return torch.cat([value.reshape(-1) for value in params.values()])


def divided(vector: Tensor, like: Params) -> Params:
    """The tensors of a vector, the inverse of `concatenated`; `like` gives their names and shapes."""
    parts = torch.split(vector, [value.numel() for value in like.values()])
    return {name: part.reshape(like[name].shape) for name, part in zip(like, parts, strict=True)}


def size_of(params: Params) -> int:
    """The number of coordinates of all tensors together."""
    return sum(value.numel() for value in params.values())


def largest(scores: Tensor, count: int) -> Tensor:
    """[count] int32 the positions of the largest scores, in ascending order."""
    return scores.topk(count).indices.sort().values.to(torch.int32)


def taken(vector: Tensor, positions: Tensor) -> Tensor:
    """The values of a vector at some positions."""
    return vector.gather(0, positions.long())


def spread(values: Tensor, positions: Tensor, size: int) -> Tensor:
    """[size] zeros, with values at some positions."""
    return values.new_zeros(size).scatter(0, positions.long(), values)


Kind = tuple[torch.Size, torch.dtype]
"""The shape and the type of a tensor."""


def kind_of(value: Tensor) -> Kind:
    """The shape and the type of a tensor."""
    return value.shape, value.dtype


@dataclass(frozen=True)
class Schema:
    """The names, shapes and types of a State's tensors, in their order, and its groups, empty ones too."""

    paths: tuple[str, ...]
    groups: tuple[str, ...]
    shapes: tuple[torch.Size, ...]
    dtypes: tuple[torch.dtype, ...]

    @classmethod
    def of(cls, state: State) -> Schema:
        """The schema of a State."""
        flat = flatten(state)
        shapes, dtypes = [v.shape for v in flat.values()], [v.dtype for v in flat.values()]
        return cls(tuple(flat), tuple(state), tuple(shapes), tuple(dtypes))

    def state(self, tensors: Sequence[Tensor]) -> State:
        """The State of this schema with these tensors (of any shapes)."""
        return unflatten(dict(zip(self.paths, tensors, strict=True)), self.groups)

    def kinds(self) -> dict[str, Kind]:
        """The shape and the type of every tensor, by path."""
        return dict(zip(self.paths, zip(self.shapes, self.dtypes, strict=True), strict=True))

    def without(self, groups: Set[str]) -> Schema:
        """The schema of the same State without some groups."""
        kept = [number for number, path in enumerate(self.paths) if path.partition("/")[0] not in groups]
        return Schema(
            tuple(self.paths[number] for number in kept),
            tuple(group for group in self.groups if group not in groups),
            tuple(self.shapes[number] for number in kept),
            tuple(self.dtypes[number] for number in kept),
        )

    def ordered(self, state: State) -> State:
        """A State of these tensors in this schema's order, whatever order they had."""
        tensors = flatten(state)
        return self.state([tensors[path] for path in self.paths])

    def zeros(self, device: torch.device | str = "cpu") -> State:
        """A State of this schema, all 0."""
        kinds = zip(self.shapes, self.dtypes, strict=True)
        return self.state([torch.zeros(shape, dtype=dtype, device=device) for shape, dtype in kinds])
