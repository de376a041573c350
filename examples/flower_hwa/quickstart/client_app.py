"""The client: it trains, and says how curved its loss is where it ended."""

from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from consilience.flower import curvature

from .task import Net, load_data
from .task import test as test_net
from .task import train as train_net

app = ClientApp()


@app.train()
def train(message: Message, context: Context) -> Message:
    """Train the model on local data."""
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    loader, _ = load_data(
        context.node_config["partition-id"],
        context.node_config["num-partitions"],
        context.run_config["batch-size"],
    )
    loss = train_net(net, loader, context.run_config["epochs"], context.run_config["lr"])
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(loader.dataset)})
    content = {"arrays": ArrayRecord(net.state_dict()), "metrics": metrics, **curvature(net, loader)}
    return Message(RecordDict(content), reply_to=message)


@app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    """Score the model."""
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    _, loader = load_data(
        context.node_config["partition-id"],
        context.node_config["num-partitions"],
        context.run_config["batch-size"],
    )
    loss, accuracy = test_net(net, loader)
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(loader.dataset)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
