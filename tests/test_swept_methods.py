"""A method whose numbers are swept says the same about its exchanges as one whose numbers are known."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from consilience import sweeping
from consilience.algorithm import Algorithm, Phase
from consilience.algorithms import METHODS
from consilience.algorithms.dechw import DecHWStar
from consilience.method import Composed, Method
from consilience.objectives import OBJECTIVES
from consilience.rules import RULES
from consilience.server_steps import SERVER_STEPS
from consilience.transforms.compressed import Compressed
from consilience.transforms.noised import Noised
from consilience.transforms.until import Until

PARTS = {"objective": OBJECTIVES, "rule": RULES, "server": SERVER_STEPS}
CASES: dict[str, Algorithm] = {
    **{name: method() for name, method in METHODS.items()},
    "noised": Noised(0.1)(METHODS["fedprox"]()),
    "compressed": Compressed(mixing=0.5)(METHODS["hwa"]()),
    "until": Until(METHODS["fedprox"](), 1, METHODS["fedavgm"]()),
    "frozen": DecHWStar(until=1, mode="freeze"),
    "objective": Composed(objective=OBJECTIVES["proximal"]()),
    "rule": Composed(rule=RULES["geometric_median"]()),
    "server": Composed(server=SERVER_STEPS["adaptive"]()),
}


def swept(part: object) -> object:
    """The part with a hole for each of its floats, as the engine has it where all of them are swept."""
    changes = {}
    for field in dataclasses.fields(part):  # type: ignore[arg-type]
        value = getattr(part, field.name)
        if sweeping.is_part(value):
            changes[field.name] = swept(value)
        elif isinstance(value, float):
            changes[field.name] = torch.tensor(value)
    return sweeping.split(sweeping.replace(part, changes))[0]


def facts(phase: Phase) -> tuple[object, ...]:
    said = phase.known, phase.kept, phase.rebuilt, phase.private
    return *said, phase.resampled, phase.flooded, phase.replies


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("round_number", [0, 5])
def test_exchanges_can_be_asked_before_numbers_are_known(case, round_number):
    whole, holed = CASES[case].at(round_number), swept(CASES[case]).at(round_number)
    assert isinstance(holed, Algorithm)
    for ask in (lambda one: one.phases(), lambda one: one.setup()):
        assert [facts(phase) for phase in ask(whole)] == [facts(phase) for phase in ask(holed)]
    assert whole.evaluated() == holed.evaluated()
    assert whole.label == holed.label
    if isinstance(whole, Method):
        for slot in PARTS:
            assert type(getattr(whole.parts(), slot)) is type(getattr(holed.parts(), slot))


def test_arithmetic_with_a_hole_is_a_hole():
    hole = sweeping.Hole()
    assert all(one == hole for one in (1 - hole, hole * 2.0, hole**2, 3 / (1 + hole), -hole))
    assert sweeping.is_swept(hole)
    assert not sweeping.is_swept(0.5)
