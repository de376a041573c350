"""An interrupted run goes on as if nothing had happened, or says why it cannot."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from consilience import tree
from consilience.algorithm import Conditions
from consilience.algorithms import METHODS
from consilience.algorithms.fedavg import FedAvg
from consilience.config.config import Config, read_config
from consilience.data.dataset import Dataset
from consilience.engine.rounds.simulation import Simulation
from consilience.errors import UserError
from consilience.experiment import Listener, resume
from consilience.experiment import execution as experiment
from consilience.experiment.folder import METRICS, RunFolder
from consilience.learning.solvers import SGD

Records = list[dict[str, Any]]


def setting(topology: str, *, unreliable: bool = False) -> Conditions:
    return Conditions(topology != "star", SGD(), epochs=1, holdout=True, unreliable=unreliable)


STAR_AND_GRAPH = [
    (name, topology)
    for topology in ("star", "ring")
    for name, method in METHODS.items()
    if method().refuse(setting(topology)) is None
] + [("dechetero", "ring")]


@pytest.mark.parametrize(("name", "topology"), STAR_AND_GRAPH)
def test_every_method_resumes_bit_by_bit(
    name: str,
    topology: str,
    tmp_path: Path,
    configure: Callable[..., Config],
    lines: Callable[[Path], Records],
    timeless: Callable[[Records], Records],
    stop_after: Callable[[int], Listener],
):
    entry: dict[str, Any] = {"name": name}
    if name == "dechw*":
        entry |= {"until": 2, "mode": "freeze"}
    if name == "desa":
        entry |= {"ipc": 2, "iterations": 2, "width": 4}
    method = METHODS.get(name, FedAvg)()
    fitting = {"model": "logistic"} if method.linear_only() else {}
    everybody = name == "dechw*" or method.refuse(setting(topology, unreliable=True))
    some = 1.0 if everybody else 3  # e.g. frozen curvature needs everybody
    seeds = [0] if method.reshapes() else [0, 1]
    config = configure(
        method=entry,
        topology=topology,
        rounds=4,
        participation=some,
        checkpoint={"every": 2},
        seeds=seeds,
        **fitting,
    )
    whole = experiment.run(config)
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        experiment.run(config, folder=folder, listener=stop_after(3))
    assert len(lines(folder.path / METRICS)) == 3 * len(seeds)
    resumed = experiment.run(config, folder=folder, existing="resume")
    assert timeless(resumed.records) == timeless(whole.records)
    assert resumed.clients == whole.clients
    (arm,) = whole.models
    before, after = tree.flatten(whole.models[arm]), tree.flatten(resumed.models[arm])
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)
    assert resumed.digest == whole.digest


@pytest.mark.parametrize("minutes", [0, 1000])
def test_checkpoints_are_made_in_time_too(
    minutes: float, tmp_path: Path, configure: Callable[..., Config], stop_after: Callable[[int], Listener]
):
    """Where rounds take long, a kill costs no more than the minutes that one may be old."""
    config = configure(method="scaffold", rounds=5, checkpoint={"every": 100, "minutes": minutes})
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        experiment.run(config, folder=folder, listener=stop_after(4))
    saved = folder.load_checkpoint()
    # The fourth was told of, and not yet kept.
    assert (saved.metrics if saved else 0) == (0 if minutes else 3)
    assert experiment.run(config, folder=folder, existing="resume").digest == experiment.run(config).digest


def test_models_that_grow_run_apart_and_resume_in_the_shapes_that_they_had(
    tmp_path: Path,
    configure: Callable[..., Config],
    stop_after: Callable[[int], Listener],
):
    config = configure(
        method={"name": "fedma", "gamma": [7.0, 50.0], "max_growth": 3, "label": "grown"},
        seeds=[0, 1],
        rounds=4,
        checkpoint={"every": 2},
    )
    whole = experiment.run(config)
    names = [f"star grown gamma={gamma} seed {seed}" for gamma in (7.0, 50.0) for seed in (0, 1)]
    assert list(whole.models) == names
    assert {(one["method"], one["seed"]) for one in whole.records} == {
        (f"grown gamma={gamma}", seed) for gamma in (7.0, 50.0) for seed in (0, 1)
    }
    assert [summary.method for summary in whole.summaries] == ["grown gamma=7.0", "grown gamma=50.0"]
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        experiment.run(config, folder=folder, listener=stop_after(11))
    saved = folder.load_checkpoint()
    assert saved is not None
    assert saved.arm == 2
    assert saved.state["hub.params/body.1.weight"].shape == (1, 14, 5)  # 8 units, and twice 3 more
    resumed = experiment.run(config, folder=folder, existing="resume")
    assert resumed.digest == whole.digest
    assert resumed.models[names[2]]["params"]["body.1.weight"].shape == (1, 20, 5)
    assert set(json.loads((folder.path / "partitions.json").read_text())["star"]["seeds"]) == {"0", "1"}


def test_a_model_with_batchnorm_and_dropout_resumes_bit_by_bit(
    tmp_path: Path, configure: Callable[..., Config], stop_after: Callable[[int], Listener]
):
    images = torch.randint(
        0, 256, (24, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(1)
    )
    data = Dataset.from_arrays("noise", images[:16], torch.arange(16) % 2, images[16:], torch.arange(8) % 2)
    config = configure(
        data=data, model="fagh-cnn", clients=2, rounds=3, local={"steps": 1}, checkpoint={"every": 1}
    )
    whole = experiment.run(config)
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        experiment.run(config, folder=folder, listener=stop_after(2))
    assert experiment.run(config, folder=folder, existing="resume").digest == whole.digest


def test_a_complete_run_is_resumed_without_computing(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    configure: Callable[..., Config],
    harvest: Callable[[Path], dict[str, Any]],
):
    folder = RunFolder(tmp_path / "run")
    config = configure(method=["fedavg", "local"])
    first = experiment.run(config, folder=folder)
    before = harvest(folder.path)
    monkeypatch.setattr(Simulation, "advance", None)
    for _ in range(2):
        again = experiment.run(config, folder=folder, existing="resume")
        assert (again.records, again.clients, again.digest) == (first.records, first.clients, first.digest)
        assert harvest(folder.path) == before


def test_a_sweep_of_one_resumes_under_its_label(
    tmp_path: Path, configure: Callable[..., Config], stop_after: Callable[[int], Listener], blobs: Dataset
):
    config = configure(method={"name": "fedprox", "mu": [0.5]}, rounds=4, checkpoint={"every": 2})
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        experiment.run(config, folder=folder, listener=stop_after(3))
    resolved = yaml.safe_load((folder.path / "config.yaml").read_text())
    resumed = experiment.run(read_config(resolved, own=blobs), folder=folder, existing="resume")
    assert len({record["method"] for record in resumed.records}) == 1


def test_an_interrupted_run_can_go_on_at_once(
    tmp_path: Path, configure: Callable[..., Config], stop_after: Callable[[int], Listener]
):
    """Nothing of it holds the folder any more."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)  # so that there are worker processes
    try:
        config = configure(rounds=3, checkpoint={"every": 1}, executor="batched")
        with pytest.raises(KeyboardInterrupt) as interrupt:
            experiment.run(config, folder=RunFolder(tmp_path / "run"), listener=stop_after(2))
        again = experiment.run(config, folder=RunFolder(tmp_path / "run"), existing="resume")
        assert len(again.records) == 3
        assert interrupt.value.__traceback__  # whose frames still know the run
    finally:
        torch.set_num_threads(threads)


def test_a_run_does_not_go_on_with_other_data(
    tmp_path: Path, configure: Callable[..., Config], stop_after: Callable[[int], Listener], blobs: Dataset
):
    folder = RunFolder(tmp_path / "run")
    config = configure(rounds=3, checkpoint={"every": 1})
    with pytest.raises(KeyboardInterrupt):
        experiment.run(config, folder=folder, listener=stop_after(2))
    other = Dataset.from_arrays(
        blobs.name, blobs.inputs + 1, blobs.targets, blobs.test_inputs, blobs.test_targets, classes=3
    )
    with pytest.raises(UserError, match="the data, their split or the graph are not those of"):
        experiment.run(read_config(config.written(), own=other), folder=folder, existing="resume")


def test_a_run_does_not_go_on_with_another_graph(
    tmp_path: Path, configure: Callable[..., Config], stop_after: Callable[[int], Listener]
):
    """The number of nodes stays the same."""
    drawn = tmp_path / "drawn.edges"
    drawn.write_text("0 1\n1 2\n2 3\n3 4\n")
    topology = {"name": "file", "path": str(drawn)}
    config = configure(method="dechetero", topology=topology, clients=5, rounds=3, checkpoint={"every": 1})
    folder = RunFolder(tmp_path / "run")
    with pytest.raises(KeyboardInterrupt):
        experiment.run(config, folder=folder, listener=stop_after(2))
    drawn.write_text("0 1\n1 2\n2 3\n3 4\n4 0\n")
    with pytest.raises(UserError, match="the data, their split or the graph are not those of"):
        experiment.run(config, folder=folder, existing="resume")


def test_resuming_needs_a_run(tmp_path: Path):
    with pytest.raises(UserError, match=r"does not hold a run: there is no config\.yaml"):
        resume(tmp_path)
    assert list(tmp_path.iterdir()) == []
