"""The geometric median: the model with the smallest sum of distances to the models received.

Pillutla, Kakade, Harchaoui: Robust Aggregation for Federated Learning (IEEE Transactions on Signal
Processing 2022), smoothed Weiszfeld iterations, with equal weights where the paper has data sizes:

    w <- sum_k a_k w_k / sum_k a_k,  a_k = 1 / max(eps, ||w - w_k||)

The model is one vector. As w is always a weighted mean of the messages, all distances follow from the
messages' inner products; the iterations run on the weights alone and cost nothing.

The iterations start from weights of one over the median distance of a message to the others, where the
paper starts from the mean: each of them lowers the weight of a liar by a constant factor, so that from
the mean a lie of size 10^30 would need dozens more.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, final

import torch
from torch import Tensor

from consilience.errors import UserError
from consilience.rules import robust
from consilience.rules.base import Rule
from consilience.sweeping import is_swept
from consilience.types import Params

if TYPE_CHECKING:
    from consilience.algorithm import Inbox


@final
@dataclass(frozen=True)
class GeometricMedian(Rule):
    """The model nearest to all others in sum: withstands lies of fewer than half of the messages.

    Data sizes do not count, for they can be lies too. Buffers are merged by data as always.

    Attributes:
        iterations: How many iterations of Weiszfeld's algorithm there are, always.
        eps: The least distance; smaller ones are taken for it.
    """

    name: ClassVar[str] = "geometric_median"
    iterations: int = 32
    eps: float = 1e-6

    def __post_init__(self) -> None:
        if self.iterations < 1:
            raise UserError(f"geometric_median: iterations must be at least 1, not {self.iterations}")
        if not is_swept(self.eps) and not self.eps > 0:
            raise UserError(f"geometric_median: eps must be above 0, not {self.eps}")

    def shares(self, inbox: Inbox) -> Tensor:
        return inbox.uniform

    def merge(self, old: Params, inbox: Inbox) -> Params:
        return inbox.mean("params", self.coefficients(inbox))

    def coefficients(self, inbox: Inbox) -> Tensor:
        """[messages] the weights of the messages in their geometric median."""
        products = robust.inner_products(inbox["params"])
        counts = (inbox.weights > 0) & products.diagonal().isfinite()
        products = torch.where(counts[:, None] & counts, products, 0.0)
        norms = products.diagonal()
        distances = robust.median(robust.sq_distances(products).sqrt(), counts)
        weights = self._weights(distances, counts)
        for _ in range(self.iterations):
            along = products @ weights
            sq_distances = norms - 2 * along + weights @ along
            weights = self._weights(sq_distances.clamp(min=0).sqrt(), counts)
        return weights

    def _weights(self, distances: Tensor, counts: Tensor) -> Tensor:
        nearness = torch.where(counts, 1 / distances.clamp(min=self.eps), 0.0)
        total = nearness.sum()
        return nearness / torch.where(total > 0, total, 1.0)
