"""What nodes over Zenoh can keep of the terms of a federation, and what not."""

from __future__ import annotations

from consilience.deploy.terms import Terms
from consilience.errors import UserError


def check(terms: Terms, number: int, *, waits: bool) -> None:
    """Refuse terms that nodes over Zenoh cannot keep.

    Args:
        terms: What was agreed on.
        number: Which node it is.
        waits: Whether nodes wait for each other.
    """
    if terms.adjacency is None:
        raise UserError(
            "nodes need a graph: set topology (a federation with a server: consilience deploy flower)"
        )
    if not 0 <= number < terms.population:
        raise UserError(f"there is no node {number}: there are 0 to {terms.population - 1}")
    name = terms.algorithm.name
    complete = bool(terms.adjacency.sum() == terms.population * (terms.population - 1))
    rounds = {terms.algorithm.at(one) for one in range(terms.rounds)}
    phases = [*terms.algorithm.setup(), *(phase for one in rounds for phase in one.phases())]
    if not complete and any(phase.flooded for phase in phases):
        raise UserError(
            f"{name} passes messages on, and a certificate proves the last hop alone: without "
            "signatures of those who wrote them it runs on a complete graph only"
        )
    simple = len(rounds) == len(phases) == 1 and not (phases[0].kept or phases[0].rebuilt)
    if not waits and not simple:
        raise UserError(
            f"{name} needs nodes that wait for each other: its messages belong to others of their round, or "
            "look different from round to round; leave out deploy.staleness"
        )
