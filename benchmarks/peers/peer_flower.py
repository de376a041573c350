"""Contestant: Flower's simulation, ServerApp and ClientApp with FedAvg on Ray, two actors of one CPU each.

Actors keep the data and a model from their first message on (flower_client.py) and train with the loop of
training.py. FedAvg is Flower's own but for the choice of nodes, which comes from the setting's files; so that
the server knows which node is which client, it asks all of them before the first round. There is no federated
evaluation. `run_simulation` is deprecated in favour of the command `flwr run`, which calls the same code.

Warm-up: one round by `FedAvg.start`, after which it is started again from the initial weights.
Environment: no telemetry and no usage statistics. The server polls for replies every 0.01 s in place of the
default 0.1 s. Ray gives each actor one thread.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

import flower_client
import numpy as np
from common import Task, load, parser, report, since_start
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from training import accuracy, build, set_weights

RESOURCES = {
    "init_args": {"num_cpus": 2, "include_dashboard": False, "log_to_driver": False},
    "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
}


class GivenCohorts(FedAvg):
    """FedAvg that trains the clients it is told."""

    def __init__(self, task: Task, nodes: dict[int, int]) -> None:
        super().__init__(fraction_evaluate=0.0)
        self.task, self.nodes = task, nodes

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        config["server-round"] = server_round
        record = RecordDict({self.arrayrecord_key: arrays, self.configrecord_key: config})
        nodes = [self.nodes[int(client)] for client in self.task.cohorts[server_round - 1]]
        return self._construct_messages(record, nodes, MessageType.TRAIN)


def ask_nodes(grid: Grid, clients: int) -> dict[int, int]:
    """The node of each client, once all are there."""
    while len(nodes := list(grid.get_node_ids())) < clients:
        time.sleep(0.01)
    replies = grid.send_and_receive(
        Message(RecordDict(), dst_node_id=node, message_type=MessageType.QUERY) for node in nodes
    )
    return {int(reply.content["who"]["client"]): reply.metadata.src_node_id for reply in replies}


def server(task: Task, files: Path, out: Path) -> ServerApp:
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        grid.pull_interval = 0.01
        strategy = GivenCohorts(task, ask_nodes(grid, task.setting.clients))
        times: list[float] = []

        def note(server_round: int, arrays: ArrayRecord) -> MetricRecord | None:
            times.append(time.perf_counter())
            return None

        def start(rounds: int) -> ArrayRecord:
            return strategy.start(
                grid,
                ArrayRecord([np.ascontiguousarray(value) for value in task.weights]),
                num_rounds=rounds,
                train_config=ConfigRecord({"files": str(files), "setting": task.setting.name}),
                evaluate_fn=note,
            ).arrays

        start(1)
        times.clear()
        startup = since_start()
        arrays = start(task.rounds)
        model = build(task.setting)
        set_weights(model, arrays.to_numpy_ndarrays())
        seconds = [after - before for before, after in pairwise(times)]
        report(out, task, startup, seconds, accuracy(model, task), ("flwr", "ray", "torch", "numpy"))

    return app


def main() -> None:
    chosen = parser().parse_args()
    task = load(chosen.files, chosen.setting, chosen.rounds)
    run_simulation(
        server(task, chosen.files.resolve(), chosen.out.resolve()),
        flower_client.app,
        num_supernodes=task.setting.clients,
        backend_config=RESOURCES,
    )


if __name__ == "__main__":
    main()
