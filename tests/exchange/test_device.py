"""A device with the rows of a simulated client computes what that client computes, from messages alone."""

from __future__ import annotations

import torch

from consilience import tree
from consilience.algorithms.desa import DESA
from consilience.exchange.cohort import LocalWork
from consilience.exchange.schemas import schemas_of
from consilience.testing import prepare
from consilience.testing.federation import Layout, simulation_of

CPU = torch.device("cpu")
WORK = LocalWork(epochs=2, steps=None, batch_size=4, stragglers=0.5, lr_decay=0.9)


def test_the_schemas_of_a_setup_are_those_of_its_messages():
    subject = prepare(DESA(ipc=2, iterations=2, width=4, depth=2))
    simulation = simulation_of(subject, Layout(subject.topologies[0]))
    model = tree.index(simulation.world.initial[0], 0)
    algorithm = subject.algorithm.for_data((6,), 3)
    anchors, logits = schemas_of(
        algorithm, simulation.world.task, subject.solver, WORK, model, peer=True, setup=True
    )
    assert anchors.upload.kinds()["anchors/images"][0] == (6, 6)
    assert logits.upload.kinds()["logits/anchors"][0] == (6, 3)
