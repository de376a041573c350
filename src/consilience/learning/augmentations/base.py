"""The contract of an augmentation, and a function of one's own as such."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, final

import torch
from torch import Tensor

from consilience.errors import UserError
from consilience.learning.randomness import KEY_BITS, stream_bits
from consilience.types import Batch


class Augmentation(ABC):
    """A way to vary the inputs of training batches, as a frozen dataclass of options.

    It is a pure function of inputs and key, written in torch for a batch, and runs for many clients at once.
    What it draws comes from the key (`consilience.learning.randomness`: `uniforms`, `normals`), so that a run
    repeats and executors agree; and what it does with a row must not depend on the rows after it, because
    short batches are padded.
    """

    name: ClassVar[str]

    @abstractmethod
    def __call__(self, inputs: Tensor, key: Tensor) -> Tensor:
        """The inputs of a batch, varied.

        Args:
            inputs: [batch, ...] normalised inputs, or tokens.
            key: 0-d int64, another one for every step of every client in every round.
        """

    def refuse(self, shape: tuple[int, ...]) -> str | None:
        """Why inputs of such a shape (of one row) cannot be varied in this way, or None."""
        return None


@final
@dataclass(frozen=True)
class Own(Augmentation):
    """A user's function of inputs, key and options.

    Attributes:
        path: Where it is: package.module:name.
        function: The function.
        options: Its further arguments.
    """

    path: str
    function: Callable[..., Tensor]
    options: Mapping[str, Any] = field(default_factory=dict)

    def __call__(self, inputs: Tensor, key: Tensor) -> Tensor:
        return self.function(inputs, key, **self.options)


def augmented(chosen: Sequence[Augmentation], batch: Batch) -> Batch:
    """A batch whose inputs are varied, by one augmentation after the other."""
    inputs = batch.inputs
    for place, one in enumerate(chosen):
        # A key for each, so that no two draw alike, nor any as dropout does.
        inputs = one(inputs, stream_bits(batch.key, torch.full_like(batch.key, 1 + place), KEY_BITS))
    return batch._replace(inputs=inputs)


def check(chosen: Sequence[Augmentation], example: Tensor) -> None:
    """Refuse augmentations that do not take such inputs, change their form, or draw from elsewhere."""
    key = torch.tensor(1)
    for one in chosen:
        label = one.path if isinstance(one, Own) else one.name
        reason = one.refuse(tuple(example.shape[1:]))
        if reason:
            raise UserError(f"augment: {label}: {reason}")
        try:
            first, again = one(example, key), one(example, key)
        except Exception as error:  # whatever a user's function raises
            why = " ".join(str(error).split())
            raise UserError(f"augment: {label} fails on a batch {list(example.shape)}: {why:.160}") from error
        if not isinstance(first, Tensor):
            raise UserError(f"augment: {label} gives a {type(first).__name__}, not the inputs")
        if (first.shape, first.dtype) != (example.shape, example.dtype):
            found = f"{first.dtype} {list(first.shape)}"
            raise UserError(f"augment: {label} gives {found} for {example.dtype} {list(example.shape)}")
        if not torch.equal(first, again):
            raise UserError(
                f"augment: {label} gives other results for the same key; draw from the key, "
                "e.g. consilience.learning.randomness.uniforms(key, 0, like)"
            )
