"""The scores of a model on a CPU are the same to the bit, whatever the number of threads."""

from __future__ import annotations

import pytest
import torch

from consilience.client import ScoreStep
from consilience.config.config import Config, read_config
from consilience.data.dataset import Dataset
from consilience.engine.build import simulate
from consilience.engine.rounds.evaluation import score_on_test, score_on_training
from consilience.experiment import plan


@pytest.fixture(scope="module")
def config() -> Config:
    random = torch.Generator().manual_seed(0)
    inputs, targets = torch.randn(4600, 784, generator=random), torch.arange(4600) % 10
    data = Dataset.from_arrays("noise", inputs[:600], targets[:600], inputs[600:], targets[600:])
    model = {"name": "mlp", "hidden": [200]}
    return read_config({"data": data, "model": model, "clients": 3, "executor": "batched"}).resolved()


def scores(config: Config, threads: int) -> list[float]:
    """Every score of the initial model, on the test set and on clients' rows."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        (arm,) = plan(config)
        simulation = simulate(arm.scene, arm.variants)
        world, clients = simulation.world, [(0, client) for client in range(3)]
        models = simulation.models(simulation.evaluated() * 3)
        found = [score_on_test(world, models, clients)(), score_on_training(world, models, clients)()]
        assert torch.get_num_threads() == threads
        world.executor.close()
        return [value for one in found for values in one.values() for value in values.tolist()]
    finally:
        torch.set_num_threads(before)


def test_the_number_of_threads_changes_no_score(config: Config):
    alone = scores(config, 1)
    assert len(alone) == 2 * 2 * 3
    assert all(scores(config, threads) == alone for threads in (2, 3, 8))


def test_blocks_are_as_good_as_the_whole(config: Config, monkeypatch: pytest.MonkeyPatch):
    apart = scores(config, 2)
    monkeypatch.setattr(ScoreStep, "apart", False)
    assert scores(config, 2) == pytest.approx(apart, rel=1e-6)
