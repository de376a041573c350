"""A device with the rows of a simulated client computes what that client computes, from messages alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from consilience import tree, wire
from consilience.algorithm import Algorithm
from consilience.algorithms import METHODS
from consilience.algorithms.desa import DESA
from consilience.algorithms.fedcurv import FedCurv
from consilience.engine.rounds.cast import cohort_of
from consilience.exchange.address import Address
from consilience.exchange.cohort import LocalWork
from consilience.exchange.device import device_client
from consilience.exchange.inbox import Arrival, make_inbox, screened
from consilience.exchange.schemas import dry_run, idle_client, schemas_of
from consilience.graphs import Star
from consilience.learning.batches import Pool
from consilience.testing import prepare
from consilience.testing.federation import SIZES, Layout, Subject, simulation_of, state_of
from consilience.transforms.compressed import Compressed
from consilience.transforms.noised import Noised
from consilience.types import State

CPU = torch.device("cpu")
WORK = LocalWork(epochs=2, steps=None, batch_size=4, stragglers=0.5, lr_decay=0.9)
CASES: dict[str, Algorithm] = {
    name: method()
    for name, method in METHODS.items()
    if name not in ("local", "fedlin") and prepare(method()).topologies[0] == Star()
}
CASES |= {
    "sparse": FedCurv(one_in=3),
    "compressed": Compressed(one_in=5)(METHODS["hwa"]()),
    "int8": Compressed("int8")(METHODS["fedga"]()),
    "noised": Noised(0.1)(METHODS["scaffold"]()),
}


def own_pool(pool: Pool, rows: np.ndarray) -> Pool:
    """A device's data, in memory of their own."""
    chosen = torch.from_numpy(rows)
    return Pool(pool.inputs[chosen].clone(), pool.targets[chosen].clone(), pool.shift, pool.scale, pool.dtype)


def federate(subject: Subject, algorithm: Algorithm, rounds: int) -> dict[str, dict[str, torch.Tensor]]:
    """The hub's state after some rounds in which everything between hub and devices is bytes."""
    simulation = simulation_of(subject, Layout(work=WORK))
    world = simulation.world
    model = tree.index(world.initial[0], 0)
    hub, memories = algorithm.init_hub(model), [algorithm.init_memory(model) for _ in SIZES]
    said: dict[int, State] = {}  # the last message of each
    pools = [own_pool(world.pool, np.concatenate([s, h])) for s, h in zip(*_rows(world), strict=True)]
    for round_number, setup in [(0, True), *((number, False) for number in range(rounds))]:
        in_force = algorithm.at(round_number)
        phases = algorithm.setup() if setup else in_force.phases()
        forms = schemas_of(in_force, world.task, subject.solver, WORK, model, peer=False, setup=setup)
        nobody, blank = idle_client(world.task, subject.solver, WORK, CPU, peer=False), memories[0]
        for index in range(len(phases)):
            phase, form = Address(round_number, index, setup).phase(algorithm), forms[index]
            down, arrivals = phase.broadcast(hub), []
            if algorithm.reshapes():
                form, _, blank = dry_run(phase, nobody, down, blank)
            assert tree.Schema.of(down) == form.download
            for number in cohort_of(world, round_number).sampled[0]:
                client = device_client(
                    world.task,
                    subject.solver,
                    pools[number],
                    WORK,
                    seed=0,
                    round_number=round_number,
                    number=number,
                    holdout=np.arange(SIZES[number], len(pools[number].targets)),
                )
                upload, memories[number] = phase.local(client, down, memories[number])
                header = wire.Header(round_number, number, int(client.samples))
                message, told = wire.decode(wire.encode(phase.travelling(upload), header))
                kept = {group: said[number][group] for group in phase.kept}
                said[number] = phase.received(message, {**down, **kept})
                arrivals.append(Arrival(told.sender, told.samples, said[number]))
            accepted, refused = screened(reversed(arrivals), form.message(phase))
            assert not refused
            hub = phase.combine(hub, make_inbox(accepted, population=len(SIZES)))
    return hub


def _rows(world):
    return world.replicas[0].shards, world.replicas[0].holdouts


@pytest.mark.parametrize("case", CASES)
def test_devices_and_a_hub_that_exchange_bytes_are_the_simulation_bit_for_bit(case):
    subject = prepare(CASES[case])
    simulation = simulation_of(subject, Layout(work=WORK))
    algorithm = CASES[case].for_data((6,), 3).for_model(tree.index(simulation.world.initial[0], 0))
    for _ in range(3):
        simulation.step(evaluate=False)
    expected = {
        group.removeprefix("hub."): params
        for group, params in state_of(simulation).items()
        if group.startswith("hub.")
    }
    found = federate(subject, algorithm, rounds=3)
    assert tree.flatten(expected).keys() == tree.flatten(found).keys()
    # Learned Hessians are matrices that are multiplied, which rounds by where in memory they lie.
    near = 1e-9 if algorithm.linear_only() else 0.0
    assert_close(found, expected, rtol=near, atol=near)


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
