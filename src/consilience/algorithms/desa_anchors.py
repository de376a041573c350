"""Synthetic anchors: a few images of every class, whose mean features are those of a client's own images.

Zhao, Bilen: Dataset Condensation with Distribution Matching (WACV 2023). In every iteration a random network
phi is drawn, and with X_c the client's samples of class c and S_c its anchors of that class, S_c descends

    || mean_{x in X_c} phi(x) - mean_{s in S_c} phi(s) ||^2

A class without samples is skipped: its anchors stay what they were. An iteration is one pass over all of a
client's samples, so it depends neither on the size of batches nor on their order. All clients of a seed draw
the same network, so that with one seed a single large convolution serves them all on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor
from torch.nn import functional as F

from consilience.client import Client, Step
from consilience.learning.randomness import KEY_BITS, normals, stream_bits
from consilience.types import Batch, Number, Params, State

EPSILON = 1e-5
"""What is added to a variance before something is divided by it."""
_STREAM = 1 << 24  # far from other uses of a key
NOISE_STREAM = _STREAM - 1


def random_network(
    key: Tensor, number: int, shape: tuple[int, ...], width: int, depth: int, like: Tensor
) -> Params:
    """The weights of one of a series of random networks: normal, each layer's outputs of variance 1.

    Images get convolutions, at most `depth` and no more than they can be halved; other inputs dense layers.

    Args:
        key: 0-d, the source of the series.
        number: The number of the network in the series.
        shape: The shape of an input.
        width: The channels (or features) of every layer.
        depth: The number of layers.
        like: A tensor of the type and on the device that the weights get.
    """
    own = stream_bits(key, torch.tensor(number, device=like.device), KEY_BITS)
    halvings = min(depth, min(shape[1:]).bit_length() - 1) if len(shape) == 3 else 0
    shapes: list[tuple[int, ...]]
    if halvings:
        shapes = [(width, width if layer else shape[0], 3, 3) for layer in range(halvings)]
    else:
        shapes = [(width, width if layer else torch.Size(shape).numel()) for layer in range(depth)]
    return {
        f"{layer}.weight": normals(
            own, _STREAM + layer, torch.empty(size, dtype=like.dtype, device=like.device)
        )
        / torch.Size(size[1:]).numel() ** 0.5
        for layer, size in enumerate(shapes)
    }


def embed(network: Params, inputs: Tensor) -> Tensor:
    """[rows, features] what a network makes of inputs.

    In each layer there is a product, normalisation of every row, ReLU and, of images, pooling.
    """
    x = inputs
    for weight in network.values():
        if weight.ndim == 4:
            x = F.avg_pool2d(F.relu(_standardised(F.conv2d(x, weight, padding=1), (2, 3))), 2)
        else:
            x = F.relu(_standardised(x.flatten(1) @ weight.T, (1,)))
    return x.flatten(1)


def _standardised(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    centred = x - x.mean(axes, keepdim=True)  # on a CPU, torch.var_mean takes longer than all the rest
    return centred * torch.rsqrt(centred.square().mean(axes, keepdim=True) + EPSILON)


def mismatch(network: Params, anchors: Tensor, mean: Tensor) -> Tensor:
    """The squared distance between the mean features of one class's anchors and those of its samples.

    Args:
        network: The weights of a random network.
        anchors: [images, ...] the anchors of the class.
        mean: [features] the mean features of the client's samples of the class.
    """
    return (embed(network, anchors).mean(0) - mean).square().sum()


@final
@dataclass(frozen=True)
class ClassFeatures(Step):
    """Adds up the features of every class. The network is in `extras`, which all batches share."""

    def measure(self, carry: State, batch: Batch, extras: State) -> State:
        members = _members(batch, len(carry["sum"]["features"]))
        return {"sum": {"features": members @ embed(extras["network"], batch.inputs)}}


@final
@dataclass(frozen=True)
class ClassRows(Step):
    """Counts the rows of every class."""

    def measure(self, carry: State, batch: Batch, extras: State) -> State:
        return {"sum": {"rows": _members(batch, len(carry["sum"]["rows"])).sum(1)}}


def _members(batch: Batch, classes: int) -> Tensor:
    """[classes, rows] 1 where a row that counts is of a class, else 0."""
    numbers = torch.arange(classes, device=batch.targets.device)
    return ((batch.targets == numbers[:, None]) & (batch.weight > 0)).to(batch.weight.dtype)


def class_rows(client: Client, classes: int) -> Tensor:
    """[classes] how many samples of each class a client has."""
    blank = {"rows": client.samples.new_zeros(classes)}
    return client.fold(ClassRows(), {"sum": blank}, {}, "samples")["sum"]["rows"]


def class_features(client: Client, network: Params, like: Tensor, rows: Tensor) -> Tensor:
    """[classes, features] the mean features of a client's samples; 0 where it has none.

    Args:
        client: The client that has the samples.
        network: The weights of the network that gives the features.
        like: [1, ...] an input, from which the number of features follows.
        rows: [classes] how many samples of each class the client has.
    """
    blank = {"features": client.samples.new_zeros(len(rows), embed(network, like).shape[1])}
    found = client.fold(ClassFeatures(), {"sum": blank}, {"network": network}, "samples")["sum"]
    return found["features"] / rows.clamp(min=1)[:, None]


@dataclass(frozen=True)
class Matching:
    """How anchors are made: the iterations, the descent, and the random networks."""

    iterations: int
    lr: Number
    momentum: Number
    width: int
    depth: int

    def __call__(self, client: Client, start: Tensor, rows: Tensor) -> Tensor:
        """[classes, images, ...] a client's anchors, after their descent.

        Args:
            client: The client whose samples they match.
            start: [classes, images, ...] where the descent begins.
            rows: [classes] how many samples of each class the client has.
        """
        anchors, velocity = start, torch.zeros_like(start)
        classes, shape = len(start), tuple(start.shape[2:])
        slope = torch.func.grad(mismatch, argnums=1)
        present = (rows > 0).reshape(-1, *[1] * (start.ndim - 1))
        for number in range(self.iterations):
            network = random_network(client.common_key, number, shape, self.width, self.depth, start)
            means = class_features(client, network, start[0, :1], rows)
            # Class by class, because the activations of all anchors of all clients would fill the memory.
            slopes = torch.stack([slope(network, anchors[c], means[c]) for c in range(classes)])
            velocity = self.momentum * velocity + torch.where(present, slopes, 0.0)
            anchors = anchors - self.lr * velocity
        return anchors
