"""Whether inputs are held in memory, or read as batches need them."""

from __future__ import annotations

import logging

import torch

from consilience.config import Config
from consilience.data.dataset import Dataset
from consilience.data.stored import Stored
from consilience.engine.memory import read_size, shown, usual_memory

LOG = logging.getLogger("consilience")


def is_streamed(config: Config, dataset: Dataset) -> bool:
    """Whether inputs are read as batches need them; where their size is why, that is said."""
    if config.data.resident != "auto":
        return config.data.resident == "never"
    parts, device = (dataset.inputs, dataset.test_inputs), config.torch_device
    size = sum(part.nbytes for part in parts)
    limits = []
    if any(isinstance(part, Stored) for part in parts):  # others are in the host's memory already
        limits.append(("this machine", usual_memory(torch.device("cpu"))))
    if device.type == "cuda" or config.memory is not None:
        memory = usual_memory(device) if config.memory is None else read_size(config.memory)
        limits.append((str(device), memory))
    for place, memory in limits:
        if size > memory // 2:
            LOG.warning(
                "%s: inputs take %s, more than half of the %s of %s: they are read as batches need them",
                dataset.name,
                shown(size),
                shown(memory),
                place,
            )
            return True
    if any(isinstance(part, Stored) for part in parts):
        LOG.info("%s: inputs take %s and are read into memory", dataset.name, shown(size))
    return False
