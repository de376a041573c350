"""What can be said about every node of a graph in a round, beside its score."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from consilience.algorithm import Algorithm, Inbox
from consilience.engine.rounds.exchange import Report, at_nodes
from consilience.engine.rounds.listening import Heard
from consilience.engine.world import World
from consilience.learning.coordinate import Coordinate
from consilience.method import Method
from consilience.transfer import Late, to_device
from consilience.types import Params, State

IMPORTANCE = "importance"
"""The group of an upload that holds curvature."""


AlgorithmOf = Callable[[State], Algorithm]
"""The algorithm in force whose swept numbers are in a State."""


def node_metrics(
    world: World, algorithm: AlgorithmOf, params: Params, report: Report | None
) -> Callable[[], list[dict[str, list[float]]]]:
    """Lists over nodes, by replica, from the nodes' parameters [replicas, nodes, ...], once asked for.

    consensus: the distance of a node's model from the mean of all.
    curvature: the norm of the curvature that a node sent; NaN for one that sent none.
    contributors: how many messages a merged parameter of the node is made of, the mean over parameters of
        `(sum of weights)^2 / sum of squared weights`, with the weights that the method's rule really gives;
        1 for a node that heard itself alone, n for one that weighs n messages alike. It is there where the
        rule knows its weights: averages by data, uniform and Metropolis, consensus, and curvature normalised
        and without a guard; not for medians, Krum and the like, nor where a transform takes part.
    curvature COORDINATE: what a node sent of a single parameter.
    share COORDINATE: that as a share of all curvature that the node heard of the parameter: the weight of its
        own value where the method weighs by curvature alone, its own included (DecHW as printed).
    """
    columns = {"consensus": consensus(params)}
    if report is not None and report.heard is not None:
        columns |= contributors(world, algorithm, report.heard)
        if IMPORTANCE in report.uploads:
            columns["curvature"] = _curvature(world, report)
            for one in world.coordinates:
                columns |= {f"{kind} {one}": found for kind, found in followed(report.heard, one).items()}
    late = Late([values.double() for values in columns.values()])
    replicas = range(len(world.replicas))

    def lists() -> list[dict[str, list[float]]]:
        found = dict(zip(columns, (values.tolist() for values in late.get()), strict=True))
        return [{name: rows[replica] for name, rows in found.items()} for replica in replicas]

    return lists


def consensus(params: Params) -> Tensor:
    """[replicas, nodes] distances from the mean model, of [replicas, nodes, ...] parameters."""
    squares = [
        (value.double() - value.double().mean(1, keepdim=True)).flatten(2).square().sum(-1)
        for value in params.values()
    ]
    return torch.stack(squares).sum(0).sqrt()


def contributors(world: World, algorithm: AlgorithmOf, heard: Heard) -> dict[str, Tensor]:
    """[replicas, nodes] the effective number of messages of a merged parameter; nothing where not known."""

    def count(swept: State, old: State, inbox: Inbox) -> State:
        method = algorithm(swept)
        found = method.parts().rule.contributors(inbox) if isinstance(method, Method) else None
        return {} if found is None else {"contributors": {"number": found}}

    return {name: found["number"] for name, found in at_nodes(world, count, {}, heard).items()}


def followed(heard: Heard, one: Coordinate) -> dict[str, Tensor]:
    """[replicas, nodes] curvature of one parameter and a node's share of it; by data where all have none.

    Nothing where the parameter carries no curvature.
    """
    importance = heard.messages[IMPORTANCE]
    if one.name not in importance:
        return {}
    sent = one.of(importance[one.name]).double()
    who, weights = (to_device(matrix, sent.device).double() for matrix in (heard.who, heard.weights))
    spoke = who.diagonal(dim1=1, dim2=2) > 0
    known = (who @ sent[..., None]).squeeze(-1)
    by_curvature = sent / torch.where(known > 0, known, 1.0)
    share = torch.where(known > 0, by_curvature, weights.diagonal(dim1=1, dim2=2))
    return {
        "curvature": torch.where(spoke, sent, torch.nan),
        "share": torch.where(spoke, share, torch.nan),
    }


def _curvature(world: World, report: Report) -> Tensor:
    norms = [v.double().flatten(1).square().sum(-1) for v in report.uploads[IMPORTANCE].values()]
    sent = torch.stack(norms).sum(0).sqrt()
    shape = (len(world.replicas), world.population)
    replicas, nodes = report.told.replicas, report.told.clients
    places = to_device(replicas * world.population + nodes, sent.device)
    return sent.new_full((shape[0] * shape[1],), torch.nan).index_copy(0, places, sent).reshape(shape)
