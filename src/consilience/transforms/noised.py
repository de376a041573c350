"""Gaussian noise on what clients send.

The robustness experiment of Ahmad, Luo, Robles-Kelly: Robust federated learning under statistical
heterogeneity via hessian-weighted aggregation (Machine Learning 2023): N(0, sigma^2) on every coordinate of
the upload and of the curvature that goes with it, which is clamped at 0 afterwards, because it is a weight.

Curvature is the group `importance` (HWA, DecHW), as it is sent, i.e. with unit norm. FedCurv's Fisher terms
are left alone: they are changes of sums that a hub keeps, so noise would add up there round after round.
On a graph a node hears itself as its neighbours do, with the same noise. Curvature that receivers keep and
that is not sent again (DecHW* in mode freeze) has other noise every round nevertheless.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from consilience.learning.randomness import normals
from consilience.sweeping import check_non_negative, is_zero
from consilience.transforms.base import Message, Transform
from consilience.types import Number, Params, State

CURVATURE = "importance"
"""The group of a message that holds curvature."""
_STREAM = 1 << 20  # far from other uses of a client's key
_TENSORS = 1 << 16  # more than a group ever has


@final
@dataclass(frozen=True)
class Noised(Transform):
    """Adds Gaussian noise to the update and to the curvature that goes with it.

    Attributes:
        sigma: The standard deviation on each coordinate of the update.
        curvature_sigma: The standard deviation on each coordinate of the curvature; None: as `sigma`.
    """

    name: ClassVar[str] = "noised"
    sigma: float = 0.1
    curvature_sigma: float | None = None

    def __post_init__(self) -> None:
        check_non_negative(self, "sigma")
        if self.curvature_sigma is not None:
            check_non_negative(self, "curvature_sigma")

    def apply(self, message: Message, memory: State) -> tuple[State, State]:
        assert message.group is not None
        sent = dict(message.upload)
        if not is_zero(self.sigma):
            sent[message.group] = _noisy(message, message.group, self.sigma)
        sigma = self.sigma if self.curvature_sigma is None else self.curvature_sigma
        if CURVATURE in sent and not is_zero(sigma):
            noisy = _noisy(message, CURVATURE, sigma)
            sent[CURVATURE] = {name: value.clamp(min=0) for name, value in noisy.items()}
        return sent, memory


def _noisy(message: Message, group: str, sigma: Number) -> Params:
    stream = _STREAM + (2 * message.exchange + (group == CURVATURE)) * _TENSORS
    return {
        name: value + sigma * normals(message.client.key, stream + number, value)
        for number, (name, value) in enumerate(message.upload[group].items())
    }
