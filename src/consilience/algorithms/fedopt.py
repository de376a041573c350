"""FedAdagrad, FedAdam and FedYogi: an adaptive optimiser at the server.

Reddi, Charles, Zaheer, Garrett, Rush, Konecny, Kumar, McMahan: Adaptive Federated Optimization (ICLR 2021),
there together FedOpt. With D = sum_k p_k (w_k - w), m = 0 and v = tau^2 before the first round:

    m <- beta1 m + (1 - beta1) D
    v <- v + D^2                                  FedAdagrad
    v <- beta2 v + (1 - beta2) D^2                FedAdam
    v <- v - (1 - beta2) D^2 sign(v - D^2)        FedYogi
    w <- w + server_lr m / (sqrt(v) + tau)

There is no bias correction. FedAdagrad has no momentum by default (m = D), as in the paper's experiments.
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import ClassVar, final

from consilience.algorithm import Family
from consilience.method import Method, Parts
from consilience.rules.by_data import ByData, Weighting
from consilience.server_steps.adaptive import Adaptive


class _FedOpt(Method):
    """FedAvg with an optimiser at the server."""

    paper: ClassVar[str] = "Reddi et al., ICLR 2021"
    family: ClassVar[Family] = "server optimisers"
    weighting: Weighting

    @abstractmethod
    def optimiser(self) -> Adaptive:
        """What the server does with the mean of the models."""

    def parts(self) -> Parts:
        return Parts(rule=ByData(self.weighting), server=self.optimiser())


@final
@dataclass(frozen=True)
class FedAdagrad(_FedOpt):
    """FedAvg with Adagrad at the server."""

    name: ClassVar[str] = "fedadagrad"
    formula: ClassVar[str] = "D = mean_k w_k - w; v <- v + D^2; w <- w + server_lr D / (sqrt(v) + tau)"
    choose: ClassVar[str] = "When features are sparse, e.g. words: what rarely changes takes larger steps."
    server_lr: float = 0.01
    beta1: float = 0.0
    tau: float = 1e-3
    weighting: Weighting = "samples"

    def optimiser(self) -> Adaptive:
        return Adaptive("adagrad", self.server_lr, self.beta1, tau=self.tau)


@final
@dataclass(frozen=True)
class FedAdam(_FedOpt):
    """FedAvg with Adam at the server."""

    name: ClassVar[str] = "fedadam"
    formula: ClassVar[str] = (
        "D = mean_k w_k - w; m, v <- moving means of D, D^2; w <- w + server_lr m / (sqrt(v) + tau)"
    )
    choose: ClassVar[str] = "When coordinates change on very different scales, e.g. in language models."
    server_lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    weighting: Weighting = "samples"

    def optimiser(self) -> Adaptive:
        return Adaptive("adam", self.server_lr, self.beta1, self.beta2, self.tau)


@final
@dataclass(frozen=True)
class FedYogi(_FedOpt):
    """FedAvg with Yogi at the server."""

    name: ClassVar[str] = "fedyogi"
    formula: ClassVar[str] = (
        "D = mean_k w_k - w; v <- v - (1 - beta2) D^2 sign(v - D^2); w <- w + server_lr m / (sqrt(v) + tau)"
    )
    choose: ClassVar[str] = "As fedadam, where updates vary in size: after small ones, steps grow slowly."
    server_lr: float = 0.01
    beta1: float = 0.9
    beta2: float = 0.99
    tau: float = 1e-3
    weighting: Weighting = "samples"

    def optimiser(self) -> Adaptive:
        return Adaptive("yogi", self.server_lr, self.beta1, self.beta2, self.tau)
