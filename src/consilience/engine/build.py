"""From a description of a setting to the world in which algorithms run."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from consilience import sweeping, tree
from consilience.algorithm import Algorithm, Conditions
from consilience.data.dataset import Dataset
from consilience.data.normalising import normalisation
from consilience.data.stored import Joined, whole
from consilience.engine.choosing import at_worker, choose_executor
from consilience.engine.executors.base import Executor
from consilience.engine.memory import usual_memory
from consilience.engine.modules import module_of, takes_tokens, try_model
from consilience.engine.network import Network
from consilience.engine.rounds.output_curvature import check_outputs
from consilience.engine.rounds.simulation import Simulation
from consilience.engine.scene import Scene
from consilience.engine.spread.elsewhere import Elsewhere
from consilience.engine.spread.executor import Spread
from consilience.engine.spread.journey import Journey
from consilience.engine.world import Replica, World, numbers_state
from consilience.errors import UserError
from consilience.exchange import uses
from consilience.graphs.base import Adjacency
from consilience.learning import chain
from consilience.learning.augmentations.base import check as check_augmentations
from consilience.learning.batches import Pool
from consilience.learning.randomness import Purpose, generator, torch_seed
from consilience.learning.schedules import Scheduled
from consilience.learning.solvers import Solver
from consilience.learning.task import Task, digest_of
from consilience.metrics import Score, Whole
from consilience.types import State


def check(scene: Scene, variants: Sequence[tuple[Algorithm, Solver]]) -> None:
    """Raise a UserError that says why a simulation would be refused, if it would be, without making it."""
    task = task_of(scene, torch.device("cpu"))
    refuse(scene, task, variants)
    with torch.random.fork_rng(devices=[]):
        model = task.weights_of(module_of(scene))
    try_model(scene, task, model)
    some = scene.dataset.inputs[:3]
    check_augmentations(scene.augment, some if takes_tokens(scene.dataset) else some.to(scene.dtype))
    for coordinate in scene.coordinates:
        coordinate.check(model["params"])
    if scene.curvature:
        check_outputs(model["params"])
    for algorithm, _ in fitted(scene.dataset, task, variants):
        algorithm.init_hub(model)
        algorithm.init_memory(model)
        algorithm.init_link(model)


def takes_steps(scene: Scene, variant: tuple[Algorithm, Solver]) -> bool:
    """Whether a method has clients train, or looks at how they would; else it is alike for all solvers."""
    task = task_of(scene, torch.device("cpu"))
    ((algorithm, solver),) = fitted(scene.dataset, task, [variant])
    with torch.random.fork_rng(devices=[]):
        model = task.weights_of(module_of(scene))
    graph = adjacency_of(scene, scene.seeds[0]) is not None
    return uses.takes_steps(algorithm, task, solver, scene.work, model, rounds=scene.rounds, peer=graph)


def simulate(
    scene: Scene,
    variants: Sequence[tuple[Algorithm, Solver]],
    memories: Path | None = None,
    only: Sequence[int] | None = None,
) -> Simulation:
    """A simulation of all variants (which differ in floats only) with all seeds, before its first round.

    A replica is one seed of one variant. They are ordered by variant, then by seed.

    Args:
        scene: The setting.
        variants: Methods, each with its local optimiser.
        memories: Where files of memories lie, but for their endings; None: nowhere that lasts.
        only: The replicas that are simulated here, where others are elsewhere; by default all.
    """
    return Simulation(*_setting(scene, variants, only), memories)


def simulate_elsewhere(
    scene: Scene, variants: Sequence[tuple[Algorithm, Solver]], journey: Journey
) -> Simulation:
    """What looks like the simulation that `simulate` gives, while workers run its rounds."""
    return Elsewhere(*_setting(at_worker(scene), variants), journey)


def _setting(
    scene: Scene, variants: Sequence[tuple[Algorithm, Solver]], only: Sequence[int] | None = None
) -> tuple[World, Algorithm]:
    """The world of all replicas (or of some), and the method with holes where variants differ."""
    task = task_of(scene, scene.device)
    given, variants = variants, fitted(scene.dataset, task, variants)
    replicas = _replicas(scene, len(variants))
    if (
        only is not None
    ):  # numbers stay those of all variants: one alone would be no hole, and round otherwise
        replicas = tuple(replicas[number] for number in only)
    method, method_numbers = sweeping.merge_variants([a for a, _ in variants], scene.dtype, scene.device)
    solver, solver_numbers = sweeping.merge_variants([s for _, s in variants], scene.dtype, scene.device)
    refuse(scene, task, variants)
    if method.reshapes() and len(replicas) > 1:
        raise UserError(f"{method.label}: its states change their shapes: simulate one replica at a time")
    pool = _pool(scene)
    initial = {seed: initial_models(scene, task, seed) for seed in dict.fromkeys(r.seed for r in replicas)}
    world = World(
        task=task,
        pool=pool,
        executor=spread(scene, given, choose_executor(scene, task, pool, len(variants))),
        replicas=replicas,
        solver=solver,
        numbers=numbers_state(method_numbers, solver_numbers, [r.variant for r in replicas], scene.device),
        work=scene.work,
        participation=scene.participation,
        failure_rate=scene.failure_rate,
        initial=initial,
        test=np.arange(len(scene.dataset.targets), len(pool.targets), dtype=np.int64),
        network=scene.network,
        memory=scene.memory or usual_memory(scene.device),
        resident=scene.resident,
        coordinates=scene.coordinates,
        curvature=scene.curvature,
        whole=tuple(one for one in scene.metrics if isinstance(one, Whole)),
        redraw=functools.lru_cache(maxsize=128)(lambda seed, drawing: adjacency_of(scene, seed, drawing)),
    )
    return world, method


def memory_bytes(scene: Scene, variants: Sequence[tuple[Algorithm, Solver]]) -> int:
    """How many bytes all clients of all replicas may come to remember, of their own and of each other."""
    task = task_of(scene, torch.device("cpu"))
    ((algorithm, _), *_) = fitted(scene.dataset, task, variants[:1])
    with torch.random.fork_rng(devices=[]):
        model = task.weights_of(module_of(scene))
    lasting = tree.without(algorithm.init_memory(model), algorithm.fleeting())
    own, link = tree.nbytes(lasting), tree.nbytes(algorithm.init_link(model))
    rows = len(variants) * len(scene.seeds) * scene.population
    return rows * (own + scene.population * link)


def fitted(
    dataset: Dataset, task: Task, variants: Sequence[tuple[Algorithm, Solver]]
) -> list[tuple[Algorithm, Solver]]:
    """The variants, with methods that know what the data and the model look like."""
    form = task.weights_of(task.skeleton)
    return [
        (algorithm.for_data(dataset.shape, dataset.outputs).for_model(form, task.l2), solver)
        for algorithm, solver in variants
    ]


def spread(scene: Scene, variants: Sequence[tuple[Algorithm, Solver]], here: Executor) -> Executor:
    """The executor that lets workers of a cluster do clients' work, where a scene asks for it."""
    if not scene.executor.startswith("ray"):
        return here
    from consilience.engine.spread.on_ray import RayWorkers, staff_of

    staff = staff_of(scene.cluster, scene.workers, gpu=scene.device.type == "cuda")
    make = functools.partial(simulate, at_worker(scene), variants)
    return Spread(here, RayWorkers(make, scene.precision, staff))


def task_of(scene: Scene, device: torch.device) -> Task:
    """The model of a scene as a pure function, with what is to be learned."""
    # Weights that are trained are thrown away here, and those that are not belong to no seed.
    with torch_seed(0, Purpose.FROZEN_WEIGHTS):
        module = module_of(scene)
    return Task(
        module,
        scene.dtype,
        low=scene.precision == "bf16",
        problem=scene.task_problem,
        l2=scene.l2,
        metrics=[one for one in scene.metrics if isinstance(one, Score)],
        padding=scene.dataset.padding,
        augment=scene.augment,
        device=device,
    )


def model_digest(scene: Scene, *, weights: bool) -> str:
    """A digest of the model's architecture and of what is not trained; of all weights where these are given.

    Args:
        scene: The setting.
        weights: Whether models come with weights, and are not drawn.
    """
    task = task_of(scene, torch.device("cpu"))
    started = tree.flatten(task.weights_of(module_of(scene))) if weights else {}
    fixed = tree.flatten({"frozen": task.frozen, "constants": task.constants})
    return digest_of({**fixed, **started}, task.form)


def initial_models(scene: Scene, task: Task, seed: int) -> State:
    """The initial models of a seed, stacked: one for all clients, or one each."""
    models = []
    for client in range(scene.population if scene.init == "different" else 1):
        with torch_seed(seed, Purpose.INITIAL_WEIGHTS, client):
            models.append(task.weights_of(module_of(scene)))
    return tree.map_leaves(lambda value: value.to(scene.device), tree.stack(models))


def _replicas(scene: Scene, variants: int) -> tuple[Replica, ...]:
    graphs = {seed: adjacency_of(scene, seed) for seed in scene.seeds}
    return tuple(
        Replica(seed, variant, part.shards, part.holdouts, graphs[seed], part.names)
        for variant in range(variants)
        for seed, part in scene.partitions.items()
    )


def adjacency_of(scene: Scene, seed: int, *drawing: int) -> Adjacency | None:
    """The graph of a seed, or what it is after some number of drawings; None for a star."""
    return scene.topology.adjacency(scene.population, generator(seed, Purpose.TOPOLOGY, *drawing))


def _pool(scene: Scene) -> Pool:
    data = scene.dataset
    shift, scale = normalisation(data, scene.normalize)
    parts = (data.inputs, data.test_inputs)
    return Pool(
        Joined(parts) if scene.streamed else torch.cat([whole(part) for part in parts]).to(scene.device),
        torch.cat([data.targets, data.test_targets]).to(scene.device),
        shift.to(scene.device, scene.dtype),
        scale.to(scene.device, scene.dtype),
        scene.dtype,
    )


def _fewest_messages(scene: Scene) -> int:
    """The fewest messages that a hub hears in a round: of its cohort, or of its closed neighbourhood."""
    graphs = [replica.adjacency for replica in _replicas(scene, 1)]
    clients = min(sum(len(shard) > 0 for shard in part.shards) for part in scene.partitions.values())
    return min(
        min(scene.participation, clients) if adjacency is None else int(adjacency.sum(1).min()) + 1
        for adjacency in graphs
    )


def refuse(scene: Scene, task: Task, variants: Sequence[tuple[Algorithm, Solver]]) -> None:
    """Raise a UserError that says why a method cannot work here, before anything is computed."""
    graph = _replicas(scene, 1)[0].adjacency is not None
    if not graph and scene.network != Network():
        raise UserError(
            "network is about a graph of peers: set topology; a star has participation and failure_rate"
        )
    if graph and scene.network.redraw_every and _always_the_same(scene):
        raise UserError(
            f"network: redraw_every is for random graphs; a {scene.topology.name} is always the same"
        )
    if not graph and scene.coordinates:
        raise UserError("evaluate.coordinates is about the nodes of a graph: set topology")
    for algorithm, solver in variants:
        conditions = Conditions(
            graph=graph,
            solver=solver.inner if isinstance(solver, Scheduled) else solver,
            stepwise=isinstance(solver, Scheduled) and solver.schedule.per == "step",
            epochs=scene.work.epochs,
            holdout=any(len(rows) > 0 for part in scene.partitions.values() for rows in part.holdouts),
            unreliable=scene.failure_rate > 0
            or scene.participation < scene.population
            or not scene.network.reliable,
            messages=_fewest_messages(scene),
            features=task.has_features,
            clip=scene.work.clip is not None,
            stragglers=scene.work.stragglers > 0,
            redrawn=scene.network.redraw_every is not None,
            problem=task.problem,
            unmatchable=chain.obstacle(task.skeleton),
        )
        reason = algorithm.refuse(conditions)
        if not graph and any(phase.replies for phase in algorithm.phases()):
            reason = reason or "its clients answer neighbours, which takes a graph of peers: set topology"
        if _misplaces_replies(algorithm):
            reason = reason or "replies must follow an exchange of a round in which nodes hear each other"
        if graph and any(phase.ordinary for phase in algorithm.phases()):
            reason = reason or "it combines models by code that looks at numbers, which takes a server"
        if scene.network.asynchronous and (len(algorithm.phases()) > 1 or algorithm.setup()):
            reason = reason or "it has several exchanges a round, so its nodes must wake together"
        if reason:
            raise UserError(f"{algorithm.label}: {reason}")


def _always_the_same(scene: Scene) -> bool:
    """Whether drawing a graph anew changes nothing."""
    drawn = (adjacency_of(scene, scene.seeds[0], drawing) for drawing in range(6))
    return len({None if graph is None else graph.tobytes() for graph in drawn}) == 1


def _misplaces_replies(algorithm: Algorithm) -> bool:
    """Whether there is nothing that some exchange of replies could answer."""
    replies = [phase.replies for phase in algorithm.phases()]
    answered = itertools.pairwise([True, *replies])  # nor is there anything before the first
    return any(before and one for before, one in answered) or any(one.replies for one in algorithm.setup())
