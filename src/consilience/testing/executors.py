"""What the engine makes of a method: all clients, seeds and numbers at once are each of them alone."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar, cast

from consilience import sweeping, tree
from consilience.algorithm import Algorithm
from consilience.errors import UserError
from consilience.graphs import Star
from consilience.learning.solvers import Solver
from consilience.testing.federation import (
    SIZES,
    WORK,
    DoesNotApplyError,
    Layout,
    Subject,
    assert_close,
    play,
    ragged_partition,
    simulation_of,
)

Part = TypeVar("Part")


def batched_equals_sequential(subject: Subject) -> None:
    """All clients at once give the same as one after the other, in any number of lanes and chunks."""
    for topology in subject.topologies:
        _compare_lanes(
            subject, Layout(topology, work=WORK), lanes=(1, 100) if isinstance(topology, Star) else (2,)
        )
    # Some clients' memories then stay behind.
    _compare_lanes(subject, Layout(subject.topologies[0], participation=subject.some, work=WORK), lanes=(2,))


def _compare_lanes(subject: Subject, layout: Layout, lanes: Sequence[int]) -> None:
    expected = play(simulation_of(subject, layout), rounds=3)[0]
    for count in lanes:
        # Chunks that do not divide the cohort.
        batched = dataclasses.replace(layout, lanes=count, chunk=count + 1)
        found = play(simulation_of(subject, batched), rounds=3)[0]
        assert_close(expected, found, f"in lanes of {count} ({layout.topology.name})")


def buffers_and_dropout_work(subject: Subject) -> None:
    """Batched equals sequential with batch normalisation and dropout too, and buffers stay sane."""
    if subject.algorithm.linear_only():
        raise DoesNotApplyError("it is for models of one linear layer, which have neither")
    for topology in subject.topologies[:2]:
        layouts = [Layout(topology, images=True, lanes=lanes, work=WORK) for lanes in (0, 2)]
        try:
            simulations = [simulation_of(subject, layout) for layout in layouts]
        except UserError as refusal:
            raise DoesNotApplyError(f"it refuses that model: {refusal}") from None
        expected, found = (play(simulation, rounds=2)[0] for simulation in simulations)
        assert_close(expected, found, f"in 2 lanes ({topology.name})")
        for path, value in tree.flatten(found).items():
            assert value.isfinite().all(), f"{path} is not finite ({topology.name})."
            counter = path.endswith("num_batches_tracked")
            assert not (counter and value.is_floating_point()), (
                f"{path} is no whole number ({topology.name})."
            )


def replicas_do_not_touch(subject: Subject) -> None:
    """Seeds and hyper-parameters that share a computation give what each of them gives alone."""
    if subject.algorithm.reshapes():
        raise DoesNotApplyError("its states change their shapes, so its replicas share nothing")
    for topology in subject.topologies[:2]:
        # The seeds' cohorts differ in size: one has a client without data.
        partitions = {0: ragged_partition(SIZES), 1: ragged_partition((5, 0, 8, 2, 3), first=40)}
        layout = Layout(topology, partitions, lanes=4)
        variants = [pair for pair in _variants(subject) if subject.refusal(*pair, topology) is None]
        together = play(simulation_of(subject, layout, *variants), rounds=2)
        for seed, partition in partitions.items():
            alone = simulation_of(subject, dataclasses.replace(layout, partitions={seed: partition}))
            what = f"with seed {seed} among others ({topology.name})"
            assert_close(play(alone, rounds=2)[0], together[seed], what)
        for number, variant in enumerate(variants[1:], 1):  # the first one's seeds were alone just now
            for seed, expected in enumerate(play(simulation_of(subject, layout, variant), rounds=2)):
                what = f"with {variant} among others ({topology.name})"
                assert_close(expected, together[len(partitions) * number + seed], what)


def _variants(subject: Subject) -> list[tuple[Algorithm, Solver]]:
    """The subject, with each of its floats changed in turn, and with another learning rate."""
    algorithm, solver = subject.algorithm, subject.solver
    return [
        (algorithm, solver),
        *((nudged, solver) for nudged in _nudged(algorithm)),
        (algorithm, dataclasses.replace(cast(Any, solver), lr=1.1 * solver.lr)),
    ]


def _nudged(part: Part) -> Iterator[Part]:
    """A part with each of its floats changed in turn, at any depth."""
    for entry in dataclasses.fields(cast(Any, part)):
        value = getattr(part, entry.name)
        choices: list[tuple[Any, ...]] = []
        if sweeping.is_part(value):
            choices = [(inner,) for inner in _nudged(value)]
        elif isinstance(value, float):
            choices = [(1.1 * value or 0.1, 0.9 * value)]
        for values in choices:
            yield from _first_allowed(part, entry.name, values)


def _first_allowed(part: Part, name: str, values: Sequence[Any]) -> list[Part]:
    """The part with the first of some values for a field that it does not refuse."""
    for value in values:
        with contextlib.suppress(ValueError):
            return [dataclasses.replace(cast(Any, part), **{name: value})]
    return []
