"""Who has which rows, who hears whom, and a data set."""

from dataclasses import dataclass

import networkx as nx
import numpy as np
import torch

import consilience as cs


@dataclass(frozen=True)
class EveryNth(cs.Partitioner):
    """Rows are dealt in turn, as cards are."""

    name = "every-nth"

    def split(self, labels, clients, rng, groups):
        return [np.arange(client, len(labels), clients) for client in range(clients)]


@dataclass(frozen=True)
class Wheel(cs.Graph):
    """A ring around one node that hears everybody."""

    name = "wheel"
    nodes: int | None = None

    def graph(self, nodes, random):
        return nx.wheel_graph(nodes)


@dataclass(frozen=True, kw_only=True)
class Apples(cs.Source):
    """Weights of apples by their diameter."""

    def present(self, root):
        return True

    def read(self, root):
        diameter = torch.linspace(-1, 1, 60)[:, None]
        weight = diameter[:, 0] ** 3 + diameter[:, 0]
        return cs.Dataset.from_arrays(self.name, diameter[::2], weight[::2], diameter[1::2], weight[1::2])


APPLES = Apples(
    name="apples",
    description="Weights of apples by their diameter",
    classes=1,
    shape=(1,),
    training_rows=30,
    test_rows=30,
    licence="made up",
)
