"""Federated averaging as a good JAX user writes it by hand: one jitted program a round.

Clients of all seeds are one axis of `vmap`, their steps a `lax.scan`. The program shuffles, gathers batches
from the data set on the device, trains, averages and evaluates; the models it is given are donated. Clients
with different amounts of data are padded to the largest, or trained in buckets (`Choice.buckets`): sorted by
size, those that are done leave the scan at a few points that are known when the program is traced.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax, random
from torch import nn

Models = dict[str, tuple[jax.Array, jax.Array]]
"""The weight and the bias of every layer that has them, stacked over models."""
EVALUATED_ROWS = 1000
"""The most rows of the test set that models see at a time."""


@dataclass(frozen=True)
class Choice:
    """What changes the speed of the program and not its result."""

    convolution: str = "patches"
    """`grouped`: XLA's convolution, of many groups under vmap; `patches`: one product with gathered patches;
    `taps`: one product for every place of the filter."""
    pool: str = "reshape"
    """`reshape`: the maximum over two axes; `slices`: of four strided slices; `window`: reduce_window's."""
    unroll: int = 1
    """How many steps a pass of the scan's loop has."""
    buckets: int = 1
    """How many scans there are, each with fewer clients than the one before; 1: all are padded."""
    random: str = "rbg"
    """How random bits are made: `rbg` by the hardware's generator, `threefry2x32` by hashes that fuse."""


class Layer(NamedTuple):
    """One layer of a sequential model."""

    kind: str
    name: str
    shape: tuple[int, ...]
    """What comes out of it for one image: (height, width, channels), or (features,)."""
    padding: int = 0
    rate: float = 0.0
    """How much is dropped."""


def layers_of(module: nn.Module, shape: tuple[int, ...]) -> list[Layer]:
    """The layers of a Classifier of this library, for images of (channels, height, width)."""
    channels, height, width = shape
    now: tuple[int, ...] = (height, width, channels)
    found = []
    for name, layer in module.named_modules():
        if list(layer.children()):
            continue
        kind, padding, rate = type(layer).__name__, 0, 0.0
        if isinstance(layer, nn.Conv2d):
            padding = int(layer.padding[0])
            lost = layer.kernel_size[0] - 1 - 2 * padding
            now = (now[0] - lost, now[1] - lost, layer.out_channels)
        elif isinstance(layer, nn.MaxPool2d):
            now = (now[0] // 2, now[1] // 2, now[2])
        elif isinstance(layer, nn.Flatten):
            now = (int(np.prod(now)),)
        elif isinstance(layer, nn.Linear):
            now = (layer.out_features,)
        elif isinstance(layer, nn.Dropout | nn.Dropout2d):
            rate = layer.p
        elif not isinstance(layer, nn.ReLU):
            raise TypeError(f"no translation of {kind}")
        found.append(Layer(kind, name, now, padding, rate))
    return found


def translated(layers: Sequence[Layer], weights: dict[str, np.ndarray], shape: tuple[int, ...]) -> Models:
    """Torch's stacked weights with channels last: [models, in, out] and [models, height, width, in, out]."""
    models: Models = {}
    before: tuple[int, ...] = (shape[1], shape[2], shape[0])
    unflattened = before
    for layer in layers:
        if layer.kind == "Flatten":
            unflattened = before
        elif layer.kind in {"Conv2d", "Linear"}:
            weight = weights[f"{layer.name}.weight"]
            if layer.kind == "Conv2d":
                weight = weight.transpose(0, 3, 4, 2, 1)
            elif weight.shape[2] == np.prod(unflattened):
                height, width, channels = unflattened
                weight = weight.reshape(*weight.shape[:2], channels, height, width)
                weight = weight.transpose(0, 3, 4, 2, 1).reshape(len(weight), -1, layer.shape[0])
                unflattened = (0,)  # only the first layer after it reads images
            else:
                weight = weight.transpose(0, 2, 1)
            models[layer.name] = (jnp.asarray(weight), jnp.asarray(weights[f"{layer.name}.bias"]))
        before = layer.shape
    return models


def _shifted(x: jax.Array, weight: jax.Array, padding: int) -> list[jax.Array]:
    """The image under every place of the filter."""
    size = weight.shape[0]
    x = jnp.pad(x, ((0, 0), (padding, padding), (padding, padding), (0, 0)))
    height, width = x.shape[1] - size + 1, x.shape[2] - size + 1
    return [x[:, i : i + height, j : j + width] for i in range(size) for j in range(size)]


def _grouped(x: jax.Array, weight: jax.Array, padding: int) -> jax.Array:
    sides = [(padding, padding)] * 2
    return lax.conv_general_dilated(x, weight, (1, 1), sides, dimension_numbers=("NHWC", "HWIO", "NHWC"))


def _patches(x: jax.Array, weight: jax.Array, padding: int) -> jax.Array:
    return jnp.concatenate(_shifted(x, weight, padding), axis=-1) @ weight.reshape(-1, weight.shape[-1])


def _taps(x: jax.Array, weight: jax.Array, padding: int) -> jax.Array:
    filters = weight.reshape(-1, *weight.shape[2:])
    return sum(part @ filters[i] for i, part in enumerate(_shifted(x, weight, padding)))  # type: ignore[return-value]


def _reshape_pool(x: jax.Array) -> jax.Array:
    rows, height, width, channels = x.shape
    x = x[:, : height // 2 * 2, : width // 2 * 2]
    return x.reshape(rows, height // 2, 2, width // 2, 2, channels).max((2, 4))


def _slices_pool(x: jax.Array) -> jax.Array:
    x = x[:, : x.shape[1] // 2 * 2, : x.shape[2] // 2 * 2]
    upper, lower = x[:, ::2], x[:, 1::2]
    return jnp.maximum(
        jnp.maximum(upper[:, :, ::2], upper[:, :, 1::2]), jnp.maximum(lower[:, :, ::2], lower[:, :, 1::2])
    )


def _window_pool(x: jax.Array) -> jax.Array:
    return lax.reduce_window(x, np.array(-np.inf, x.dtype), lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")


CONVOLUTIONS = {"grouped": _grouped, "patches": _patches, "taps": _taps}
POOLS = {"reshape": _reshape_pool, "slices": _slices_pool, "window": _window_pool}


@dataclass(frozen=True)
class Federation:
    """Who has which data, who hears whom, and how clients train."""

    layers: tuple[Layer, ...]
    inputs: np.ndarray
    """[rows, height, width, channels] uint8; those of `test` alike."""
    targets: np.ndarray
    test_inputs: np.ndarray
    test_targets: np.ndarray
    shift: np.ndarray
    scale: np.ndarray
    shards: tuple[np.ndarray, ...]
    """The rows of every client of every seed, the largest first."""
    start: np.ndarray
    """[clients] the model that each starts from."""
    mix: np.ndarray
    """[models, clients] how new models are made from what clients trained."""
    cohort: int | None
    """How many clients a round has, drawn at random, whose data weigh; None: all, weighted by `mix`."""
    epochs: int
    batch_size: int
    lr: float
    momentum: float
    weight_decay: float
    low: bool
    """Whether models compute in bfloat16; weights and updates stay in float32."""

    @property
    def sizes(self) -> np.ndarray:
        """[clients] how many rows each has."""
        return np.array([len(shard) for shard in self.shards])

    @property
    def steps(self) -> np.ndarray:
        """[clients] how many steps each takes."""
        return self.epochs * -(-self.sizes // self.batch_size)

    @property
    def samples(self) -> int:
        """How many samples a round trains on; clients of a sampled cohort have equally many."""
        total = int(self.sizes.sum()) * self.epochs
        return total if self.cohort is None else total * self.cohort // len(self.shards)

    def on_device(self) -> dict[str, jax.Array]:
        """What the programs read, as arrays on the device."""
        rows = np.zeros((len(self.shards), max(self.sizes)), np.int32)
        for own, shard in zip(rows, self.shards, strict=True):
            own[: len(shard)] = shard
        host: dict[str, Any] = {"inputs": self.inputs, "targets": self.targets.astype(np.int32)}
        host |= {"test_inputs": self.test_inputs, "test_targets": self.test_targets.astype(np.int32)}
        host |= {"shift": self.shift.astype(np.float32), "scale": self.scale.astype(np.float32)}
        host |= {"rows": rows, "sizes": self.sizes.astype(np.int32), "start": self.start}
        return jax.device_put(host | {"mix": self.mix.astype(np.float32)})


@dataclass(frozen=True)
class Program:
    """A federation's computation; every function is pure and can be traced."""

    federation: Federation
    choice: Choice

    def forward(self, model: Models, images: jax.Array, kept: dict[str, jax.Array]) -> jax.Array:
        """[rows, classes] the logits of one model; `kept` has the masks of dropout, nothing in evaluation."""
        kind = jnp.bfloat16 if self.federation.low else jnp.float32
        x = images.astype(kind)
        for layer in self.federation.layers:
            if layer.kind in {"Conv2d", "Linear"}:
                weight, bias = (value.astype(kind) for value in model[layer.name])
                if layer.kind == "Conv2d":
                    x = CONVOLUTIONS[self.choice.convolution](x, weight, layer.padding) + bias
                else:
                    x = x @ weight + bias
            elif layer.kind == "ReLU":
                x = jax.nn.relu(x)
            elif layer.kind == "MaxPool2d":
                x = POOLS[self.choice.pool](x)
            elif layer.kind == "Flatten":
                x = x.reshape(len(x), -1)
            elif layer.name in kept:
                x = jnp.where(kept[layer.name], x / (1 - layer.rate), 0)
        return x.astype(jnp.float32)

    def loss(
        self, model: Models, images: jax.Array, labels: jax.Array, there: jax.Array, kept: Any
    ) -> jax.Array:
        """The mean cross-entropy of the rows that are there."""
        logs = jax.nn.log_softmax(self.forward(model, images, kept))
        losses = -jnp.take_along_axis(logs, labels[:, None], axis=1)[:, 0]
        return (losses * there).sum() / jnp.maximum(there.sum(), 1)

    def masks(self, key: jax.Array, clients: int, rows: int) -> dict[str, jax.Array]:
        """What dropout keeps, of all clients at once: bytes are compared, which is exact for these rates."""
        masks = {}
        for number, layer in enumerate(self.federation.layers):
            if layer.rate:
                shape = (1, 1, layer.shape[2]) if layer.kind == "Dropout2d" else layer.shape
                bits = random.bits(random.fold_in(key, number), (clients, rows, *shape), jnp.uint8)
                masks[layer.name] = bits >= round(layer.rate * 256)
        return masks

    def train(self, data: dict[str, jax.Array], models: Models, rows: jax.Array, key: jax.Array) -> Models:
        """The models [clients, ...] after their steps over rows [steps, clients, batch], -1 for no row."""
        federation = self.federation
        velocity = jax.tree.map(jnp.zeros_like, models) if federation.momentum else None
        gradients = jax.vmap(jax.grad(self.loss))

        def step(state: Any, given: Any) -> tuple[Any, None]:
            models, velocity = state
            rows, number = given
            there = rows >= 0
            flat = jnp.maximum(rows, 0)
            images = self.normalised(data, data["inputs"][flat])
            kept = self.masks(random.fold_in(key, number), *rows.shape)
            grads = gradients(models, images, data["targets"][flat], there.astype(jnp.float32), kept)
            # A client that has finished stays where it is; what its velocity is does not matter then.
            rate = federation.lr * there.any(1)
            if federation.weight_decay:
                grads = jax.tree.map(lambda g, p: g + federation.weight_decay * p, grads, models)
            if velocity is not None:
                velocity = grads = jax.tree.map(lambda v, g: federation.momentum * v + g, velocity, grads)
            moved = jax.tree.map(lambda p, d: p - rate.reshape(-1, *[1] * (p.ndim - 1)) * d, models, grads)
            return (moved, velocity), None

        state = (models, velocity)
        for begin, end, live in self.stretches():
            some = jax.tree.map(lambda value, live=live: value[:live], state)
            given = (rows[begin:end, :live], jnp.arange(begin, end))
            some, _ = lax.scan(step, some, given, unroll=min(self.choice.unroll, end - begin))
            state = jax.tree.map(lambda value, new, live=live: value.at[:live].set(new), state, some)
        return state[0]

    def stretches(self) -> list[tuple[int, int, int]]:
        """The scans: (first step, step after the last, clients that still train)."""
        steps = self.federation.steps[: self.federation.cohort]
        count = len(steps)
        cuts = sorted({int(steps[i * count // self.choice.buckets]) for i in range(self.choice.buckets)})
        starts = [0, *cuts[:-1]]
        return [(a, b, int((steps > a).sum())) for a, b in zip(starts, cuts, strict=True)]

    def normalised(self, data: dict[str, jax.Array], images: jax.Array) -> jax.Array:
        """Images as models take them."""
        return (images.astype(jnp.float32) - data["shift"]) / data["scale"]

    def shuffled(self, key: jax.Array, own: jax.Array, sizes: jax.Array) -> jax.Array:
        """[steps, clients, batch] the rows of every step; every epoch is shuffled anew, -1 is no row."""
        epochs, batch = self.federation.epochs, self.federation.batch_size
        clients, most = own.shape
        noise = random.bits(key, (clients, epochs, most), jnp.uint32)
        absent = jnp.arange(most) >= sizes[:, None, None]
        spread = jnp.broadcast_to(own[:, None], noise.shape)
        _, order = lax.sort((jnp.where(absent, jnp.uint32(2**32 - 1), noise), spread), num_keys=1)
        each = -(-sizes // batch)[:, None]  # steps of an epoch
        number = jnp.arange(max(self.federation.steps))
        epoch = number // each
        place = (number % each)[:, :, None] * batch + jnp.arange(batch)
        there = (place < sizes[:, None, None]) & (epoch < epochs)[:, :, None]
        which = jnp.arange(clients)[:, None, None]
        found = order[which, jnp.minimum(epoch, epochs - 1)[:, :, None], jnp.minimum(place, most - 1)]
        return jnp.where(there, found, -1).swapaxes(0, 1)

    def exchange(
        self,
        data: dict[str, jax.Array],
        models: Models,
        rows: jax.Array,
        key: jax.Array,
        mix: jax.Array,
        start: jax.Array,
    ) -> Models:
        """The new models: clients train from the old ones and are averaged."""
        trained = self.train(data, jax.tree.map(lambda value: value[start], models), rows, key)
        average = partial(jnp.tensordot, mix, axes=1, precision=lax.Precision.HIGHEST)
        return jax.tree.map(average, trained)

    def round(self, data: dict[str, jax.Array], models: Models, key: jax.Array) -> Models:
        """The models after one round."""
        first, second, third = random.split(key, 3)
        own, sizes, mix, start = (data[name] for name in ("rows", "sizes", "mix", "start"))
        if self.federation.cohort is not None:
            chosen = random.permutation(first, len(own))[: self.federation.cohort]
            own, sizes, start = own[chosen], sizes[chosen], start[chosen]
            mix = (sizes / sizes.sum())[None]
        return self.exchange(data, models, self.shuffled(second, own, sizes), third, mix, start)

    def scores(self, data: dict[str, jax.Array], models: Models) -> tuple[jax.Array, jax.Array]:
        """[models] the accuracy and the mean loss on the whole test set."""
        count = len(data["test_targets"])
        rows = next(size for size in range(min(EVALUATED_ROWS, count), 0, -1) if count % size == 0)
        images = data["test_inputs"].reshape(-1, rows, *data["test_inputs"].shape[1:])
        labels = data["test_targets"].reshape(-1, rows)

        def part(total: Any, given: Any) -> tuple[Any, None]:
            chosen, labels = given
            logits = jax.vmap(lambda model: self.forward(model, self.normalised(data, chosen), {}))(models)
            right = (logits.argmax(-1) == labels).sum(1)
            losses = -jnp.take_along_axis(jax.nn.log_softmax(logits), labels[None, :, None], axis=2)
            return (total[0] + right, total[1] + losses.sum((1, 2))), None

        count_of = len(next(iter(models.values()))[1])
        blank = (jnp.zeros(count_of, jnp.int32), jnp.zeros(count_of))
        (right, loss), _ = lax.scan(part, blank, (images, labels))
        return right / count, loss / count

    def compiled(self, rounds: int = 1) -> Callable[..., tuple[Models, Any]]:
        """The jitted `(models, data, keys) -> models, scores` of some rounds and one evaluation."""

        def block(models: Models, data: dict[str, jax.Array], keys: jax.Array) -> tuple[Models, Any]:
            if rounds == 1:
                models = self.round(data, models, keys[0])
            else:
                models, _ = lax.scan(lambda now, key: (self.round(data, now, key), None), models, keys)
            return models, self.scores(data, models)

        return jax.jit(block, donate_argnums=0)
