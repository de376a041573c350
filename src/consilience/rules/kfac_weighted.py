"""Weigh whole layers by their clients' Kronecker-factored curvature.

A step beyond the papers: Hessian-weighted averages (HWA, Ahmad, Luo, Robles-Kelly, Machine Learning 2023) and
Fisher merging (Matena, Raffel, NeurIPS 2022) weigh every coordinate alone, as if curvature were diagonal.
Here it is A_k (x) B_k, with A_k the second moments of a layer's inputs and B_k those of the gradients by its
outputs (k-FAC), so that directions are weighed and not coordinates. With W_k the layer of client k, its bias
as a last column, the merged layer W is the minimum of sum_k c_k |W - W_k|^2 in the norms of all curvatures:

    sum_k c_k B_k (W - W_k) A_k + damping m (W - W_data) = 0

where W_data is the mean by data and m the mean eigenvalue of sum_k c_k A_k (x) B_k. It is solved by conjugate
gradients from W_data on, in coordinates whose curvature is 1; few iterations, like damping, stay closer to
W_data, and without curvature it is W_data itself.

    norm_scope layer   A_k and B_k have unit norm and c_k = 1, as in HWA: scale and data do not count
    norm_scope none    A_k and B_k as they are and c_k the share of the data, as in Fisher merging

With diagonal A_k and B_k it is HWA's mean of the diagonals b_k a_k', and with equal ones the plain mean. A
client sends the upper triangles of A_k and B_k. Normalisation layers, and layers that k-FAC does not know
(embeddings, grouped convolutions, layers with shared weights), are averaged by data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, final

import torch
from torch import Tensor

from consilience import aggregate, tree
from consilience.errors import UserError
from consilience.learning import kronecker
from consilience.learning.curvature import MeanKind
from consilience.learning.kronecker import INPUTS, OUTPUTS
from consilience.learning.solving import conjugate_gradients
from consilience.rules.base import Rule
from consilience.rules.by_data import Weighting
from consilience.sweeping import check_non_negative
from consilience.types import Params, State

if TYPE_CHECKING:
    from consilience.algorithm import Conditions, Inbox
    from consilience.client import Client

BLOCK = 2**22
"""How many numbers a product over all messages may take at a time, for all receivers of a graph."""
FactorScope = Literal["layer", "none"]
"""Whether a layer's curvature has unit norm: see above."""


@final
@dataclass(frozen=True)
class KroneckerWeighted(Rule):
    """The mean of each layer, weighted by Kronecker-factored curvature; outside `layers` by data.

    Attributes:
        layers: Which layers carry curvature.
        kind: Whose gradients: of the given labels, of the model's own, or Gauss-Newton.
        norm_scope: Whether curvature has unit norm at each client before it is sent.
        damping: How strongly the mean by data counts, in mean eigenvalues of the curvature.
        iterations: How many iterations of conjugate gradients are made at most.
        tolerance: The relative residual at which they stop.
        weighting: The weights of what has no curvature.
    """

    name: ClassVar[str] = "kfac_weighted"
    layers: tree.Layers = "output"
    kind: MeanKind = "per_sample_mean"
    norm_scope: FactorScope = "layer"
    damping: float = 1.0
    iterations: int = 50
    tolerance: float = 1e-10
    weighting: Weighting = "samples"

    def __post_init__(self) -> None:
        check_non_negative(self, "damping", "tolerance")
        if self.iterations < 1:
            raise UserError(f"kfac_weighted: iterations must be at least 1, not {self.iterations}")

    def refuse(self, conditions: Conditions) -> str | None:
        return conditions.problem.refuse_curvature(self.kind)

    def evidence(self, client: Client, model: State, memory: State) -> tuple[State, State]:
        weights = kronecker.factored(client.task, model["params"], self.layers)
        factors = client.kronecker_factors(model, weights, self.kind)
        if self.norm_scope == "layer":
            factors = tree.map_leaves(lambda value: tree.unit({"": value})[""], factors)
        return tree.map_leaves(kronecker.packed, factors), {}

    def shares(self, inbox: Inbox) -> Tensor:
        return inbox.weights if self.weighting == "samples" else inbox.uniform

    def merge(self, old: Params, inbox: Inbox) -> Params:
        shares = self.shares(inbox)
        counts = inbox.heard if self.norm_scope == "layer" else shares
        merged = inbox.mean("params", shares)
        for name in inbox[INPUTS]:
            layers = kronecker.matrix(inbox["params"], name, front=1).double()
            mean = aggregate.weighted_sum(layers, shares)
            curvature = Curvature(
                kronecker.unpacked(inbox[INPUTS][name].double(), layers.shape[2]),
                kronecker.unpacked(inbox[OUTPUTS][name].double(), layers.shape[1]),
                counts.double(),
                1 if inbox.own is None else len(layers),
            )
            found = mean + self._correction(curvature, layers, mean)
            merged |= {
                part: value.to(merged[part].dtype)
                for part, value in kronecker.divided(found, name, merged).items()
            }
        return merged

    def _correction(self, curvature: Curvature, layers: Tensor, mean: Tensor) -> Tensor:
        """[out, in] how far the merged layer is from the mean of [messages, out, in] layers by data."""
        diagonal = curvature.diagonal()
        extra = self.damping * diagonal.mean()
        steepness = diagonal + extra
        scale = torch.where(steepness > 0, 1 / steepness.clamp(min=0).sqrt(), 0.0)

        def product(given: Params) -> Params:
            layer = scale * given[""]
            return {"": scale * (curvature.times(lambda _: layer) + extra * layer)}

        target = scale * curvature.times(lambda message: layers[message] - mean)
        found = conjugate_gradients(product, {"": target}, self.iterations, self.tolerance)
        return scale * found[""]


@dataclass(frozen=True, eq=False)
class Curvature:
    """The curvature of a layer at all clients, `sum_k c_k A_k (x) B_k`."""

    inputs: Tensor
    """[messages, in, in] A."""
    outputs: Tensor
    """[messages, out, out] B."""
    counts: Tensor
    """[messages] c."""
    receivers: int
    """How many hubs solve for layers of their own with the same messages: on a graph all nodes."""

    def diagonal(self) -> Tensor:
        """[out, in] the curvature of single coordinates."""
        of_inputs, of_outputs = (value.diagonal(dim1=1, dim2=2) for value in (self.inputs, self.outputs))
        return aggregate.weighted_sum(of_outputs[:, :, None] * of_inputs[:, None], self.counts)

    def times(self, layer_of: Callable[[int | slice], Tensor]) -> Tensor:
        """`sum_k c_k B_k X_k A_k`, [out, in].

        Args:
            layer_of: What gives X_k [out, in] of a message, or those of some messages, [messages, out, in].
        """
        if self.together:
            return aggregate.weighted_sum(self.outputs @ layer_of(slice(None)) @ self.inputs, self.counts)
        total = torch.zeros((), dtype=self.counts.dtype, device=self.counts.device)
        for message, count in enumerate(self.counts.unbind()):
            total = total + count * (self.outputs[message] @ layer_of(message) @ self.inputs[message])
        return total

    @property
    def together(self) -> bool:
        """Whether all messages are taken at once: for many receivers that is much memory."""
        messages, wide, high = len(self.counts), self.inputs.shape[1], self.outputs.shape[1]
        return self.receivers == 1 or self.receivers * messages * (wide + high) ** 2 <= BLOCK
