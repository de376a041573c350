"""Networks of papers' settings as they would be with what the papers leave open decided otherwise."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from consilience.models.mlp import MLP
from consilience.models.spec import Classifier


def glorot_mlp(shape: tuple[int, ...], outputs: int, hidden: Sequence[int] = (200, 200)) -> Classifier:
    """HWA's perceptron with Glorot's uniform weights and biases of 0, as Keras begins."""
    network = MLP(tuple(hidden)).build(shape, outputs)
    for module in network.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)
    return network
