"""Flower strategies that weigh what clients send by rules of this library."""

from __future__ import annotations

import io
import math
import tokenize
from collections.abc import Collection, Iterable
from logging import INFO, WARNING
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.common import log
from flwr.serverapp import Grid
from flwr.serverapp.strategy import FedAvg
from torch import nn

from consilience import tree
from consilience.algorithms.hwa import HWA
from consilience.errors import UserError
from consilience.exchange.cohort import LocalWork
from consilience.exchange.inbox import Arrival, make_inbox, screened
from consilience.exchange.schemas import idle_client
from consilience.learning.curvature import Kind
from consilience.learning.solvers import SGD
from consilience.learning.task import Task
from consilience.method import Composed
from consilience.rules.base import Rule
from consilience.rules.by_data import Weighting
from consilience.rules.hessian_weighted import CurvatureForm
from consilience.server_steps.base import ServerStep
from consilience.tree import Layers
from consilience.types import Params, State

STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
"""What batch normalisation calls the arrays that it keeps and does not train."""


class RuleStrategy(FedAvg):
    """A strategy that merges models by a rule, and then does a server step.

    Sampling, configuration and evaluation are those of Flower's FedAvg. A reply holds the model's arrays, the
    number of examples among its metrics, and a record for each group that the rule asks for: what
    `consilience.flower.evidence` gives. A reply of another form, or with numbers that are not finite, does
    not count, and says why in the log.

    Args:
        rule: How models are weighed.
        server_step: What the server does with the result; by default it takes it.
        buffers: Which arrays are not trained: they are averaged by numbers of examples, and counters take the
            maximum. By default whole numbers, and what batch normalisation keeps.
        options: Those of Flower's FedAvg.
    """

    def __init__(
        self,
        rule: Rule,
        server_step: ServerStep | None = None,
        *,
        buffers: Collection[str] | None = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        self.method = Composed(rule=rule, server=server_step or ServerStep())
        self._untrained = None if buffers is None else frozenset(buffers)
        self._hub: State | None = None
        self._order: tuple[str, ...] = ()
        self._population = 1

    def summary(self) -> None:
        """Log what the strategy is."""
        log(INFO, "\t├──> Rule: %s, server step: %s", self.method.rule.name, self.method.server.name)
        super().summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """The messages of a round; what they hold is what replies are compared with."""
        model = self._split(arrays)
        hub = self.method.init_hub(model) if self._hub is None else self._hub
        self._hub = {**hub, **model}
        self._order = tuple(arrays)
        self._population = max(1, len(list(grid.get_node_ids())))
        messages: Iterable[Message] = super().configure_train(server_round, arrays, config, grid)
        return messages

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """The merged model and the mean of the metrics; None where nothing came that could be used."""
        if self._hub is None:
            raise UserError("configure_train comes before aggregate_train")
        answered, _ = self._check_and_log_replies(replies, is_train=True, validate=False)
        by_node = {one.metadata.src_node_id: one for one in answered}
        arrivals, refused = [], dict[int, str]()
        for node, reply in by_node.items():
            try:
                arrivals.append(self._arrival(node, reply))
            except (UserError, TypeError, ValueError) as error:
                refused[node] = str(error)
        accepted, unfit = screened(arrivals, self._form())
        for node, reason in {**refused, **unfit}.items():
            log(WARNING, "round %s: the reply of node %s does not count: %s", server_round, node, reason)
        if not accepted:
            return None, None
        population = max(self._population, len(accepted))
        self._hub = self.method.combine(self._hub, make_inbox(accepted, population=population))
        heard = [by_node[one.sender].content for one in accepted]
        return self._joined(self._hub), self.train_metrics_aggr_fn(heard, self.weighted_by_key)

    def evaluated(self) -> ArrayRecord:
        """The model to evaluate, which some server steps tell from the one that is trained on."""
        if self._hub is None:
            raise UserError("nothing was trained yet")
        return self._joined(self.method.model(self._hub, {}))

    def _arrival(self, node: int, reply: Message) -> Arrival:
        """A reply as a message of this library."""
        content = reply.content
        arrays = content.array_records.get(self.arrayrecord_key)
        if arrays is None:
            raise UserError(f"it has no arrays under {self.arrayrecord_key!r}")
        groups = {
            name: {key: _tensor(one) for key, one in record.items()}
            for name, record in content.array_records.items()
            if name != self.arrayrecord_key
        }
        return Arrival(node, self._examples(reply), {**self._split(arrays), **groups})

    def _examples(self, reply: Message) -> int:
        records = list(reply.content.metric_records.values())
        found = records[0].get(self.weighted_by_key) if len(records) == 1 else None
        if not isinstance(found, int | float) or not 1 <= found < 2**53:
            raise UserError(f"its metrics do not say {self.weighted_by_key!r}, the number of examples")
        return int(found)

    def _form(self) -> tree.Schema:
        """What a reply looks like, by a dry run of the rule over no data."""
        assert self._hub is not None
        model = {group: self._hub[group] for group in ("params", "buffers")}
        task = Task(nn.Identity())  # nothing runs through it
        work = LocalWork(epochs=1, steps=None, batch_size=1)
        client = idle_client(task, SGD(), work, torch.device("cpu"), peer=False)
        evidence, _ = self.method.rule.evidence(client, model, self.method.rule.init_memory(model))
        return tree.Schema.of({**model, **evidence})

    def _split(self, arrays: ArrayRecord) -> State:
        """Arrays as parameters and buffers."""
        tensors = {name: _tensor(array) for name, array in arrays.items()}
        buffers = {name: value for name, value in tensors.items() if self._is_buffer(name, value)}
        params = {name: value for name, value in tensors.items() if name not in buffers}
        return {"params": params, "buffers": buffers}

    def _is_buffer(self, name: str, value: torch.Tensor) -> bool:
        if self._untrained is not None:
            return name in self._untrained
        return not value.is_floating_point() or name.rpartition(".")[2] in STATISTICS

    def _joined(self, model: State) -> ArrayRecord:
        """Parameters and buffers as arrays, in the order in which they came."""
        whole: Params = {**model["buffers"], **model["params"]}
        return ArrayRecord({name: Array(whole[name].numpy()) for name in self._order})


class HWAStrategy(RuleStrategy):
    """HWA: chosen layers are averaged coordinate by coordinate, weighted by the clients' curvature.

    Clients add what `consilience.flower.curvature` gives to their replies.

    Args:
        layers: Which layers carry curvature.
        form: How weights come from curvature.
        kind: Which curvature diagonal clients compute.
        weighting: The weights of what has no curvature.
        guard: The cap on exaggerated curvature, e.g. 1; None is the paper.
        server_step: What the server does with the result; by default it takes it.
        options: Those of RuleStrategy.
    """

    def __init__(
        self,
        layers: Layers = "output",
        form: CurvatureForm = "normalised",
        kind: Kind = "per_sample_sum",
        *,
        weighting: Weighting = "samples",
        guard: float | None = None,
        server_step: ServerStep | None = None,
        **options: Any,
    ) -> None:
        rule = HWA(layers, form, kind, weighting=weighting, guard=guard).parts().rule
        super().__init__(rule, server_step, **options)


HEADS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}
"""What reads the head of a file of NumPy's, by the format's version."""


def _tensor(array: Array) -> torch.Tensor:
    """An array as a tensor.

    `Array.numpy` believes the head of what was sent, and takes memory for whatever it announces. Here the
    head must announce the bytes that are there; nothing is unpickled.
    """
    file = io.BytesIO(array.data)
    try:
        shape, by_columns, kind = HEADS[np.lib.format.read_magic(file)](file)
    except (KeyError, ValueError, tokenize.TokenError):
        raise UserError("an array is not in NumPy's format") from None
    if kind.hasobject or math.prod(shape) * kind.itemsize != len(array.data) - file.tell():
        raise UserError("an array is not of the size that it announces")
    flat = np.frombuffer(array.data, kind, offset=file.tell())
    return torch.from_numpy(np.array(flat.reshape(shape, order="F" if by_columns else "C"), order="C"))
