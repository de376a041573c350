"""FedAvg and HWA under Flower's own SecAgg+: the server adds masked vectors up, and sees the same model."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'consilience[flower]'")

from flwr.app import ConfigRecord, Context, Message, RecordDict
from flwr.client import NumPyClient
from flwr.client.mod import secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import ndarrays_to_parameters, parameters_to_ndarrays
from flwr.compat.common.recorddict_compat import arrayrecord_to_parameters, parameters_to_arrayrecord
from flwr.server.client_manager import SimpleClientManager
from flwr.server.compat.grid_client_proxy import GridClientProxy
from flwr.server.compat.legacy_context import LegacyContext
from flwr.server.strategy import FedAvg
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD, Key
from flwr.serverapp import Grid

from consilience.errors import UserError
from consilience.exchange.inbox import Arrival, make_inbox
from consilience.flower.secure import SecureHWAStrategy, for_sums
from consilience.rules.hessian_weighted import HessianWeighted

EXAMPLES = (40, 10, 25)
NAMES = ("body", "head")


def trained(client: int) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """The model and the curvature of its head of a client; of one coordinate that is 0 with all."""
    random = torch.Generator().manual_seed(client)
    params = {name: torch.randn(4, 3, generator=random) for name in NAMES}
    curvature = torch.rand(4, 3, generator=random)
    curvature[0, 0] = 0
    return params, {"head": curvature / curvature.norm()}


class Trained(NumPyClient):
    """A client that has trained."""

    def __init__(self, number: int, *, weighed: bool) -> None:
        self.number, self.weighed = number, weighed

    def fit(self, parameters: Any, config: Any) -> Any:
        params, importance = trained(self.number)
        arrays = for_sums(params, importance if self.weighed else {}, EXAMPLES[self.number])
        return arrays, EXAMPLES[self.number], {}


class Masks(Grid):
    """A Grid whose nodes are ClientApps here; what goes to the server is kept."""

    def __init__(self, apps: dict[int, ClientApp]) -> None:
        self.apps = apps
        self.contexts = {node: Context(1, node, {}, RecordDict(), {}) for node in apps}
        self.seen: list[Message] = []

    def set_run(self, run: Any) -> None: ...

    @property
    def run(self) -> Any:
        raise NotImplementedError

    def create_message(self, *args: Any, **options: Any) -> Message:
        raise NotImplementedError

    def get_node_ids(self) -> list[int]:
        return list(self.apps)

    def push_messages(self, messages: Any) -> Any:
        raise NotImplementedError

    def pull_messages(self, message_ids: Any) -> Any:
        raise NotImplementedError

    def send_and_receive(self, messages: Any, *, timeout: float | None = None) -> list[Message]:
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            mine = copy.deepcopy(message)  # as a network does it
            replies.append(self.apps[node](mine, self.contexts[node]))
        self.seen += replies
        return replies


def merged(strategy: Any, *, weighed: bool) -> tuple[list[np.ndarray], Masks]:
    """The model after one round of SecAgg+, and the Grid over which it went."""

    def app(number: int) -> ClientApp:
        client = Trained(number, weighed=weighed)
        return ClientApp(client_fn=lambda context: client.to_client(), mods=[secaggplus_mod])

    grid = Masks({100 + number: app(number) for number in range(len(EXAMPLES))})
    manager = SimpleClientManager()
    for node in grid.apps:
        manager.register(GridClientProxy(node, grid, 1))
    context = LegacyContext(Context(1, 1, {}, RecordDict(), {}), strategy=strategy, client_manager=manager)
    context.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({Key.CURRENT_ROUND: 1})
    start = ndarrays_to_parameters([np.zeros((4, 3)) for _ in NAMES])
    context.state.array_records[MAIN_PARAMS_RECORD] = parameters_to_arrayrecord(start, keep_input=True)
    SecAggPlusWorkflow(3, 2)(grid, context)
    found = arrayrecord_to_parameters(context.state.array_records[MAIN_PARAMS_RECORD], keep_input=True)
    return parameters_to_ndarrays(found), grid


def expected(*, weighed: bool) -> list[np.ndarray]:
    """What the rule makes of the models when it sees them."""
    arrivals = []
    for number, examples in enumerate(EXAMPLES):
        params, importance = trained(number)
        arrivals.append(Arrival(number, examples, {"params": params, "importance": importance}))
    inbox = make_inbox(arrivals, population=len(EXAMPLES))
    found = HessianWeighted().merge({}, inbox) if weighed else inbox.mean("params")
    return [found[name].numpy() for name in NAMES]


OPTIONS = {"min_fit_clients": 3, "min_available_clients": 3}


@pytest.mark.parametrize("weighed", [False, True], ids=["fedavg", "hwa"])
def test_masked_sums_give_the_rules_model(weighed):
    strategy = SecureHWAStrategy([1], **OPTIONS) if weighed else FedAvg(**OPTIONS)
    found, grid = merged(strategy, weighed=weighed)
    for left, right in zip(found, expected(weighed=weighed), strict=True):
        np.testing.assert_allclose(left, right, atol=3e-3)  # SecAgg+ rounds
    # What the server gets of a client is masked: none of it is near what the client has.
    for reply in grid.seen:
        assert all(not record for record in reply.content.array_records.values())


def test_numbers_that_would_overflow_are_refused():
    params, importance = trained(0)
    with pytest.raises(UserError, match="2000 examples are more than the max_weight of 1000: raise it"):
        for_sums(params, importance, 2000)
    with pytest.raises(UserError, match=r"curvature of \['tail'\]"):
        for_sums(params, {"tail": importance["head"]}, 20)
