"""How rounds would scale to 64 workers: `python benchmarks/schedule.py [--out FILE] [--plot FILE]`.

Nobody has 64 cores at hand, so rounds are simulated: clients are dealt to workers by the packing that the
engine uses, in the chunks that it uses, and everything costs what it was measured to cost here. Measured is
processor time of the engine's own code, in this process: of a worker (a step, and what a client takes beside
its steps), and of the driver (to send, to receive and to combine, a client each). What a call of a worker
takes is measured with a real one. `--check` compares simulated with real rounds, whose clients sleep in place
of computing, so that two cores are enough for eight workers.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import time
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from consilience.config.config import read_config
from consilience.engine.build import simulate
from consilience.engine.executors.scheduling import pack
from consilience.engine.rounds.simulation import Simulation
from consilience.engine.spread import on_ray
from consilience.engine.spread.executor import Spread
from consilience.engine.spread.worker import Arrays, Done, Part, Worker
from consilience.experiment import plan
from consilience.types import IntArray

METHODS = ("fedavg", "scaffold", "fedcurv")
MODELS = {
    "small CNN": {"data": "mnist-sample", "model": "mnist-cnn"},
    "large MLP": {"data": "mnist-sample", "model": {"name": "mlp", "hidden": [2000, 2000]}},
}
WORKERS = (1, 2, 4, 8, 16, 32, 64)
CLIENTS, CLIENTS_EACH = 1000, 16
MEAN_STEPS = 100
"""What a client does in a round, on average: say 640 images, five times, 32 at a time."""
BATCH = 32
MEMORY = "64GB"
"""Of the driver; cohorts are computed in chunks that fit."""
LINK = 10e9 / 8
"""Bytes a second of the driver's network, where workers are on other machines."""


@dataclass(frozen=True)
class Costs:
    """Seconds, of one method with one model."""

    step: float
    """A step, at a worker."""
    client: float
    """A client beside its steps, at a worker."""
    send: float
    """A client, at the driver, before workers begin."""
    receive: float
    """A client, at the driver, when its worker has answered."""
    combine: float
    """A client, at the driver, when all have answered."""
    call: float
    """A worker that is called: until its call is under way."""
    travel: float
    """A worker that is called: until it begins, and until its answer is heard."""
    bytes: tuple[int, int]
    """What travels for a client, to its worker and back."""
    alike: int
    """What travels to every worker once."""
    chunk: int
    """How many clients are computed together."""


@dataclass(frozen=True)
class Round:
    """How a simulated round went."""

    seconds: float
    driver: float
    """For how much of it the driver was at work and nobody else."""
    idle: float
    """How much of the workers' time between the first call and the last answer they had nothing to do."""


def simulated(costs: Costs, steps: IntArray, workers: int, link: float | None = None) -> Round:
    """A round of clients with some numbers of steps.

    Args:
        costs: What everything takes.
        steps: [clients] their steps.
        workers: How many there are.
        link: The bytes a second of the driver's network, over which everything comes and goes; None: workers
            are on its machine, and the copies that were measured are all there is.
    """
    there, back = (0.0, 0.0) if link is None else (number / link for number in costs.bytes)
    once = 0.0 if link is None else costs.alike / link
    clock = driver = busy = span = 0.0
    for begin in range(0, len(steps), costs.chunk):
        some = steps[begin : begin + costs.chunk]
        shares = pack(np.maximum(1, some), workers)
        start = clock
        clock += len(some) * costs.send
        ends = []
        for share in shares:
            clock += costs.call + once + len(share) * there
            work = len(share) * costs.client + float(some[share].sum()) * costs.step
            ends.append((clock + costs.travel + work, len(share)))
            busy += work
        driver += clock - start
        first, last = clock, max(end for end, _ in ends)
        for end, count in sorted(ends):
            clock = max(clock, end) + count * (costs.receive + back)
        clock += len(some) * costs.combine
        driver += clock - max(first, last)
        span += workers * (last - start)
    return Round(clock, driver, 1 - busy / span)


class Rehearsal:
    """A worker in this process, by way of Ray's store: what everybody does is timed one by one."""

    def __init__(self, make: Any, precision: Any, ray: Any) -> None:
        self._worker, self._ray = Worker(make, precision), ray
        self.seconds = {"send": 0.0, "work": 0.0, "receive": 0.0}
        self.begun = self.ended = 0.0
        self.bytes = (0, 0, 0)

    def there(self) -> Sequence[Hashable]:
        return [0]

    @contextmanager
    def _timed(self, name: str) -> Iterator[None]:
        start = time.process_time()
        yield
        self.seconds[name] += time.process_time() - start

    def carry_out(self, parts: Mapping[Hashable, Part], alike: dict[int, Arrays]) -> dict[Hashable, Done]:
        self.begun = time.process_time()
        ((worker, part),) = parts.items()
        with self._timed("send"):
            sent, told = self._ray.put(part), self._ray.put(alike)
        with self._timed("work"):
            answer = self._ray.put(self._worker.carry_out(self._ray.get(sent), self._ray.get(told)))
        with self._timed("receive"):
            done = self._ray.get(answer)
        own = [*part.own.values(), *part.shared]
        self.bytes = (_size(own), _size([done.uploads, done.memories]), _size(list(alike.values())))
        self.ended = time.process_time()
        return {worker: done}

    def close(self) -> None:
        self._worker.close()


def _size(states: Sequence[Arrays]) -> int:
    return sum(value.nbytes for one in states for params in one.values() for value in params.values())


def _simulation(setting: dict[str, Any], **more: Any) -> Simulation:
    place = {"executor": "ray", "workers": 1, "cluster": "local", "memory": MEMORY, "rounds": 1}
    arm = plan(read_config({**setting, **place, **more}, "schedule"))[0]
    return simulate(arm.scene, arm.variants)


def measured(method: str, setting: dict[str, Any], rounds: int) -> Costs:
    """What everything takes in one process, by its processor time."""
    clients, few, many, found = 10, 1, 5, {}
    shape = {"method": method, "clients": clients}
    for steps in (few, many):
        simulation = _simulation(setting, **shape, local={"steps": steps, "batch_size": BATCH})
        executor = simulation.world.executor
        assert isinstance(executor, Spread)
        workers = executor.workers
        assert isinstance(workers, on_ray.RayWorkers)
        ray = workers._staff.ray
        rehearsal = Rehearsal(*ray.get(workers._made), ray)
        workers.close()
        executor.workers = rehearsal
        stages, clients_of = list[dict[str, float]](), executor.clients

        def timed(*args: Any, clients_of: Any = clients_of, rehearsal: Any = rehearsal, **more: Any) -> Any:
            start = time.process_time()
            outcome = clients_of(*args, **more)
            end = time.process_time()
            rehearsal.seconds["send"] += rehearsal.begun - start
            rehearsal.seconds["receive"] += end - rehearsal.ended
            rehearsal.seconds["all"] += end - start
            return outcome

        executor.clients = timed  # type: ignore[method-assign]
        for _ in range(2 + rounds):
            rehearsal.seconds = dict.fromkeys(("send", "work", "receive", "all"), 0.0)
            start = time.process_time()
            simulation.step(evaluate=False)
            rest = time.process_time() - start - rehearsal.seconds["all"]
            stages.append({**rehearsal.seconds, "combine": rest})
        best = {name: min(one[name] for one in stages[2:]) for name in stages[0]}
        found[steps] = best
        chunk = executor.chunk
        executor.close()
    step = (found[many]["work"] - found[few]["work"]) / (clients * (many - few))
    least = found[few]
    to, back, alike = rehearsal.bytes
    return Costs(
        step=max(step, 1e-6),
        client=max(0.0, least["work"] / clients - few * step),
        send=least["send"] / clients,
        receive=least["receive"] / clients,
        combine=least["combine"] / clients,
        call=0.0,
        travel=0.0,
        bytes=(to // clients, back // clients),
        alike=alike,
        chunk=chunk,
    )


def calls(count: int) -> tuple[float, float]:
    """Seconds to call a worker, and until it has answered where it has nothing to do: the least of many."""
    staff = on_ray.staff_of("local", 1, gpu=False)
    (actor,) = staff.at_work()
    called, heard = list[float](), list[float]()
    for _ in range(count):
        start = time.perf_counter()
        asked = actor.there.remote()
        called.append(time.perf_counter() - start)
        staff.ray.get(asked)
        heard.append(time.perf_counter() - start)
    return min(called), min(heard) - min(called)


class Sleeper(torch.nn.Module):
    """A small model that takes a hundredth of a second to be asked: many of them fit a core."""

    SECONDS = 0.01

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(784, 10)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        time.sleep(self.SECONDS)
        return self.layer(inputs.flatten(1))


def check(rounds: int) -> list[dict[str, float]]:
    """Real rounds beside simulated ones, with clients of very different sizes that sleep."""
    called, travel = calls(200)
    found, setting = [], {"data": "mnist-sample", "model": Sleeper, "clients": 40, "method": "fedavg"}
    work = {"epochs": 1, "batch_size": 5}
    fractions = np.random.default_rng(1).dirichlet(np.ones(40))
    split = {"name": "sizes", "fractions": (fractions / fractions.sum()).tolist()}
    alone: float | None = None
    for workers in (1, 2, 4, 8):
        more = {"executor": "ray-sequential", "workers": workers, "local": work, "partition": split}
        simulation = _simulation(setting, **more)
        with_all = simulation.world.executor
        assert isinstance(with_all, Spread)
        seconds = []
        for _ in range(1 + rounds):
            start = time.perf_counter()
            simulation.step(evaluate=False)
            seconds.append(time.perf_counter() - start)
        sizes = simulation.world.sizes()[0]
        with_all.close()
        steps = np.ceil(sizes / work["batch_size"]).astype(np.int64)
        alone = alone or statistics.median(seconds[1:])
        step = (alone - called - travel) / float(steps.sum())
        costs = Costs(step, 0, 0, 0, 0, called, travel, (0, 0), 0, len(steps))
        real, told = statistics.median(seconds[1:]), simulated(costs, steps, workers).seconds
        found.append({"workers": workers, "real_s": real, "simulated_s": told})
        print(found[-1], flush=True)
    return found


def sizes(count: int, kind: str) -> IntArray:
    """[count] the steps of clients: all alike, or shares drawn from a Dirichlet distribution."""
    if kind == "alike":
        return np.full(count, MEAN_STEPS, dtype=np.int64)
    shares = np.random.default_rng(0).dirichlet(np.full(count, 0.5)) * count
    return np.maximum(1, np.round(shares * MEAN_STEPS)).astype(np.int64)


def scaled(costs: Costs) -> dict[str, Any]:
    """Rounds on 1 to 64 workers: as many clients for all, and as many for each."""
    found: dict[str, Any] = {}
    for kind in ("alike", "dirichlet"):
        for place, link in (("one machine", None), ("10 Gbit/s", LINK)):
            strong = {str(w): asdict(simulated(costs, sizes(CLIENTS, kind), w, link)) for w in WORKERS}
            weak = {str(w): asdict(simulated(costs, sizes(CLIENTS_EACH * w, kind), w, link)) for w in WORKERS}
            found[f"{kind}, {place}"] = {"strong": strong, "weak": weak}
    return found


def draw(found: dict[str, Any], path: Path) -> None:
    """The speed-up of a round, and how long one takes that grows with the workers."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    styles = {"small CNN": "-", "large MLP": "--"}
    colours = dict(zip(METHODS, ("#0072B2", "#D55E00", "#009E73"), strict=True))
    left.plot(WORKERS, WORKERS, color="0.75", linewidth=1, label="ideal")
    for name, one in found.items():
        model, _, method = name.partition(", ")
        rounds = one["rounds"]["dirichlet, one machine"]
        strong = [rounds["strong"][str(w)]["seconds"] for w in WORKERS]
        weak = [rounds["weak"][str(w)]["seconds"] for w in WORKERS]
        how = {"color": colours[method], "linestyle": styles[model], "marker": "o", "markersize": 3}
        left.plot(WORKERS, [strong[0] / value for value in strong], label=f"{method}, {model}", **how)
        right.plot(WORKERS, [weak[0] / value for value in weak], **how)
    left.set(xscale="log", yscale="log", ylabel="times as fast as one worker", xlabel="workers")
    left.set_title(f"{CLIENTS:,} clients of different sizes")
    right.set(xscale="log", ylim=(0, 1.05), ylabel="efficiency", xlabel="workers")
    right.set_title(f"{CLIENTS_EACH} clients for every worker")
    for axes in (left, right):
        axes.set_xticks(WORKERS, [str(w) for w in WORKERS])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    left.set_yticks(WORKERS, [str(w) for w in WORKERS])
    left.legend(fontsize=8)
    figure.savefig(path, dpi=150)


def main() -> None:
    """Measure, simulate, and write down what was found."""
    root = Path(__file__).parent
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--check", action="store_true", help="only compare with real rounds")
    parser.add_argument("--again", action="store_true", help="simulate with the costs that the file has")
    parser.add_argument("--out", type=Path, default=root / "results" / "schedule.json")
    parser.add_argument("--plot", type=Path, default=root.parent / "docs" / "images" / "schedule.png")
    options = parser.parse_args()
    found = json.loads(options.out.read_text()) if options.out.exists() else {}
    if options.check:
        found["check"] = check(min(3, options.rounds))
    else:
        torch.set_num_threads(1)
        called, travel = (0.0, 0.0) if options.again else calls(500)
        settings = found.get("settings", {})
        for model, setting in MODELS.items():
            for method in METHODS:
                name = f"{model}, {method}"
                if options.again:
                    told = settings[name]["costs"]
                    costs = Costs(**{**told, "bytes": tuple(told["bytes"])})
                else:
                    costs = replace(measured(method, setting, options.rounds), call=called, travel=travel)
                settings[name] = {"costs": asdict(costs), "rounds": scaled(costs)}
                print(name, asdict(costs), flush=True)
        found["machine"] = f"{platform.machine()}, torch {torch.__version__}"
        found["settings"] = settings
        draw(settings, options.plot)
    options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
