"""Known data sets and how they are read: one a file, registered by the line that imports it."""

from __future__ import annotations

from consilience.data.sets.base import PublishedFile as PublishedFile
from consilience.data.sets.base import Source as Source
from consilience.data.sets.base import data_directory as data_directory
from consilience.data.sets.cifar10 import CIFAR10 as CIFAR10
from consilience.data.sets.cifar100 import CIFAR100 as CIFAR100
from consilience.data.sets.emnist import EMNIST_BALANCED as EMNIST_BALANCED
from consilience.data.sets.emnist import EMNIST_BYCLASS as EMNIST_BYCLASS
from consilience.data.sets.emnist import EMNIST_BYMERGE as EMNIST_BYMERGE
from consilience.data.sets.emnist import EMNIST_DIGITS as EMNIST_DIGITS
from consilience.data.sets.emnist import EMNIST_LETTERS as EMNIST_LETTERS
from consilience.data.sets.emnist import EMNIST_MNIST as EMNIST_MNIST
from consilience.data.sets.fashion_mnist import FASHION_MNIST as FASHION_MNIST
from consilience.data.sets.femnist import FEMNIST as FEMNIST
from consilience.data.sets.femnist_letters import FEMNIST_LETTERS as FEMNIST_LETTERS
from consilience.data.sets.mnist import MNIST as MNIST
from consilience.data.sets.mnist_sample import MNIST_SAMPLE as MNIST_SAMPLE
from consilience.data.sets.tiny_imagenet import TINY_IMAGENET as TINY_IMAGENET
from consilience.errors import unknown
from consilience.plugins import instances

SOURCES = instances(globals(), Source, "data set")
"""The known data sets, by name."""


def find(name: str) -> Source:
    """The known data set of that name; an unknown one is an error that names the nearest."""
    if name not in SOURCES:
        raise unknown("data set", name, SOURCES)
    return SOURCES[name]
