"""Every method whose clients remember something gives the same bits if that is kept in a file."""

from __future__ import annotations

from pathlib import Path

import pytest

from consilience.algorithms import METHODS
from consilience.engine.rounds.simulation import Simulation
from consilience.testing import prepare
from consilience.testing.federation import Layout, assert_same, play, simulation_of
from consilience.types import State

SKIPPED = {"desa"}
"""Its work takes long, and its memory is a model, as other methods' are."""


@pytest.mark.parametrize("name", sorted(set(METHODS) - SKIPPED))
def test_memories_in_a_file_change_no_bit(name: str, tmp_path: Path):
    subject = prepare(METHODS[name]())
    layout = Layout(subject.topologies[0], participation=subject.some)
    held = simulation_of(subject, layout)
    if not (held.store.load([0]) or held.links.load([0])):
        pytest.skip("its clients remember nothing")

    def filed(path: Path) -> Simulation:
        made = simulation_of(subject, Layout(layout.topology, participation=subject.some, resident="never"))
        return Simulation(made.world, made.algorithm, path)

    one = filed(tmp_path / "memories")
    expected: list[State] = [play(held, rounds=1)[0] for _ in range(3)]
    assert_same(expected[0], play(one, rounds=1)[0], "after a round")
    snapshot = one.snapshot()
    one.confirm()
    assert_same(expected[1], play(one, rounds=1)[0], "after two rounds")
    again = filed(tmp_path / "memories")  # as after a kill
    again.restore(snapshot)
    found = [play(again, rounds=1)[0] for _ in range(2)]
    assert_same(expected[2], found[1], "after a snapshot")
