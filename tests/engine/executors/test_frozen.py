"""What is not trained is in memory once, whatever the number of lanes."""

from __future__ import annotations

import torch
from torch import nn

from consilience.client import TrainStep
from consilience.engine.executors.machine import Blueprint, Plain
from consilience.learning.solvers import SGD
from consilience.objectives.base import Objective
from consilience.tree import Schema

LANES, ROWS = 8, 3


def test_lanes_hold_what_is_trained_and_programs_read_the_rest_where_it_lies(federation):
    frozen = nn.Linear(72, 900)
    frozen.requires_grad_(False)
    place = federation(nn.Sequential(nn.Flatten(), frozen, nn.ReLU(), nn.Linear(900, 3)))
    step = TrainStep(place.task, SGD(lr=0.1), Objective())
    zero = torch.zeros((), dtype=torch.float64)
    carry = {**place.start, "tally": {"loss": zero, "rows": zero}}
    extras = {"solver": {}, "objective": {}}
    blueprint = Blueprint(step, Schema.of(carry), Schema.of({}), Schema.of(extras), ROWS, LANES)
    machine = Plain(place.pool, blueprint)
    assert place.start["params"].keys() == {"3.weight", "3.bias"}
    assert sum(value.nbytes for value in machine.carry) < 1.01 * LANES * 8 * (3 * 900 + 3)
    program = machine.program(machine.example(ROWS), full=False).module
    held = place.task.frozen["1.weight"]
    assert any(value.data_ptr() == held.data_ptr() for value in program.buffers())
    wanted = held.numel()
    assert all(value.numel() < wanted or value.data_ptr() == held.data_ptr() for value in program.buffers())
