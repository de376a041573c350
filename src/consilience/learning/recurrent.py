"""Recurrent layers step by step, in operations that can run for many clients at once.

Torch's own kernels take a whole sequence, but `vmap` has no rule for them. Here the inputs of all steps are
multiplied at once, as there, and what remains is one product and some arithmetic a step.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence

from consilience.torch_internals import recast, with_current_weights

Memory = tuple[Tensor, ...]
"""What a cell remembers, [batch, width] each: the output first, and that of an LSTM its cell."""

Cell = Callable[[Tensor, Tensor, Memory], Memory]
"""The next memory, from what the inputs and the last output give, and the memory before."""


def unrolled(layer: nn.Module) -> nn.Module | None:
    """A layer of torch that runs step by step, with the same parameters; None for other layers."""
    kinds: dict[type, type[nn.RNNBase]] = {nn.LSTM: LSTM, nn.GRU: GRU, nn.RNN: RNN}
    kind = kinds.get(type(layer))
    return None if kind is None else recast(kind, layer)


class LSTM(nn.LSTM):
    """An LSTM, step by step."""

    def forward(self, input: Any, hx: Any = None) -> Any:
        """The outputs of all steps, and the last outputs and cells; as `torch.nn.LSTM` gives them."""
        if isinstance(input, PackedSequence):
            with_current_weights(self)
            return super().forward(input, hx)
        widths = (self.proj_size or self.hidden_size, self.hidden_size)
        return _run(self, lstm, input, hx, widths=widths)


class GRU(nn.GRU):
    """A GRU, step by step."""

    def forward(self, input: Any, hx: Any = None) -> Any:
        """The outputs of all steps, and the last ones; as `torch.nn.GRU` gives them."""
        if isinstance(input, PackedSequence):
            with_current_weights(self)
            return super().forward(input, hx)
        given = None if hx is None else (hx,)
        outputs, (last,) = _run(self, gru, input, given, widths=(self.hidden_size,))
        return outputs, last


class RNN(nn.RNN):
    """A plain recurrent layer, step by step."""

    def forward(self, input: Any, hx: Any = None) -> Any:
        """The outputs of all steps, and the last ones; as `torch.nn.RNN` gives them."""
        if isinstance(input, PackedSequence):
            with_current_weights(self)
            return super().forward(input, hx)
        given = None if hx is None else (hx,)
        outputs, (last,) = _run(self, elman(self.nonlinearity), input, given, widths=(self.hidden_size,))
        return outputs, last


def lstm(given: Tensor, recalled: Tensor, memory: Memory) -> Memory:
    """The cell of Hochreiter and Schmidhuber (1997), which may forget (Gers et al. 2000)."""
    enter, forget, candidate, leave = (given + recalled).chunk(4, -1)
    cell = forget.sigmoid() * memory[1] + enter.sigmoid() * candidate.tanh()
    return leave.sigmoid() * cell.tanh(), cell


def gru(given: Tensor, recalled: Tensor, memory: Memory) -> Memory:
    """The gated unit of Cho et al. (2014)."""
    (reset, update, fresh), (old_reset, old_update, old) = given.chunk(3, -1), recalled.chunk(3, -1)
    candidate = (fresh + (reset + old_reset).sigmoid() * old).tanh()
    return (candidate + (update + old_update).sigmoid() * (memory[0] - candidate),)


def elman(nonlinearity: str) -> Cell:
    """The cell of Elman (1990), with a nonlinearity of that name."""
    activate = torch.tanh if nonlinearity == "tanh" else torch.relu
    return lambda given, recalled, _: (activate(given + recalled),)


def next_memory(
    cell: Cell, x: Tensor, memory: Memory, outer: Tensor, inner: Tensor, *biases: Tensor | None
) -> Memory:
    """What a single cell remembers next.

    Args:
        cell: Its arithmetic.
        x: The input.
        memory: What it remembers.
        outer: The weight of the input.
        inner: The weight of the last output.
        biases: The bias of either, where they have one.
    """
    first, second = biases or (None, None)
    return cell(F.linear(x, outer, first), F.linear(memory[0], inner, second), memory)


def _run(
    layer: nn.RNNBase, cell: Cell, x: Tensor, start: Memory | None, widths: tuple[int, ...]
) -> tuple[Tensor, Memory]:
    """The outputs of all steps, and what is remembered at the end of every layer and direction."""
    single = x.ndim == 2  # a sequence without a batch axis
    x = x.unsqueeze(1) if single else x.transpose(0, 1) if layer.batch_first else x
    if start is not None and single:
        start = tuple(one.unsqueeze(1) for one in start)
    directions = ("", "_reverse") if layer.bidirectional else ("",)
    ends: list[Memory] = []
    for number in range(layer.num_layers):
        found = []
        for direction in directions:
            if start is None:
                memory = tuple(x.new_zeros(x.shape[1], width) for width in widths)
            else:
                memory = tuple(one[len(ends)] for one in start)
            outputs, memory = _scan(layer, cell, x, memory, f"_l{number}{direction}", bool(direction))
            found.append(outputs)
            ends.append(memory)
        x = torch.cat(found, -1) if len(found) > 1 else found[0]
        if number + 1 < layer.num_layers:
            x = F.dropout(x, layer.dropout, layer.training)
    last = tuple(torch.stack(parts) for parts in zip(*ends, strict=True))
    if single:
        return x.squeeze(1), tuple(one.squeeze(1) for one in last)
    return x.transpose(0, 1) if layer.batch_first else x, last


def _scan(
    layer: nn.RNNBase, cell: Cell, x: Tensor, memory: Memory, place: str, backwards: bool
) -> tuple[Tensor, Memory]:
    """The outputs [steps, batch, width] of one layer in one direction, and its last memory."""

    def weight(name: str) -> Tensor | None:
        return cast("Tensor | None", getattr(layer, f"{name}{place}", None))

    inner, outer = cast(Tensor, weight("weight_hh")), cast(Tensor, weight("weight_ih"))
    projection, bias = weight("weight_hr"), weight("bias_hh")
    given = F.linear(x, outer, weight("bias_ih")).unbind(0)
    outputs = []
    for now in reversed(given) if backwards else given:
        memory = cell(now, F.linear(memory[0], inner, bias), memory)
        if projection is not None:
            memory = (F.linear(memory[0], projection), *memory[1:])
        outputs.append(memory[0])
    return torch.stack(outputs[::-1] if backwards else outputs), memory
