"""DeSA: peers keep their models to themselves and agree on synthetic images, on which they teach each other.

Huang, Srinivas, Zhang, Li: Overcoming Data and Model Heterogeneities in Decentralized Federated Learning
via Synthetic Anchors (ICML 2024). Once, every client makes `ipc` images of each class whose features match
those of its own data (`desa_anchors`), and everybody takes the pixel-wise mean over all clients of the s-th
image of class c: the anchors. In every round a node trains its own model with

    lambda_ori CE + lambda_kd L_KD + lambda_reg L_REG      (`objectives.synthetic_anchors`)

where the teacher of L_KD is the mean of its neighbours' logits of the anchors, in evaluation mode. Only
anchors, once, and then logits travel. Images of a class that a client lacks stay noise, which the mean
takes along, as the authors' release does; `average = "holders"` leaves them out.

A round is training, then logits; the first logits are those of the initial models, before round 0. With full
participation that is the paper's order, logits and then training, and each exchange depends on data: a client
whose data are broken is noticed before it teaches anybody.

Deviations from the release: matching sees all samples of a client in every iteration (not 256 a class), all
clients match in the same random networks, images are neither augmented nor clamped to valid pixels, and the
step's anchors are drawn at random, the same for L_KD and L_REG. Where L_KD divides by the number of
classes there (`kl = "released"`), the default here is the mean over anchors alone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple, final

import torch
from torch import Tensor

from consilience import aggregate
from consilience.algorithm import (
    Algorithm,
    Conditions,
    Evaluated,
    Family,
    Inbox,
    Phase,
    SingleExchange,
    nothing,
)
from consilience.algorithms.desa_anchors import NOISE_STREAM, Matching, class_rows
from consilience.client import Client
from consilience.errors import UserError
from consilience.learning.randomness import normals
from consilience.objectives.synthetic_anchors import Reduction, SyntheticAnchors
from consilience.sweeping import check_non_negative, is_swept, is_zero, replace
from consilience.types import Batch, State

AT_ONCE = 100
"""How many anchors pass through a model together where their logits are wanted."""


class _Facts(NamedTuple):
    """The shape of an input and the number of classes."""

    inputs: tuple[int, ...]
    classes: int


NO_DATA = _Facts((), 0)
"""The form before the engine has said what the data look like."""


@dataclass(frozen=True)
class DESA(SingleExchange):
    """Peers learn from each other's answers to common synthetic images; models stay at home.

    Attributes:
        ipc: The number of anchors of each class.
        iterations: The iterations of the matching that makes them, each one pass over a client's data.
        lambda_ori: The weight of the cross-entropy.
        lambda_kd: The weight of the distillation.
        lambda_reg: The weight of the contrast.
        train_on_anchors: Whether the cross-entropy is that of anchors too.
        anchors_per_step: How many anchors a step draws; None: it takes all.
        kl: How the divergence of distillation is reduced.
        temperature: The temperature of the distillation.
        distil_weight: The divergence's share in the distillation, beside the anchors' cross-entropy.
        contrast_temperature: The temperature of the contrast.
        average: The clients whose images an anchor is the mean of: all, or those that have its class.
        start: Whether matching starts from noise of each client's own, or from the same for all of a seed.
        matching_lr: The learning rate of the matching.
        matching_momentum: The momentum of the matching.
        width: The channels of every layer of the random networks.
        depth: The layers of the random networks.
    """

    name: ClassVar[str] = "desa"
    paper: ClassVar[str] = "Huang, Srinivas, Zhang, Li, ICML 2024"
    family: ClassVar[Family] = "personalisation"
    formula: ClassVar[str] = (
        "w_k <- training with CE + KL(mean of neighbours' logits || own) on anchors + contrast with anchors"
    )
    choose: ClassVar[str] = "When peers should not share models, or few bytes, and have lopsided classes."
    ipc: int = 50
    iterations: int = 1000
    lambda_ori: float = 1.0
    lambda_kd: float = 1.0
    lambda_reg: float = 1.0
    train_on_anchors: bool = True
    anchors_per_step: int | None = 32
    kl: Reduction = "batchmean"
    temperature: float = 20.0
    distil_weight: float = 0.9
    contrast_temperature: float = 0.07
    average: Literal["all", "holders"] = "all"
    start: Literal["own", "common"] = "own"
    matching_lr: float = 1.0
    matching_momentum: float = 0.5
    width: int = 128
    depth: int = 3

    def __post_init__(self) -> None:
        check_non_negative(self, "lambda_ori", "lambda_kd", "lambda_reg", "matching_lr")
        for name, least in (
            ("ipc", 1),
            ("iterations", 0),
            ("anchors_per_step", 1),
            ("width", 1),
            ("depth", 1),
        ):
            value = getattr(self, name)
            if value is not None and value < least:
                raise UserError(f"desa: {name} must be at least {least}, not {value}")
        for name in ("temperature", "contrast_temperature"):
            value = getattr(self, name)
            if not is_swept(value) and not value > 0:
                raise UserError(f"desa: {name} must be above 0, not {value}")
        for name in ("distil_weight", "matching_momentum"):
            value = getattr(self, name)
            if not is_swept(value) and not 0 <= value <= 1:
                raise UserError(f"desa: {name} must be from 0 to 1, not {value}")

    @property
    def facts(self) -> _Facts:
        """The form of the data, which the engine tells by `for_data` before there is any state."""
        return NO_DATA

    def for_data(self, inputs: tuple[int, ...], classes: int) -> Algorithm:
        return _OnData(**{**vars(self), "known": _Facts(inputs, classes)})

    def evaluated(self) -> Evaluated:
        return "client"

    def quick(self) -> Algorithm:
        return replace(self, {"iterations": 0})

    def init_hub(self, model: State) -> State:
        like, (inputs, classes) = next(iter(model["params"].values())), self.facts
        count = classes * self.ipc
        return {
            "anchors": {"images": like.new_zeros(count, *inputs)},
            "teacher": {"logits": like.new_zeros(count, classes), "heard": like.new_zeros(())},
        }

    def init_memory(self, model: State) -> State:
        return model

    def broadcast(self, hub: State) -> State:
        return hub

    def local(self, client: Client, down: State, memory: State) -> tuple[State, State]:
        images = down["anchors"]["images"]
        anchors = {"images": images, "share": len(images) / (len(images) + client.samples)}
        context = {"anchors": anchors, "teacher": down["teacher"]}
        model = client.train(memory, self._objective(), context).model
        return _logits(client, images, model), {**memory, **model}

    def combine(self, hub: State, inbox: Inbox) -> State:
        others = (inbox.peers > 0).to(inbox.peers.dtype)
        mean = inbox.mean("logits", others / others.sum().clamp(min=1))["anchors"]
        return {**hub, "teacher": {"logits": mean, "heard": (others.sum() > 0).to(mean.dtype)}}

    def setup(self) -> tuple[Phase, ...]:
        return (
            Phase(nothing, self._synthesise, self._average, flooded=True),
            Phase(self.broadcast, _first_logits, self.combine),
        )

    def model(self, hub: State, memory: State) -> State:
        return {"params": memory["params"], "buffers": memory["buffers"]}

    def refuse(self, conditions: Conditions) -> str | None:
        if not conditions.problem.has_classes:
            return f"it makes images of every class, and {conditions.problem.name} has none"
        if not conditions.graph:
            return (
                "a node learns from the others' logits, not its own, but a server tells all the same: "
                "choose a graph, e.g. topology complete"
            )
        if not conditions.features and not is_zero(self.lambda_reg):
            return (
                "its contrast needs a model that tells its features from its logits "
                "(a Classifier, as all of `consilience models` are); else set lambda_reg to 0"
            )
        return None

    def _objective(self) -> SyntheticAnchors:
        return SyntheticAnchors(
            lambda_ori=self.lambda_ori,
            lambda_kd=self.lambda_kd,
            lambda_reg=self.lambda_reg,
            train_on_anchors=self.train_on_anchors,
            anchors_per_step=self.anchors_per_step,
            kl=self.kl,
            temperature=self.temperature,
            distil_weight=self.distil_weight,
            contrast_temperature=self.contrast_temperature,
        )

    def _synthesise(self, client: Client, down: State, memory: State) -> tuple[State, State]:
        """A client makes images of its own and sends them."""
        inputs, classes = self.facts
        blank = client.samples.new_zeros(classes, self.ipc, *inputs)
        key = client.key if self.start == "own" else client.common_key
        match = Matching(self.iterations, self.matching_lr, self.matching_momentum, self.width, self.depth)
        rows = class_rows(client, classes)
        images = match(client, normals(key, NOISE_STREAM, blank), rows)
        upload = {"anchors": {"images": images.flatten(0, 1)}}
        if self.average == "holders":
            upload["classes"] = {"present": (rows > 0).to(rows.dtype)}
        return upload, memory

    def _average(self, hub: State, inbox: Inbox) -> State:
        """The hub with the anchors: the mean of the images that clients made."""
        if self.average == "all":
            return {**hub, "anchors": inbox.mean("anchors", inbox.uniform)}
        stacked = inbox["anchors"]["images"].reshape(-1, self.facts.classes, self.ipc, *self.facts.inputs)
        holds = inbox["classes"]["present"] * inbox.heard[:, None]
        counts = holds.sum(0)
        shares = torch.where(counts > 0, holds / counts.clamp(min=1), inbox.uniform[:, None])
        means = [aggregate.weighted_sum(stacked[:, c], shares[:, c]) for c in range(stacked.shape[1])]
        return {**hub, "anchors": {"images": torch.cat(means).to(stacked.dtype)}}


@final
@dataclass(frozen=True)
class _OnData(DESA):
    """DeSA once it is known what the data look like."""

    known: _Facts = NO_DATA

    @property
    def facts(self) -> _Facts:
        return self.known


def _first_logits(client: Client, down: State, memory: State) -> tuple[State, State]:
    return _logits(client, down["anchors"]["images"], memory), memory


def _logits(client: Client, images: Tensor, model: State) -> State:
    """A model's answers to the anchors, in their order."""
    answers = []
    for some in torch.split(images, AT_ONCE):
        labels = torch.zeros(len(some), dtype=torch.int64, device=some.device)  # nobody looks at them
        batch = Batch(some, labels, some.new_ones(len(some)), client.key)
        answers.append(client.task.forward(model, batch, training=False).prediction)
    return {"logits": {"anchors": torch.cat(answers)}}
