"""Fine-tuning by LoRA: this library against a loop over single clients, with the memory of both.

    .venv/bin/python benchmarks/lora.py --device cuda --out lora.json [--method hwa] [--lanes N]
        [--memory 8GB] [--precision tf32] [--quick]

A transformer of 60 million parameters, which stay as they are, and adapters of rank 8 on the queries and
values of its 12 layers, with a new head. 50 clients train 4 batches of 8 sequences of 128 tokens a round, by
SGD. The loop is what one writes by hand: adapters are loaded, trained client by client with torch's own
attention and optimiser, and averaged. Seconds are the median of some rounds after one that warms up; memory
is the most that was allocated on the GPU in these rounds, and in the first (a CPU has no such count).
`--quick` takes a tiny model and few clients, to see that everything works.
"""

from __future__ import annotations

import argparse
import gc
import json
import platform
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from consilience.config.config import read_config
from consilience.data.dataset import Dataset
from consilience.engine.build import simulate
from consilience.engine.determinism import repeatable
from consilience.experiment import plan

CLASSES, RATE = 4, 0.05


@dataclass(frozen=True)
class Sizes:
    """What is trained, and by how many."""

    vocabulary: int = 43_000
    width: int = 512
    layers: int = 12
    heads: int = 8
    length: int = 128
    rank: int = 8
    clients: int = 50
    batches: int = 4
    batch: int = 8


QUICK = Sizes(vocabulary=100, width=32, layers=2, heads=2, length=16, rank=2, clients=4, batches=2, batch=2)


class Adapted(nn.Module):
    """A linear layer that stays as it is, and the product of two thin matrices beside it (Hu et al. 2021)."""

    def __init__(self, width: int, rank: int) -> None:
        super().__init__()
        self.base = nn.Linear(width, width).requires_grad_(False)
        self.down, self.up = nn.Linear(width, rank, bias=False), nn.Linear(rank, width, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 2 * self.up(self.down(x))


class Block(nn.Module):
    """One layer of a transformer, normalised first."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        width = sizes.width
        self.heads = sizes.heads
        self.query, self.value = Adapted(width, sizes.rank), Adapted(width, sizes.rank)
        self.key, self.out = nn.Linear(width, width), nn.Linear(width, width)
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        for part in (self.key, self.out, self.first, self.second, self.wide, self.narrow):
            part.requires_grad_(False)

    def forward(self, x: Tensor) -> Tensor:
        given = self.first(x)
        query, key, value = (
            part(given).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in (self.query, self.key, self.value)
        )
        found = F.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2)
        x = x + self.out(found)
        return x + self.narrow(F.gelu(self.wide(self.second(x))))


class Transformer(nn.Module):
    """An encoder whose mean over all places is classified; adapters and the head are trained."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embedding = nn.Embedding(sizes.vocabulary, sizes.width).requires_grad_(False)
        self.places = nn.Parameter(0.02 * torch.randn(sizes.length, sizes.width), requires_grad=False)
        self.blocks = nn.Sequential(*(Block(sizes) for _ in range(sizes.layers)))
        self.head = nn.Linear(sizes.width, CLASSES)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.blocks(self.embedding(tokens) + self.places).mean(1))


def data_of(sizes: Sizes) -> Dataset:
    """Sequences of tokens, whose class is how often some of them occur."""
    random = torch.Generator().manual_seed(0)
    rows = sizes.clients * sizes.batches * sizes.batch
    tokens = torch.randint(0, sizes.vocabulary, (rows + 1, sizes.length), generator=random)
    targets = (tokens < sizes.vocabulary // 8).sum(1) % CLASSES
    return Dataset.from_arrays(
        "tokens", tokens[:-1], targets[:-1], tokens[-1:], targets[-1:], classes=CLASSES
    )


def loop(sizes: Sizes, data: Dataset, device: torch.device) -> Callable[[], float]:
    """What trains a round client by client and gives the mean loss."""
    torch.manual_seed(0)
    module = Transformer(sizes).to(device).train()
    trained = [value for value in module.parameters() if value.requires_grad]
    inputs, targets = data.inputs.to(device), data.targets.to(device)
    rows = torch.randperm(len(inputs), generator=torch.Generator().manual_seed(1)).to(device)
    shards = rows.reshape(sizes.clients, -1)

    def one_round() -> float:
        start = [value.detach().clone() for value in trained]
        total = [torch.zeros_like(value) for value in start]
        losses = torch.zeros((), device=device)
        for shard in shards:
            with torch.no_grad():
                for value, first in zip(trained, start, strict=True):
                    value.copy_(first)
            optimiser = torch.optim.SGD(trained, RATE)
            order = shard[torch.randperm(len(shard), device=device)]
            for batch in order.split(sizes.batch):
                optimiser.zero_grad()
                loss = F.cross_entropy(module(inputs[batch]), targets[batch])
                loss.backward()
                optimiser.step()
                losses += loss.detach()
            for whole, value in zip(total, trained, strict=True):
                whole.add_(value.detach(), alpha=1 / sizes.clients)
        with torch.no_grad():
            for value, whole in zip(trained, total, strict=True):
                value.copy_(whole)
        return float(losses) / (sizes.clients * sizes.batches)

    return one_round


def ours(sizes: Sizes, data: Dataset, args: argparse.Namespace) -> Callable[[], float]:
    """What trains a round by this library and gives the mean loss."""
    settings: dict[str, Any] = {
        "data": data,
        "partition": "iid",
        "clients": sizes.clients,
        "model": lambda: Transformer(sizes),
        "local": {"epochs": 1, "batch_size": sizes.batch},
        "solver": {"name": "sgd", "lr": RATE},
        "method": args.method,
        "rounds": 1 + args.rounds,
        "device": args.device,
        "precision": args.precision,
        "compile": args.compile,
        **({} if args.lanes is None else {"lanes": args.lanes}),
        **({} if args.memory is None else {"memory": args.memory}),
    }
    arm = plan(read_config(settings, "benchmark").resolved())[0]
    simulation = simulate(arm.scene, arm.variants)

    def one_round() -> float:
        (record,) = simulation.step(evaluate=False)
        return float(record.train_loss or 0)

    return one_round


def measure(make: Callable[[], Callable[[], float]], rounds: int, device: torch.device) -> dict[str, Any]:
    """The seconds of rounds, the memory that they took and the losses."""
    gc.collect()
    gpu = device.type == "cuda"
    if gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)
    begun = time.perf_counter()
    one_round = make()
    losses, seconds, peaks = [], [], []
    for number in range(1 + rounds):
        start = begun if number == 0 else time.perf_counter()
        losses.append(one_round())
        if gpu:
            torch.cuda.synchronize(device)
            peaks.append(torch.cuda.max_memory_allocated(device))
            torch.cuda.reset_peak_memory_stats(device)
        seconds.append(time.perf_counter() - start)
    return {
        "first_round_seconds": seconds[0],
        "round_seconds": statistics.median(seconds[1:]),
        "peak_bytes_first_round": peaks[0] if gpu else None,
        "peak_bytes": max(peaks[1:]) if gpu else None,
        "train_loss": losses,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--method", default="fedavg")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--clients", type=int)
    parser.add_argument("--lanes", type=int)
    parser.add_argument("--memory", help="a budget, such as 8GB")
    parser.add_argument("--precision", default="fp32", choices=["fp32", "tf32", "bf16"])
    parser.add_argument("--compile", default="never", choices=["auto", "always", "never"])
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    device = torch.device(args.device)
    sizes = QUICK if args.quick else Sizes()
    if args.clients:
        sizes = Sizes(**{**asdict(sizes), "clients": args.clients})
    with torch.device("meta"):
        counts = [(value.numel(), value.requires_grad) for value in Transformer(sizes).parameters()]
    data, found = data_of(sizes), {}
    makers = {"loop": lambda: loop(sizes, data, device), "ours": lambda: ours(sizes, data, args)}
    with repeatable(device, args.precision):
        for name, make in makers.items():
            found[name] = measure(make, args.rounds, device)
            print(name, json.dumps(found[name]), flush=True)
    rows = sizes.clients * sizes.batches * sizes.batch
    result = {
        "sizes": asdict(sizes),
        "parameters": sum(count for count, _ in counts),
        "trained": sum(count for count, trained in counts if trained),
        "settings": {key: str(value) for key, value in vars(args).items() if key != "out"},
        "machine": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine(),
        "torch": torch.__version__,
        **found,
        "sequences_a_second": {name: rows / one["round_seconds"] for name, one in found.items()},
        "times_as_fast": found["loop"]["round_seconds"] / found["ours"]["round_seconds"],
    }
    args.out.write_text(json.dumps(result, indent=2) + "\n")
    print(f"{result['times_as_fast']:.2f} times as fast as the loop")


if __name__ == "__main__":
    main()
