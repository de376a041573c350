"""One number among a model's parameters."""

from __future__ import annotations

import re
from dataclasses import dataclass
from types import EllipsisType

from torch import Tensor

from consilience.errors import UserError, abridged
from consilience.types import Params

FORM = re.compile(r"\s*([^\[\]\s]+)\s*\[\s*([0-9]{1,15}(?:\s*,\s*[0-9]{1,15})*)\s*\]\s*")


@dataclass(frozen=True)
class Coordinate:
    """A parameter's name and a place in it.

    >>> Coordinate.parse("fc1.weight[3,17]")
    Coordinate(name='fc1.weight', place=(3, 17))
    >>> str(_)
    'fc1.weight[3, 17]'
    """

    name: str
    place: tuple[int, ...]

    @classmethod
    def parse(cls, text: str) -> Coordinate:
        """The coordinate of a written form, e.g. `fc1.weight[3, 17]`."""
        found = FORM.fullmatch(text)
        if found is None:
            raise UserError(
                f"{abridged(text)} is no coordinate; write a parameter and a place in it: head.bias[3]"
            )
        return cls(found[1], tuple(int(number) for number in found[2].split(",")))

    def __str__(self) -> str:
        return f"{self.name}[{', '.join(map(str, self.place))}]"

    def check(self, params: Params) -> None:
        """Raise a UserError for a place that a model does not have."""
        shapes = {name: tuple(value.shape) for name, value in params.items()}
        if self.name not in shapes:
            listed = ", ".join(f"{name} {list(shape)}" for name, shape in shapes.items())
            raise UserError(f"coordinate {self}: the model has no parameter {self.name!r}; it has {listed}")
        shape = shapes[self.name]
        inside = len(shape) == len(self.place) and all(
            place < size for place, size in zip(self.place, shape, strict=True)
        )
        if not inside:
            raise UserError(f"coordinate {self}: {self.name} has the shape {list(shape)}")

    def of(self, stacked: Tensor) -> Tensor:
        """The numbers at this place in a parameter's values, which may have axes before its own."""
        place: tuple[EllipsisType | int, ...] = (..., *self.place)
        return stacked[place]
