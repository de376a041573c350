"""Where a key belongs that a person has put elsewhere, or calls as another library does."""

from __future__ import annotations

_PLACES = {
    "solver": ("optimizer", "optimiser"),
    "solver.lr": ("lr", "learning_rate", "learningrate", "eta", "local_lr", "local_learning_rate"),
    "solver.momentum": ("momentum",),
    "solver.weight_decay": ("weight_decay",),
    "local.batch_size": ("batch_size", "batchsize", "local_batch_size", "train_batch_size"),
    "local.epochs": ("epochs", "local_epochs", "num_epochs"),
    "local.steps": ("steps", "local_steps"),
    "local.clip": ("clip", "clip_norm", "max_grad_norm"),
    "local.lr_decay": ("lr_decay", "learning_rate_decay"),
    "local.stragglers": ("stragglers",),
    "partition.alpha": ("alpha", "dirichlet_alpha"),
    "partition.holdout": ("holdout",),
    "model.hidden": ("hidden",),
    "data": ("dataset",),
    "data.normalize": ("normalize", "normalise", "normalization"),
    "topology": ("graph",),
    "topology.nodes": ("nodes",),
    "method": ("algorithm", "strategy"),
    "clients": ("num_clients", "n_clients"),
    "rounds": ("num_rounds", "global_rounds"),
    "participation": ("fraction_fit", "join_ratio", "cohort_size", "clients_per_round"),
    "seeds": ("seed", "random_seed"),
}
"""Keys, each with the names under which it is looked for."""

PLACES = {name: place for place, names in _PLACES.items() for name in names}
"""The key that a person means by a name."""


def place_of(name: str, section: str = "", here: tuple[str, ...] = ()) -> str | None:
    """The key that a name stands for; None where nothing better than its spelling is known.

    Args:
        name: The name that was not found.
        section: The section or part in which it stood, e.g. "solver"; nothing at the top.
        here: The names that are known there.
    """
    place = PLACES.get(name)
    if place is None or not section:
        return place
    owner, _, last = place.partition(".")
    if owner != section:
        return place
    return last if last in here else None
