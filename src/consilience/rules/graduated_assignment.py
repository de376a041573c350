"""Bring the hidden units of all models into one order before they are averaged, by graph matching.

Liu, Lou, Ji, Yan, Zhao: Deep Neural Network Fusion via Graph Matching with Applications to Model Ensemble and
Federated Learning (ICML 2022; GAMF). Networks are graphs: units are nodes, weights are edges. A matrix U_i^l
says which common unit each unit of model i's hidden layer l is; inputs and outputs have the identity.
In every sweep, layer after layer, with the others as they stand,

    K_ij = exp(-d(in_i, in_j) / 2) + exp(-d(out_i, out_j) / 2)      for every pair of models,
    U_i <- Sinkhorn(sum_j K_ij U_j / tau)                           for every model,

where in_i are the incoming weights (and bias) of units, with their columns in the common order of the layer
before, out_i the outgoing ones in that of the layer after, and d is the distance in the p-norm. tau falls
from sweep to sweep; at the end U becomes a permutation by the Hungarian algorithm, and

    W^l = sum_i p_i U_i^l' W_i^l U_i^(l-1),   p_i the shares of the data.

Deviations: the common order is that of the model with most data, whose U is fixed, and the others start from
all orders alike; the authors start at random, and all of them move. tau falls geometrically over 50 sweeps,
fewer where nothing moves any more; the authors' 2000 are `sweeps`. Memory is that of pairs x width^2 numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING, ClassVar, Literal, final

import torch
from torch import Tensor

from consilience import aggregate, tree
from consilience.errors import UserError
from consilience.learning.chain import NEEDS_CHAIN, assigned, by_unit
from consilience.rules.base import Rule
from consilience.sweeping import is_swept
from consilience.types import Params

if TYPE_CHECKING:
    from consilience.algorithm import Conditions, Inbox

STILL = 2e-3
"""A matrix that no sweep changes by more, and that is no farther from a permutation, is settled."""
LEAST = -500.0
"""The least exponent, so that no row or column of a matrix is 0."""


@final
@dataclass(frozen=True)
class GraduatedAssignment(Rule):
    """The mean of the models by data, once their hidden units have been matched all at once.

    Attributes:
        sweeps: The most sweeps over all layers.
        hot: The first temperature tau.
        cold: The last temperature tau.
        scalings: The most scalings of rows and columns in Sinkhorn's algorithm.
        norm: The p of the distance between units.
    """

    name: ClassVar[str] = "graduated_assignment"
    ordinary: ClassVar[bool] = True
    sweeps: int = 50
    hot: float = 0.05
    cold: float = 0.005
    scalings: int = 200
    norm: Literal[2, 4] = 4

    def __post_init__(self) -> None:
        for name in ("sweeps", "scalings"):
            if getattr(self, name) < 1:
                raise UserError(f"{self.name}: {name} must be at least 1, not {getattr(self, name)}")
        for name in ("hot", "cold"):
            value = getattr(self, name)
            if not is_swept(value) and not value > 0:
                raise UserError(f"{self.name}: {name} must be above 0, not {value}")

    def merge(self, old: Params, inbox: Inbox) -> Params:
        order = inbox.weights.argsort(descending=True, stable=True)
        heard = order[inbox.weights[order] > 0]  # most data first
        models = [Layers.of({name: value[row] for name, value in inbox["params"].items()}) for row in heard]
        pairs = list(zip(models, self.match(models), strict=True))
        in_order = {
            name: torch.stack([model.moved(number, name, places) for model, places in pairs])
            for number, names in enumerate(tree.weight_layers(old))
            for name in names
        }
        return aggregate.mean(in_order, inbox.weights[heard])

    def match(self, models: Sequence[Layers]) -> list[list[Tensor]]:
        """Which of its own units each model has in the place of each common one, by hidden layer."""
        alike = [[torch.full_like(eye, 1 / len(eye)) for eye in one.identities()] for one in models[1:]]
        soft = [models[0].identities(), *alike]
        hot, cold = float(self.hot), float(self.cold)
        for sweep in range(self.sweeps if alike else 0):
            tau = hot * (cold / hot) ** (sweep / max(1, self.sweeps - 1))
            if self._sweep(models, soft, tau) < STILL:
                break
        return [[_permutation(one) for one in own] for own in soft]

    def _sweep(self, models: Sequence[Layers], soft: list[list[Tensor]], tau: float) -> float:
        """Renew all matrices but the first model's; gives the largest change or distance from 0 and 1."""
        farthest = 0.0
        for layer in range(len(soft[0])):
            sides = [one.sides(layer, own) for one, own in zip(models, soft, strict=True)]
            alike = {
                (i, j): self._likeness(one, other)
                for (i, one), (j, other) in combinations(enumerate(sides), 2)
            }
            for i in range(1, len(models)):
                gains = torch.zeros_like(soft[i][layer])
                for j, other in enumerate(soft):
                    if j != i:
                        gains += (alike[i, j] if i < j else alike[j, i].T) @ other[layer]
                renewed = sinkhorn(gains / tau, self.scalings)
                unsettled = torch.maximum((renewed - soft[i][layer]).abs(), (renewed.round() - renewed).abs())
                farthest = max(farthest, float(unsettled.max()))
                soft[i][layer] = renewed
        return farthest

    def _likeness(self, one: Sequence[Tensor], other: Sequence[Tensor]) -> Tensor:
        """[units, units] how alike the units of two models are, by incoming and by outgoing weights."""
        pairs = zip(one, other, strict=True)
        parts = [torch.exp(-distances(a, b, self.norm) / 2) for a, b in pairs]
        return (parts[0] + parts[1]).double()

    def refuse(self, conditions: Conditions) -> str | None:
        if conditions.graph:
            return "models are matched at a server; on a graph every node would match its neighbours anew"
        if conditions.unmatchable:
            return f"{NEEDS_CHAIN}, and the model has {conditions.unmatchable}"
        return None


@dataclass(frozen=True)
class Layers:
    """A model's layers, in its own type: what is compared need not be exact, and costs width^2 products."""

    params: Params
    weights: list[Tensor]
    """[outputs, units before, columns of each]; inputs are units whose order is known."""
    biases: list[Tensor]
    """[outputs, 1], or [outputs, 0] where a layer has none."""

    @classmethod
    def of(cls, params: Params) -> Layers:
        """The layers of a model's parameters."""
        weights: list[Tensor] = []
        biases: list[Tensor] = []
        for names in tree.weight_layers(params):
            weight = next(params[name] for name in names if params[name].ndim > 1)
            bias = [params[name][:, None] for name in names if params[name].ndim == 1]
            units = len(weights[-1]) if weights else 1
            weights.append(by_unit(weight, units))
            biases.append(bias[0] if bias else weight.new_zeros(len(weight), 0))
        return cls(params, weights, biases)

    def identities(self) -> list[Tensor]:
        """The matrices that leave every hidden layer as it is."""
        return [torch.eye(len(w), dtype=torch.float64, device=w.device) for w in self.weights[:-1]]

    def sides(self, layer: int, soft: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """[units, size] incoming and outgoing weights of a hidden layer's units, in the common orders."""
        incoming, outgoing = self.weights[layer], self.weights[layer + 1]
        if layer > 0:
            incoming = torch.einsum("our,uv->ovr", incoming, soft[layer - 1].to(incoming))
        if layer + 1 < len(soft):
            outgoing = torch.einsum("our,ov->vur", outgoing, soft[layer + 1].to(outgoing))
        return torch.cat([incoming.flatten(1), self.biases[layer]], 1), outgoing.transpose(0, 1).flatten(1)

    def moved(self, layer: int, name: str, places: Sequence[Tensor]) -> Tensor:
        """One parameter of a layer in the common orders."""
        value = self.params[name]
        if value.ndim > 1 and layer > 0:
            value = by_unit(value, len(places[layer - 1]))[:, places[layer - 1]].reshape(value.shape)
        return value[places[layer]] if layer < len(places) else value


def distances(left: Tensor, right: Tensor, norm: int) -> Tensor:
    """[rows, rows] the distances in the 2- or 4-norm of all rows of two matrices, by products of matrices."""
    if norm == 2:
        return torch.cdist(left, right, compute_mode="use_mm_for_euclid_dist")
    powers = (left**4).sum(1)[:, None] + (right**4).sum(1)
    mixed = 6 * left**2 @ (right**2).T - 4 * left**3 @ right.T - 4 * left @ (right**3).T
    return (powers + mixed).clamp(min=0) ** 0.25


def sinkhorn(gains: Tensor, scalings: int) -> Tensor:
    """The matrix with rows and columns that sum to 1 whose logarithm is `gains` but for a term of each."""
    kernel = torch.exp((gains - gains.amax(1, keepdim=True)).clamp(min=LEAST))
    rows, columns = torch.ones_like(kernel[:, 0]), torch.ones_like(kernel[0])
    for _ in range(scalings):
        rows = 1 / (kernel @ columns)
        sums = rows @ kernel
        if bool(((columns * sums - 1).abs() < STILL / 2).all()):
            break
        columns = 1 / sums
    return rows[:, None] * kernel * columns


def _permutation(soft: Tensor) -> Tensor:
    """[units] the best unit for every place."""
    return torch.from_numpy(assigned(soft.T.cpu().numpy())).to(soft.device)
