"""What Flower's actors import: the client of peer_flower.py.

It is a module of its own because Ray sends what is defined in a script by value, with every message.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import torch
from common import Task, load
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn
from training import build, inputs_of, set_weights, train

app = ClientApp()


@cache
def workshop(files: str, setting: str) -> tuple[Task, Tensor, Tensor, nn.Module]:
    """What an actor keeps from its first message on: the data and a model."""
    torch.set_num_threads(1)
    task = load(Path(files), setting)
    return task, inputs_of(task.images), torch.from_numpy(task.labels), build(task.setting)


@app.query()
def who(message: Message, context: Context) -> Message:
    """Answer which client of the partition a node is."""
    client = MetricRecord({"client": int(context.node_config["partition-id"])})
    return Message(RecordDict({"who": client}), reply_to=message)


@app.train()
def train_client(message: Message, context: Context) -> Message:
    """Train one epoch on the client's data, and answer with the model."""
    config = message.content["config"]
    task, inputs, labels, model = workshop(str(config["files"]), str(config["setting"]))
    client = int(context.node_config["partition-id"])
    set_weights(model, message.content["arrays"].to_numpy_ndarrays())
    rows = torch.from_numpy(task.shards[client])
    train(model, inputs, labels, rows, task.setting, task.seed(int(config["server-round"]) - 1, client))
    arrays = ArrayRecord([parameter.detach().contiguous().numpy() for parameter in model.parameters()])
    metrics = MetricRecord({"num-examples": len(rows)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
