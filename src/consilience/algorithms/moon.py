"""MOON: FedAvg whose clients keep their features close to the global model's.

Li, He, Song: Model-Contrastive Federated Learning (CVPR 2021). The objective has the equations; the server
averages as in FedAvg. The paper's weights mu are 5 for CIFAR-10 and 1 for CIFAR-100 and Tiny-ImageNet, with a
projection of 256 features that the output layer reads (simple-cnn, resnet50-cifar, vgg11 with `projection`).
A step costs 1 + pool forward passes more than FedAvg's; no bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

from consilience.algorithm import Family
from consilience.method import Method, Parts
from consilience.objectives.contrastive import Contrastive
from consilience.rules.by_data import ByData, Weighting


@final
@dataclass(frozen=True)
class MOON(Method):
    """FedAvg with a contrastive loss: features near the global model's, far from the last local one's."""

    name: ClassVar[str] = "moon"
    paper: ClassVar[str] = "Li, He, Song, CVPR 2021"
    family: ClassVar[Family] = "drift correction"
    formula: ClassVar[str] = (
        "clients minimise F_k(v) - mu log(e^(cos(z,z_w)/T) / (e^(cos(z,z_w)/T) + e^(cos(z,z_prev)/T)))"
    )
    choose: ClassVar[str] = (
        "For image models when clients' features drift apart; costs two forward passes a step."
    )
    mu: float = 5.0
    temperature: float = 0.5
    pool: int = 1
    weighting: Weighting = "samples"

    def parts(self) -> Parts:
        return Parts(Contrastive(self.mu, self.temperature, self.pool), ByData(self.weighting))
