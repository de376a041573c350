"""The papers' models, by the names that configurations use."""

from __future__ import annotations

from consilience.models.cnn import (
    CifarCNN,
    FaghCNN,
    FashionCNN,
    FemnistCNN,
    LeNet5,
    MnistCNN,
    PflCNN,
    PyTorchCNN,
    SimpleCNN,
)
from consilience.models.mlp import MLP, Logistic
from consilience.models.resnet import ResNet50Cifar
from consilience.models.spec import Classifier, ModelSpec
from consilience.models.vgg import VGG11, VGG16

_SPECS: tuple[type[ModelSpec], ...] = (
    MLP,
    Logistic,
    CifarCNN,
    FemnistCNN,
    MnistCNN,
    FashionCNN,
    PyTorchCNN,
    SimpleCNN,
    LeNet5,
    FaghCNN,
    PflCNN,
    VGG11,
    VGG16,
    ResNet50Cifar,
)

MODELS: dict[str, type[ModelSpec]] = {spec.name: spec for spec in _SPECS}

__all__ = [
    "MLP",
    "MODELS",
    "VGG11",
    "VGG16",
    "CifarCNN",
    "Classifier",
    "FaghCNN",
    "FashionCNN",
    "FemnistCNN",
    "LeNet5",
    "Logistic",
    "MnistCNN",
    "ModelSpec",
    "PflCNN",
    "PyTorchCNN",
    "ResNet50Cifar",
    "SimpleCNN",
]
