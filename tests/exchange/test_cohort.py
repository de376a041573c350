"""Who works in a round, how much, and on which batches."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from consilience.exchange.cohort import Cohort, Job, LocalWork, failed_clients, sample_clients

CPU = torch.device("cpu")
TWO_EPOCHS = LocalWork(epochs=2, steps=None, batch_size=3)


def job(client: int, count: int = 7, seed: int = 0, holdout: int = 3) -> Job:
    begin = 100 * client
    return Job(0, seed, client, np.arange(begin, begin + count), np.arange(begin + 50, begin + 50 + holdout))


def cohort(*jobs: Job, round_number: int = 0, work: LocalWork = TWO_EPOCHS) -> Cohort:
    return Cohort(jobs, round_number, work, CPU, np.arange(0))


def visited(made: Cohort, number: int, rows: str, epoch: int | None = None) -> list[tuple]:
    """The batches of a job: the rows that count, then the key."""
    plan = made.plan(rows, epoch)
    steps = plan.of_job(number)
    return [(*plan.rows[step, : plan.sizes[step]].tolist(), int(plan.keys[step])) for step in steps]


def test_common_keys_belong_to_a_seed_and_a_round_and_keys_to_a_client_too():
    jobs = [job(0), job(1), job(0, seed=1), job(1, seed=1)]
    now, later = cohort(*jobs), cohort(*jobs, round_number=1)
    common = now.keys()[1].tolist()
    assert common == [common[0]] * 2 + [common[2]] * 2
    assert len({*common, *later.keys()[1].tolist(), *now.keys()[0].tolist()}) == 2 + 2 + 4
    assert cohort(job(5, seed=1)).keys()[1].tolist() == common[2:3]


@pytest.mark.parametrize(
    ("work", "samples", "steps"),
    [
        (LocalWork(2, None, 3), 7, 6),
        (LocalWork(2, None, 3), 6, 4),
        (LocalWork(1, None, 100), 7, 1),
        (LocalWork(3, None, 3), 0, 0),
        (LocalWork(None, 11, 3), 7, 11),
        (LocalWork(None, 11, 3), 0, 0),
        (LocalWork(None, 0, 3), 7, 0),
        (LocalWork(0, None, 3), 7, 0),
    ],
)
def test_steps_of_local_work(work, samples, steps):
    made = cohort(job(0), job(1, samples), work=work)
    assert made.plan("train").steps[1] == made.steps[1] == steps
    assert made.samples.tolist() == [7, samples]


@pytest.mark.parametrize(
    "work", [LocalWork(5, None, 3, stragglers=0.5), LocalWork(None, 5, 3, stragglers=0.5)]
)
def test_stragglers_do_less_but_something_and_the_same_whoever_else_is_there(work):
    made = cohort(*(job(client) for client in range(200)), work=work)
    done = made.done.tolist()
    slow = [count for count in done if count < 5]
    assert set(done) == {1, 2, 3, 4, 5}
    assert 60 < len(slow) < 140
    alone = cohort(job(17), work=work)
    assert alone.done.tolist() == done[17:18]
    assert made.plan("train").steps.tolist() == made.steps.tolist()
    assert cohort(job(0), work=replace(work, stragglers=0.0)).done.tolist() == [5]
    assert (
        cohort(*(job(client) for client in range(20)), work=replace(work, stragglers=1.0))
        .done.tolist()
        .count(5)
        == 0
    )


@pytest.mark.parametrize("rows", ["train", "data", "holdout"])
def test_batches_do_not_depend_on_the_other_jobs(rows):
    crowd = cohort(job(4, 9), job(2), job(7, 1), job(5, 0))
    expected = visited(cohort(job(2)), 0, rows)
    assert visited(crowd, 1, rows) == expected
    assert visited(crowd.part(slice(1, 3)), 0, rows) == expected
    for other in (cohort(job(2, seed=1)), cohort(job(2), round_number=1)):
        assert visited(other, 0, rows) != expected


@pytest.mark.parametrize(
    ("rows", "times", "numbers"), [("train", 2, range(200, 207)), ("data", 1, range(200, 207))]
)
def test_training_visits_the_shard_every_epoch_and_the_data_pass_once(rows, times, numbers):
    seen = [row for *batch, _ in visited(cohort(job(2)), 0, rows) for row in batch]
    assert sorted(seen) == sorted([*numbers] * times)


def test_the_holdout_is_its_own_data():
    seen = [row for *batch, _ in visited(cohort(job(2)), 0, "holdout") for row in batch]
    assert sorted(seen) == [250, 251, 252]


def test_epochs_one_by_one_are_the_epochs_together():
    made = cohort(job(0), job(1, 4))
    for number in range(2):
        apart = [batch for epoch in range(2) for batch in visited(made, number, "train", epoch)]
        assert apart == visited(made, number, "train")


def test_a_plan_is_made_once():
    made = cohort(job(0))
    assert made.plan("train") is made.plan("train")
    assert made.plan("train") is not made.plan("train", 0)


AVAILABLE = np.array([1, 4, 5, 9, 12, 30, 31, 77])


@pytest.mark.parametrize("count", [1, 3, 7])
def test_sampled_clients_are_sorted_unique_and_seeded(count):
    draws = [sample_clients(0, number, AVAILABLE, count).tolist() for number in range(100)]
    for drawn in draws:
        assert drawn == sorted(set(drawn))
        assert len(drawn) == count
        assert set(drawn) <= set(AVAILABLE.tolist())
    assert len(set(map(tuple, draws))) > 1
    assert {client for drawn in draws for client in drawn} == set(AVAILABLE.tolist())
    assert draws == [sample_clients(0, number, AVAILABLE, count).tolist() for number in range(100)]
    assert draws != [sample_clients(1, number, AVAILABLE, count).tolist() for number in range(100)]


@pytest.mark.parametrize("count", [8, 9, 1000])
def test_all_clients_where_there_are_no_more(count):
    assert sample_clients(0, 0, AVAILABLE, count).tolist() == AVAILABLE.tolist()


@pytest.mark.parametrize("rate", [0.1, 0.5])
def test_failures_have_their_rate_and_are_everyones_own(rate):
    clients = np.arange(2000)
    failed = failed_clients(0, 3, clients, rate)
    deviation = (rate * (1 - rate) / 2000) ** 0.5
    assert len(failed) / 2000 == pytest.approx(rate, abs=5 * deviation)
    assert failed_clients(0, 3, clients, rate) == failed
    assert failed_clients(0, 3, clients[::7], rate) == failed & set(clients[::7].tolist())
    assert failed_clients(0, 4, clients, rate) != failed
    assert failed_clients(1, 3, clients, rate) != failed
    assert failed_clients(0, 3, clients, 0.05) < failed


@pytest.mark.parametrize(("rate", "count"), [(0, 0), (1, 10)])
def test_nobody_or_everybody_fails(rate, count):
    assert len(failed_clients(0, 0, np.arange(10), rate)) == count
