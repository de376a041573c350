"""A language model that sees the last few tokens."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, final

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from consilience.errors import UserError
from consilience.models.spec import Classifier, ModelSpec


class _Windows(nn.Module):
    """The embeddings of each place and of those before it, [batch, places, window * width]."""

    def __init__(self, tokens: int, width: int, window: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(tokens, width)
        self.window = window

    def forward(self, x: Tensor) -> Tensor:
        """The windows of tokens [batch, places]."""
        embedded = F.pad(self.embedding(x), (0, 0, self.window - 1, 0))
        return torch.cat([embedded[:, back : back + x.shape[1]] for back in range(self.window)], -1)


@final
@dataclass(frozen=True)
class WindowLM(ModelSpec):
    """Embeddings of the last `window` tokens and a hidden layer, at every place (Bengio et al. 2003)."""

    name: ClassVar[str] = "window-lm"

    window: int = 4
    width: int = 32
    hidden: int = 128

    def __post_init__(self) -> None:
        if min(self.window, self.width, self.hidden) < 1:
            raise UserError("model window-lm needs a window, width and hidden layer of at least 1")

    def build(self, shape: tuple[int, ...], outputs: int) -> Classifier:
        """A network that predicts at every place, [batch, places, outputs]."""
        if len(shape) != 1:
            raise UserError(f"model window-lm needs sequences of tokens, [places], got shape {shape}")
        windows = _Windows(outputs, self.width, self.window)
        hidden = nn.Sequential(windows, nn.Linear(self.window * self.width, self.hidden), nn.Tanh())
        return Classifier(hidden, nn.Linear(self.hidden, outputs))
