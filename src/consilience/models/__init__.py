"""The papers' models: one a file, registered by the line that imports it."""

from __future__ import annotations

from consilience.models.cifar_cnn import CifarCNN as CifarCNN
from consilience.models.fagh_cnn import FaghCNN as FaghCNN
from consilience.models.fashion_cnn import FashionCNN as FashionCNN
from consilience.models.femnist_cnn import FemnistCNN as FemnistCNN
from consilience.models.lenet5 import LeNet5 as LeNet5
from consilience.models.logistic import Logistic as Logistic
from consilience.models.mlp import MLP as MLP
from consilience.models.mnist_cnn import MnistCNN as MnistCNN
from consilience.models.pfl_cnn import PflCNN as PflCNN
from consilience.models.pytorch_cnn import PyTorchCNN as PyTorchCNN
from consilience.models.resnet50_cifar import ResNet50Cifar as ResNet50Cifar
from consilience.models.simple_cnn import SimpleCNN as SimpleCNN
from consilience.models.spec import Classifier as Classifier
from consilience.models.spec import ModelSpec as ModelSpec
from consilience.models.vgg11 import VGG11 as VGG11
from consilience.models.vgg16 import VGG16 as VGG16
from consilience.models.window_lm import WindowLM as WindowLM
from consilience.plugins import registry

MODELS = registry(globals(), ModelSpec, "model")
"""The models, by the names that configurations use."""
