"""Weigh layers by how far the distribution of their weights is from a Gaussian.

Chatzikonstantinou et al.: Federated Learning Aggregation based on Weight Distribution Analysis (SWA).
For every convolutional or linear layer l and client n the distance Gd from Gaussianity of the weight
tensor decides; the bias uses its layer's coefficient, everything else is averaged by data.

    hos        Gd = k3 k4, Fisher's unbiased k-statistics of the weights
    renyi a    the Renyi divergence of order 0, 0.5, 1 or 2 of the weights' histogram from N(0, 1)

    normalised  W_l = sum_n Gd_n W_nl / sum_m Gd_m (default)
    as_printed  eq. 8: W_l = sum_n Gd_n / max_m Gd_m W_nl, whose weights sum to 1...N; for study only

k3 k4 is negative where skewness and excess kurtosis differ in sign: `sign` takes its absolute value
(default), clips it at 0 or leaves it (`raw`), and then a weight may be negative. Where the sum of all Gd of a
layer (as printed: the largest) is not above 0, the layer is averaged by data. k3 k4 grows with the 7th power
of the weights' scale: `standardise` takes skewness times excess kurtosis instead. The paper prints moments
without subtracting the mean; they are central here. Renyi: the histogram has 64 equal bins on [-4, 4] (what
lies outside counts in the end bins), the Gaussian's mass in them is exact (the paper samples it).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Literal, final

import torch
from torch import Tensor

from consilience import aggregate, tree
from consilience.errors import UserError
from consilience.rules.base import Rule
from consilience.types import Params

if TYPE_CHECKING:
    from consilience.algorithm import Inbox

Distance = Literal["hos", "renyi0", "renyi0.5", "renyi1", "renyi2"]
"""How the distance from a Gaussian is measured."""
DistanceForm = Literal["normalised", "as_printed"]
"""How weights come from distances."""
Sign = Literal["abs", "clip", "raw"]
"""What is done with a negative distance."""

BINS, REACH = 64, 4.0
"""How many bins a histogram has, and how far they reach on either side of 0."""


@final
@dataclass(frozen=True)
class Gaussianity(Rule):
    """The mean of the models, in which layers whose weights are far from Gaussian weigh more."""

    name: ClassVar[str] = "gaussianity"
    distance: Distance = "hos"
    form: DistanceForm = "normalised"
    sign: Sign = "abs"
    standardise: bool = False
    """Whether weights are scaled to mean 0 and variance 1 before they are measured."""

    def __post_init__(self) -> None:
        if self.distance != "hos" and self.sign != "abs":
            raise UserError(
                f"gaussianity: sign {self.sign} is for the distance hos; {self.distance} has none"
            )

    def merge(self, old: Params, inbox: Inbox) -> Params:
        params = inbox["params"]
        merged = inbox.mean("params")
        for names in tree.weight_layers(params, dimensions=3):  # messages, rows, columns
            weight = max((params[name] for name in names), key=lambda value: value.ndim)
            samples = weight.reshape(len(weight), -1)
            if samples.shape[1] >= 4:  # k4 is undefined below
                coefficients = self.coefficients(samples, inbox.weights)
                merged |= aggregate.mean({name: params[name] for name in names}, coefficients)
        return merged

    def coefficients(self, samples: Tensor, weights: Tensor) -> Tensor:
        """[messages] the factor of each message, from [messages, size] weights of one layer."""
        heard = weights > 0
        values = torch.where(heard[:, None], samples.double(), 0.0)
        distances = torch.where(heard, self._distances(values), 0.0)
        if self.form == "as_printed":
            largest = torch.where(heard, distances, -torch.inf).amax()
            usable = largest > 0
            printed = distances / torch.where(usable, largest, 1.0)
            return torch.where(usable, printed, weights)
        total = distances.sum()
        usable = total > torch.finfo(total.dtype).tiny
        return torch.where(usable, distances / torch.where(usable, total, 1.0), weights)

    def _distances(self, samples: Tensor) -> Tensor:
        if self.distance == "hos":
            third, fourth = k_statistics(standardised(samples) if self.standardise else samples)
            product = third * fourth
            return {"abs": product.abs(), "clip": product.clamp(min=0), "raw": product}[self.sign]
        order = float(self.distance.removeprefix("renyi"))
        shaped = standardised(samples) if self.standardise else samples
        return renyi(histogram(shaped), gaussian_mass(shaped.device), order).clamp(min=0)


def standardised(samples: Tensor) -> Tensor:
    """Rows with mean 0 and unbiased variance 1 (constant rows become 0)."""
    centred = samples - samples.mean(-1, keepdim=True)
    deviation = samples.std(-1, keepdim=True)
    return centred / torch.where(deviation > 0, deviation, 1.0)


def k_statistics(samples: Tensor) -> tuple[Tensor, Tensor]:
    """Fisher's k3 and k4 of every row of [rows, size], size at least 4."""
    size = samples.shape[-1]
    centred = samples - samples.mean(-1, keepdim=True)
    second, third, fourth = ((centred**power).mean(-1) for power in (2, 3, 4))
    k3 = size**2 * third / ((size - 1) * (size - 2))
    k4 = size**2 * ((size + 1) * fourth - 3 * (size - 1) * second**2) / ((size - 1) * (size - 2) * (size - 3))
    return k3, k4


def histogram(samples: Tensor) -> Tensor:
    """[rows, BINS] the share of each row's entries in equal bins on [-REACH, REACH]."""
    bins = ((samples + REACH) * (BINS / (2 * REACH))).floor().clamp(0, BINS - 1).long()
    counts = torch.zeros(*samples.shape[:-1], BINS, dtype=samples.dtype, device=samples.device)
    return counts.scatter_add(-1, bins, torch.ones_like(samples)) / samples.shape[-1]


def gaussian_mass(device: torch.device) -> Tensor:
    """[BINS] the mass of N(0, 1) in the bins of `histogram`, end bins with their tails; never exactly 0."""
    edges = torch.linspace(-REACH, REACH, BINS + 1, dtype=torch.float64, device=device)[1:-1]
    cumulative = torch.special.ndtr(edges)
    ends = (cumulative.new_zeros(1), cumulative.new_ones(1))
    mass = torch.diff(torch.cat((ends[0], cumulative, ends[1]))) + 1e-12
    return mass / mass.sum()


def renyi(p: Tensor, q: Tensor, order: float) -> Tensor:
    """[rows] the Renyi divergence, of order 0, 0.5, 1 or 2, of every row of p [rows, bins] from q [bins]."""
    if order == 0:
        return -torch.where(p > 0, q, 0.0).sum(-1).log()
    if order == 0.5:
        return -2 * (p * q).sqrt().sum(-1).log()
    if order == 1:
        return torch.where(p > 0, p * (torch.where(p > 0, p, 1.0) / q).log(), 0.0).sum(-1)
    return (p * p / q).sum(-1).log()
