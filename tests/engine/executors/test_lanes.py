"""Lanes: how jobs are packed, and that packing changes nothing but speed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.testing import assert_close

from consilience import tree
from consilience.algorithms import METHODS
from consilience.client import Client, Rows, Step
from consilience.engine.executors import machine, tape
from consilience.engine.executors.lanes import LaneFold
from consilience.engine.executors.scheduling import Schedule, pack
from consilience.engine.executors.workshop import Workshop
from consilience.exchange.cohort import LocalWork
from consilience.learning.batches import Plan
from consilience.learning.solvers import SGD, Adam, AdamW, Nesterov, RMSprop
from consilience.objectives.base import Objective
from consilience.testing import prepare
from consilience.testing.federation import Layout, ragged_partition, simulation_of
from consilience.types import State

CLASSES = 3
STEPS = st.lists(st.integers(0, 30), max_size=40)
LANES = st.integers(1, 9)


def plan_of(steps: list[int]) -> Plan:
    counts = np.array(steps, dtype=np.int64)
    total = int(counts.sum())
    rows, keys = torch.zeros(total, 1, dtype=torch.int64), torch.zeros(total, dtype=torch.int64)
    return Plan(rows, np.ones(total, dtype=np.int64), keys, np.cumsum(counts) - counts, counts)


@given(STEPS, LANES)
def test_pack_runs_every_job_once_and_wastes_little(steps, lanes):
    packed = pack(steps, lanes)
    working = [job for job, count in enumerate(steps) if count]
    assert sorted(job for jobs in packed for job in jobs) == working
    assert len(packed) == min(lanes, len(working))
    loads = [sum(steps[job] for job in jobs) for jobs in packed]
    assert loads == sorted(loads, reverse=True)
    longest = max(steps, default=0)
    lower_bound = max(longest, -(-sum(steps) // lanes))
    assert max(loads, default=0) <= lower_bound + longest
    # no lane takes a job while another one is free
    for jobs in packed:
        assert all(sum(steps[job] for job in jobs[:-1]) <= load for load in loads)
        assert [steps[job] for job in jobs] == sorted((steps[job] for job in jobs), reverse=True)


@given(STEPS, LANES)
def test_a_schedule_runs_every_step_once_in_order_without_gaps(steps, lanes):
    plan = plan_of(steps)
    schedule = Schedule.of(plan, range(len(steps)), lanes)
    ran = schedule.steps[schedule.steps >= 0]
    assert sorted(ran.tolist()) == list(range(sum(steps)))
    for lane in schedule.steps.T:  # no lane idles and then runs again
        assert (np.diff((lane >= 0).astype(int)) <= 0).all()
    starts = {job: (tick, lane) for tick, pairs in schedule.starts.items() for lane, job in pairs}
    ends = {job: (tick, lane) for tick, pairs in schedule.ends.items() for lane, job in pairs}
    assert sorted(starts) == sorted(ends) == [job for job, count in enumerate(steps) if count]
    for job, (begin, lane) in starts.items():
        end, same_lane = ends[job]
        assert lane == same_lane
        assert schedule.steps[begin:end, lane].tolist() == list(plan.of_job(job))


def train(client: Client, down: State) -> State:
    return client.train(down).model


LAYOUTS = [(5, 5), (3, 5), (2, 5), (1, 5), (5, 1), (2, 3), (9, 100), (1, 5, 2), (2, 3, 3)]
"""Lanes, jobs at a time and, where more than one, worker processes."""


@pytest.mark.parametrize("solver", [SGD(0.1, 0.9, 0.01), Adam(0.01)], ids=["sgd", "adam"])
@pytest.mark.parametrize("work", [LocalWork(2, None, 4), LocalWork(None, 3, 4)], ids=["epochs", "steps"])
@pytest.mark.parametrize("name", ["mlp", "batchnorm", "dropout"])
def test_training_does_not_depend_on_the_layout(federation, name, work, solver):
    place = federation(name, work=work)
    expected = place.run(place.sequential(), train, solver)
    moved = tree.sub(tree.index(expected.uploads, 0)["params"], place.start["params"])
    assert tree.sq_norm(moved) > 1e-6
    for layout in LAYOUTS:
        found = place.run(place.batched(*layout), train, solver)
        assert_close(found.uploads, expected.uploads, rtol=1e-12, atol=1e-12)
        assert_close(found.tally, expected.tally, rtol=1e-12, atol=1e-12)
        assert found.arrived.all()


@pytest.mark.parametrize("lanes", [(3, 5), (1, 5), (2, 3, 3)])
@pytest.mark.parametrize(
    "solver",
    [AdamW(0.01), RMSprop(0.01, momentum=0.5), RMSprop(0.01, centered=True), Nesterov(0.1)],
    ids=["adamw", "rmsprop", "centered", "nesterov"],
)
def test_every_solver_steps_alike_side_by_side_and_alone(federation, solver, lanes):
    place = federation("mlp", work=LocalWork(None, 3, 4))
    expected = place.run(place.sequential(), train, solver)
    assert_close(
        place.run(place.batched(*lanes), train, solver).uploads, expected.uploads, rtol=1e-12, atol=1e-12
    )


@pytest.mark.parametrize("layout", [None, *LAYOUTS])
def test_jobs_without_steps_keep_what_they_came_with(federation, layout):
    place = federation("batchnorm", sizes=(0, 6, 0, 5, 0))
    executor = place.batched(*layout) if layout else place.sequential()
    outcome = place.run(executor, train)
    for client in (0, 2, 4):
        assert_close(tree.index(outcome.uploads, client), place.start, rtol=0, atol=0)
    assert outcome.tally["rows"].tolist() == [0, 12, 0, 10, 0]
    assert (outcome.tally["loss"] > 0).tolist() == [False, True, False, True, False]
    nobody = federation("mlp", sizes=(0, 0))
    outcome = nobody.run(nobody.batched() if layout else nobody.sequential(), train)
    assert_close(tree.index(outcome.uploads, 1), nobody.start, rtol=0, atol=0)


@pytest.mark.parametrize("lanes", [None, 2])
def test_a_job_without_rows_takes_no_steps_in_steps_mode(federation, lanes):
    place = federation("mlp", sizes=(0, 6), work=LocalWork(None, 3, 4))

    def work(client: Client, down: State) -> State:
        trained = client.train(down)
        return {**trained.model, "done": {"steps": trained.steps}}

    outcome = place.run(place.batched(lanes) if lanes else place.sequential(), work)
    start = {**place.start, "done": {"steps": torch.tensor(0.0, dtype=torch.float64)}}
    assert_close(tree.index(outcome.uploads, 0), start, rtol=0, atol=0)
    assert outcome.uploads["done"]["steps"].tolist() == [0, 3]
    assert outcome.tally["rows"].tolist() == [0, 4 + 2 + 4]


@pytest.mark.parametrize("lanes", [None, 2])
def test_the_tally_counts_every_row_of_training_and_nothing_else(federation, lanes):
    place = federation("mlp")

    def work(client: Client, down: State) -> State:
        client.grad(down)
        client.squared_gradients(down)
        return client.train(client.train(down).model).model

    outcome = place.run(place.batched(lanes) if lanes else place.sequential(), work)
    assert outcome.tally["rows"].tolist() == [2 * 2 * samples for samples in place.cohort.samples]


@pytest.mark.parametrize("early_stop", ["stop", "rollback"])
def test_early_stopping_does_not_depend_on_the_layout(federation, early_stop):
    place = federation("batchnorm", holdout=3, work=LocalWork(4, None, 4))

    def work(client: Client, down: State) -> State:
        return client.train(down, Objective(early_stop=early_stop)).model

    expected = place.run(place.sequential(), work, SGD(0.5)).uploads
    plain = place.run(place.sequential(), train, SGD(0.5)).uploads
    assert any(not torch.equal(value, plain["params"][name]) for name, value in expected["params"].items())
    for layout in LAYOUTS:
        found = place.run(place.batched(*layout), work, SGD(0.5)).uploads
        assert_close(found, expected, rtol=1e-12, atol=1e-12)


@dataclass(frozen=True)
class Signed(Objective):
    """Descends or climbs, as the context says."""

    def correct(self, grads, context):
        return tree.scale(context["sign"]["of"], grads)


def climb_and_descend(federation, lanes):
    """Four epochs of a client that climbs, so that it stops after two, and of one that does not stop.

    They are held to the rows they train on, in batches of all of them: descending never raises the loss.
    """
    place = federation("mlp", sizes=(8, 5), work=LocalWork(4, None, 8))
    jobs = tuple(job._replace(holdout=job.shard) for job in place.cohort.jobs)
    place = replace(place, cohort=replace(place.cohort, jobs=jobs, _plans={}))

    def work(client: Client, down: State) -> State:
        trained = client.train(down, Signed(early_stop="stop"), {"sign": down["sign"]})
        return {"done": {"steps": trained.steps}}

    executor = place.batched(lanes) if lanes else place.sequential()
    signs = torch.tensor([-1.0, 1.0], dtype=torch.float64)
    return place, place.run(executor, work, own={"sign": {"of": signs}})


@pytest.mark.parametrize("lanes", [None, 2])
def test_early_stopping_counts_the_steps_that_were_taken(federation, lanes):
    place, outcome = climb_and_descend(federation, lanes)
    assert outcome.uploads["done"]["steps"].tolist() == [2, 4]
    plain = place.run(place.sequential(), train).tally
    for name, value in outcome.tally.items():  # who does not stop logs what plain training does
        assert_close(value[1], plain[name][1], rtol=1e-12, atol=0)


@pytest.mark.parametrize("lanes", [None, 2])
def test_early_stopping_logs_only_the_rows_that_were_trained_on(federation, lanes):
    _, outcome = climb_and_descend(federation, lanes)
    assert outcome.tally["rows"].tolist() == [2 * 8, 4 * 5]


def test_every_lane_has_its_own_hyper_parameters(federation):
    place = federation("mlp")
    rates = torch.tensor([0.1, 0.0, 0.3, 0.2, 0.1], dtype=torch.float64)

    def work(client: Client, down: State) -> State:
        return replace(client, solver=SGD(down["own"]["lr"], 0.9)).train(down).model

    found = place.run(place.batched(2), work, own={"own": {"lr": rates}}).uploads
    for client, rate in enumerate(rates.tolist()):
        alone = place.run(place.sequential(), train, SGD(rate, 0.9)).uploads
        assert_close(tree.index(found, client), tree.index(alone, client), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("lanes", [None, 5, 2, 1])
def test_a_client_that_diverges_is_alone_with_it(federation, lanes):
    inputs = torch.randn(26, 2, 6, 6, dtype=torch.float64)
    sane = federation("batchnorm", inputs=inputs)
    broken = inputs.clone()
    broken[8] = torch.nan  # a row of the second client
    place = federation("batchnorm", inputs=broken)
    outcome = place.run(place.batched(lanes) if lanes else place.sequential(), train)
    assert outcome.arrived.tolist() == [True, False, True, True, True]
    others = torch.tensor([0, 2, 3, 4])
    expected = tree.index(sane.run(sane.sequential(), train).uploads, others)
    assert_close(tree.index(outcome.uploads, others), expected, rtol=1e-12, atol=1e-12)


def test_executors_map_alike(federation):
    place = federation()
    stacked = {"a": {"x": torch.randn(4, 3), "n": torch.arange(4)}}
    shared = {"b": {"y": torch.randn(3)}}

    def function(left: State, right: State) -> State:
        return {"c": {"z": left["a"]["x"] * right["b"]["y"] + left["a"]["n"]}}

    results = [
        executor.map(function, (0, None), stacked, shared)
        for executor in (place.sequential(), place.batched())
    ]
    assert_close(*results)
    assert_close(results[0]["c"]["z"], stacked["a"]["x"] * shared["b"]["y"] + torch.arange(4)[:, None])


def test_a_lane_fold_needs_vmap(federation):
    place = federation()
    rows: Rows = "data"
    step: Step = lambda carry, batch, extras: carry  # noqa: E731
    with pytest.raises(RuntimeError, match="under vmap"):
        LaneFold(Workshop(place.pool), place.cohort, 2, 1)(step, {"a": {"x": torch.zeros(())}}, {}, rows)


class Images(nn.Module):
    """A model that sees its filters as rows, which it cannot where their channels lie last in memory."""

    def __init__(self) -> None:
        super().__init__()
        self.filters = nn.Parameter(torch.randn(CLASSES, 2, 6, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x.flatten(1) @ self.filters.view(CLASSES, -1).T


class Failing(Images):
    """A model that does not work where its filters' channels lie last in memory, for another reason."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.filters.is_contiguous():
            raise RuntimeError("not enough patience")
        return super().forward(x)


def test_a_model_that_asks_for_views_of_images_gets_them(federation):
    place = federation(Images())
    expected = place.run(place.sequential(), train)
    assert_close(place.run(place.batched(1, 5), train).uploads, expected.uploads, rtol=1e-12, atol=1e-12)


def test_other_errors_than_of_views_are_not_taken_for_them(federation, caplog):
    place = federation(Failing())
    expected = place.run(place.sequential(), train)
    found = place.run(place.batched(1, 5), train)
    assert_close(found.uploads, expected.uploads, rtol=1e-12, atol=1e-12)
    assert caplog.text.count("one after the other") == 1
    assert "not enough patience" in caplog.text


@dataclass(frozen=True)
class Convolve(Step):
    """Steps of which each needs a program, and all an operation that takes no memory but its own."""

    scale: float

    def measure(self, carry, batch, extras):
        filters = self.scale * torch.ones(1, 2, 3, 3, dtype=torch.float64)
        return {"sum": {"all": F.conv2d(batch.inputs, filters).sum()}}


def test_why_steps_run_the_slower_way_is_said_once_a_reason(federation, caplog, monkeypatch):
    monkeypatch.setattr(tape, "SMALL_BYTES", 0)
    place, runs = federation(), []

    def placed(*given: Any) -> tape.Run:
        runs.append(tape.placed(*given))
        return runs[-1]

    def work(client: Client, down: State) -> State:
        carry = {"sum": {"all": client.samples.new_zeros(())}}
        return {f"by {scale}": client.fold(Convolve(scale), carry, {}, "data")["sum"] for scale in (1, 2, 3)}

    monkeypatch.setattr(machine, "placed", placed)
    executor = place.batched(2, 5)
    with caplog.at_level("INFO", logger="consilience"):
        for _ in range(2):
            place.run(executor, work)
    assert [run.obstacle for run in runs] == ["aten.convolution.default wants memory of its own"] * 3
    (told,) = caplog.records
    assert told.levelname == "INFO"
    assert told.getMessage().endswith(runs[0].obstacle)


def test_cohorts_that_differ_use_a_few_machines():
    sizes = [3 + 7 * number % 40 for number in range(60)]
    partition = ragged_partition(sizes)
    subject = prepare(METHODS["fedavg"]())
    layout = Layout(partitions={0: partition}, participation=24, work=LocalWork(2, None, 16), lanes=100)
    found = simulation_of(subject, replace(layout, partitions={0: within(partition, 90)}))
    for _ in range(25):
        found.step(evaluate=False)
    blueprints = [blueprint for blueprint, _ in found.world.executor._workshop._machines]
    assert {one.rows for one in blueprints} == {16}
    assert len({one.width for one in blueprints}) <= 4


def within(partition: Any, rows: int) -> Any:
    """The same numbers of rows, all within the first so many."""
    return replace(partition, shards=tuple(shard % rows for shard in partition.shards))
