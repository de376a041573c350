"""The model, the data and the training code; nothing in them is about federations."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from consilience.data import load


class Net(nn.Module):
    """A small convolutional network."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 6, 5, stride=2)
        self.norm = nn.BatchNorm2d(6)
        self.hidden = nn.Linear(6 * 12 * 12, 32)
        self.head = nn.Linear(32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """The logits."""
        x = F.relu(self.norm(self.conv(x)))
        return self.head(F.relu(self.hidden(torch.flatten(x, 1))))


def load_data(partition: int, partitions: int, batch_size: int) -> tuple[DataLoader, DataLoader]:
    """The training and test batches of one client, who has few of the classes."""
    data = load("mnist-sample")
    order = torch.argsort(data.targets, stable=True)
    rows = order.tensor_split(partitions)[partition]
    inputs = data.inputs[rows].float() / 127.5 - 1
    test = data.test_inputs.float() / 127.5 - 1
    generator = torch.Generator().manual_seed(partition)
    train = DataLoader(
        TensorDataset(inputs, data.targets[rows]), batch_size, shuffle=True, generator=generator
    )
    return train, DataLoader(TensorDataset(test, data.test_targets), 256)


def train(net: nn.Module, loader: DataLoader, epochs: int, lr: float) -> float:
    """Train, and return the mean loss."""
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=0.9)
    net.train()
    total = 0.0
    for _ in range(epochs):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = F.cross_entropy(net(inputs), targets)
            loss.backward()
            optimizer.step()
            total += loss.item()
    return total / (epochs * len(loader))


@torch.no_grad()
def test(net: nn.Module, loader: DataLoader) -> tuple[float, float]:
    """The mean loss and the accuracy."""
    net.eval()
    loss, right, rows = 0.0, 0, 0
    for inputs, targets in loader:
        logits = net(inputs)
        loss += F.cross_entropy(logits, targets, reduction="sum").item()
        right += int((logits.argmax(1) == targets).sum())
        rows += len(targets)
    return loss / rows, right / rows
