"""Which models have hidden units that can change places, and what happens to the next layer when they do."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from consilience.learning.chain import by_unit, obstacle, reordered
from consilience.learning.task import Task
from consilience.models import MODELS
from consilience.models.spec import Classifier

IMAGE = (3, 32, 32)
CHAINS = {"mlp", "logistic", "lenet5", "simple-cnn", "cifar-cnn", "femnist-cnn", "pfl-cnn", "pytorch-cnn"}
CHAINS |= {"mnist-cnn", "fashion-cnn"}


@pytest.mark.parametrize("name", sorted(set(MODELS) - {"window-lm"}))
def test_models_that_are_plain_chains_are_known(name):
    found = obstacle(Task(MODELS[name]().build(IMAGE, 10)).skeleton)
    assert found is None if name in CHAINS else found in ("batch normalisation", "a layer of type Bottleneck")


@pytest.mark.parametrize("name", ["vgg11", "vgg16"])
def test_vgg_without_batch_normalisation_is_a_chain(name):
    assert obstacle(Task(MODELS[name](batch_norm=False, classifier="nib").build(IMAGE, 10)).skeleton) is None


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, x):
        return x + self.layer(x)


def twice():
    layer = nn.Linear(4, 4)
    return nn.Sequential(layer, nn.ReLU(), layer)


@pytest.mark.parametrize(
    ("module", "reason"),
    [
        (nn.Sequential(nn.Linear(6, 4), Residual(), nn.Linear(4, 3)), "a layer of type Residual"),
        (nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)), "batch normalisation"),
        (nn.Sequential(nn.Linear(6, 4), nn.LayerNorm(4), nn.Linear(4, 3)), "a layer of type LayerNorm"),
        (
            nn.Sequential(nn.Conv2d(4, 4, 3, groups=2), nn.Flatten(), nn.Linear(4, 3)),
            "a convolution in groups",
        ),
        (
            nn.Sequential(nn.Conv2d(1, 4, 3), nn.Linear(2, 3)),
            "a linear layer on images that were not flattened",
        ),
        (nn.Sequential(nn.Linear(6, 4), nn.Softmax(1), nn.Linear(4, 3)), "a layer of type Softmax"),
        (Classifier(nn.GRU(6, 4), nn.Linear(4, 3)), "a layer of type GRU"),
        (twice(), "a layer that is used twice"),
        (nn.Sequential(nn.Flatten()), "no linear or convolutional layer"),
    ],
)
def test_what_keeps_units_in_their_places(module, reason):
    assert obstacle(Task(module).skeleton) == reason


@pytest.mark.parametrize("shape", [(5, 4), (5, 12), (5, 4, 3, 3)])
def test_columns_follow_their_units(shape):
    """Of 4 units before: dense, flattened from images of 3 pixels, convolutional."""
    weight = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    found = reordered(weight, 4, torch.tensor([2, 0, 4, 3, 1, 4]))
    assert found.shape == (5, shape[1] // 4 * 6, *shape[2:])
    columns = by_unit(weight, 4)
    assert_close(by_unit(found, 6)[:, [0, 1, 3, 4]], columns[:, [2, 0, 3, 1]], rtol=0, atol=0)
    assert not by_unit(found, 6)[:, [2, 5]].any()
