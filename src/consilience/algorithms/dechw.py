"""DecHW and DecHW*: Hessian-weighted aggregation without a server.

Ahmad et al.: DecHW: Heterogeneous Decentralized Federated Learning Exploiting Second-Order Information.
Every node averages its closed neighbourhood coordinate by coordinate, weighted by curvature diagonals
that have unit norm over the whole model and add up over rounds (eq. 4-8). DecHW* computes and sends
curvature in the first `until` rounds only.

The preset `released` is what the authors' code computes where that differs from the paper: squared
gradients of batch means, not normalised, an exponential average that with beta = 1 keeps the newest
diagonal, the node itself left out, uniform fallback weights, and local training that stops when the
held-out loss rises (its roll-back restores aliased tensors, so the weights at that point stay; needs
`partition.holdout`, 0.2 there). Its fallback weight of 0 is not followed: eq. 8 is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, final

from consilience.algorithm import Algorithm, Conditions, Family, Phase
from consilience.client import Client
from consilience.errors import UserError
from consilience.learning.curvature import Kind
from consilience.method import Composed, Method, Parts
from consilience.objectives.base import Objective
from consilience.rules.by_data import ByData, Weighting
from consilience.rules.hessian_weighted import Accumulate, HessianWeighted
from consilience.types import State

Preset = Literal["printed", "released"]
"""Whether a method follows the paper as printed, or what the authors' code computes."""


@final
@dataclass(frozen=True)
class DecHW(Method):
    """Averages over neighbourhoods, weighted in all layers by accumulated curvature."""

    name: ClassVar[str] = "dechw"
    paper: ClassVar[str] = "Ahmad et al., DecHW"
    family: ClassVar[Family] = "curvature and statistics"
    formula: ClassVar[str] = "w_i = sum_j T_j w_j / sum_j T_j per coordinate, T_j accumulated curvature"
    choose: ClassVar[str] = "On a graph of peers with different data and different initial models."
    preset: Preset = "printed"
    beta: float = 1.0
    kind: Kind | None = None
    """The curvature diagonal; None: as the preset says (per_sample_sum, or batch_sum in the release)."""
    normalize: bool | None = None
    """Whether a diagonal has unit norm over the model; None: as the preset says."""
    accumulate: Accumulate | None = None
    """How diagonals add up over rounds; None: as the preset says."""
    guard: float | None = None
    """The cap on exaggerated curvature, e.g. 1: see the rule; None is the paper."""

    def parts(self) -> Parts:
        return Parts(Objective(early_stop="stop" if self.preset == "released" else "never"), self.rule())

    def rule(self, kind: type[HessianWeighted] = HessianWeighted) -> HessianWeighted:
        """This method's rule, as an instance of `kind`."""
        printed = self.preset == "printed"
        normalize = printed if self.normalize is None else self.normalize
        return kind(
            layers="all",
            kind=self.kind or ("per_sample_sum" if printed else "batch_sum"),
            norm_scope="model" if normalize else "none",
            accumulate=self.accumulate or ("sum" if printed else "ema"),
            beta=self.beta,
            include_self=printed,
            weighting="samples" if printed else "uniform",
            guard=self.guard,
        )


@final
@dataclass(frozen=True)
class DecHWStar(Method):
    """DecHW for the first rounds, then plain averages (or the last curvature, frozen)."""

    name: ClassVar[str] = "dechw*"
    paper: ClassVar[str] = "Ahmad et al., DecHW"
    family: ClassVar[Family] = "curvature and statistics"
    formula: ClassVar[str] = "DecHW for the first rounds, then plain averages or frozen weights"
    choose: ClassVar[str] = "As DecHW, when its extra bytes are affordable only for the first rounds."
    until: int = 30
    """How many rounds compute and send curvature."""
    mode: Literal["average", "freeze"] = "average"
    """What follows: plain averages, or weights from the curvature that was sent last."""
    preset: Preset = "printed"
    beta: float = 1.0
    guard: float | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.until < 0:
            raise UserError(f"dechw*: until must be at least 0 rounds, not {self.until}")

    def parts(self) -> Parts:
        return DecHW(self.preset, self.beta, guard=self.guard).parts()

    def at(self, round_number: int) -> Algorithm:
        if round_number < self.until:
            return self
        if self.mode == "freeze":
            return FrozenDecHW(self.preset, self.beta, self.guard)
        weighting: Weighting = "samples" if self.preset == "printed" else "uniform"
        return Composed(self.parts().objective, ByData(weighting))

    def refuse(self, conditions: Conditions) -> str | None:
        if self.mode == "freeze" and (conditions.unreliable or conditions.redrawn):
            return (
                "mode freeze uses curvature that every neighbour has heard, so nobody may be missing and "
                "neighbours stay the same"
            )
        return super().refuse(conditions)


@final
@dataclass(frozen=True)
class Resent(HessianWeighted):
    """Weights from the curvature that a client remembers, without a new diagonal."""

    def evidence(self, client: Client, model: State, memory: State) -> tuple[State, State]:
        return {"importance": memory["importance"]}, {}


@final
@dataclass(frozen=True)
class FrozenDecHW(Method):
    """DecHW with the curvature that was sent last: a receiver keeps it, so only models travel."""

    name: ClassVar[str] = "dechw-frozen"
    preset: Preset = "printed"
    beta: float = 1.0
    guard: float | None = None

    def parts(self) -> Parts:
        dechw = DecHW(self.preset, self.beta, guard=self.guard)
        return Parts(dechw.parts().objective, dechw.rule(Resent))

    def phases(self) -> tuple[Phase, ...]:
        (exchange,) = super().phases()
        return (exchange._replace(kept=frozenset({"importance"})),)
