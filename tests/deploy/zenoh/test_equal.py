"""Nodes in processes of their own, over TLS, end with what a simulation ends with."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest

from consilience import tree
from consilience.algorithms import METHODS
from consilience.config import load_config
from consilience.deploy import kept
from consilience.deploy.agreeing import agree
from consilience.deploy.zenoh.conditions import check
from consilience.engine.build import simulate
from consilience.errors import UserError

EMPTY = {"{name: iid}": "{name: sizes, fractions: [0.5, 0.4, 0.00001, 0.00001], allow_empty: true}"}
"""Nodes 2 and 3, which are neighbours, have no data; nor does 0 know that of 2, or 1 of 3."""
COMPLETE = {"name: ring": "name: complete"}
DESA = "{name: desa, ipc: 1, iterations: 2, width: 4, depth: 2}"
FEDERATIONS: dict[str, tuple[str, dict[str, str]]] = {
    "dechetero": ("fedavg", {}),
    "dechw": ("dechw", {}),
    "dechw-star": ("{name: 'dechw*', until: 1}", {}),
    "cfa": ("cfa", {}),
    "cfa-ge": ("cfa-ge", {}),
    "decdiff": ("decdiff", {}),
    "dpsgd": ("dpsgd", {}),
    "tracking": ("gradient-tracking", {}),
    "desa": (DESA, COMPLETE),
    "dpsgd, some without data": ("dpsgd", EMPTY),
    "tracking, some without data": ("gradient-tracking", EMPTY),
    "cfa-ge, some without data": ("cfa-ge", EMPTY),
}


# Every other method of the registry that a graph can run; the others are refused before anything starts.
OTHERS = [
    "decdiff-vt",
    "fedavgm",
    "fedadagrad",
    "fedadam",
    "fedyogi",
    "fedprox",
    "fisher_merge",
    "hwa",
    "kfac_weighted",
    "local",
    "moon",
    "pfedme",
    "swa",
]
AMONG_PEERS = {
    *OTHERS,
    "fedavg",
    "dechw",
    "dechw*",
    "cfa",
    "cfa-ge",
    "decdiff",
    "dpsgd",
    "gradient-tracking",
    "desa",
}


@pytest.mark.parametrize("name", METHODS)
def test_a_method_runs_among_peers_or_is_refused_in_one_line(name: str, ring: Callable[..., Any]) -> None:
    file = ring(changes={"method: fedavg": f"method: {name!r}", **COMPLETE}).file

    def checked() -> None:
        check(agree(load_config(file, [])).terms, 0, waits=True)

    if name in AMONG_PEERS:  # all of which are carried over Zenoh below
        checked()
        return
    with pytest.raises(UserError, match=f"^{name}: [^\n]*$"):
        checked()


def test_the_methods_end_with_the_weights_and_bytes_of_their_simulations(ring: Callable[..., Any]) -> None:
    _end_alike(
        [
            ring(name, {"method: fedavg": f"method: {method}", **changes})
            for name, (method, changes) in FEDERATIONS.items()
        ]
    )


@pytest.mark.skipif("CONSILIENCE_LONG" not in os.environ, reason="set CONSILIENCE_LONG=1")
def test_so_do_all_others(ring: Callable[..., Any]) -> None:
    _end_alike([ring(name, {"method: fedavg": f"method: {name}", **COMPLETE}) for name in OTHERS])


def _end_alike(rings: list[Any]) -> None:
    """Assert that nodes end with what simulations end with; a node's federations run one after the other."""
    first, *others = rings
    nodes = range(first.nodes)
    first.start_all(*others)
    for one in rings:
        agreement = agree(load_config(one.file, []))
        simulation = simulate(agreement.scene, agreement.arm.variants)
        counted = sum(
            sum(record.bytes_up.values()) + sum(record.bytes_down.values())
            for _ in range(agreement.terms.rounds)
            for record in simulation.step(evaluate=False)
        )
        memories = simulation.store.load(list(nodes))
        one.expected = agreement.terms.run, tree.index(simulation.hub, 0), memories, counted
    assert [first.ended(node) for node in nodes] == [0] * len(nodes)
    for one in rings:
        run, hubs, memories, counted = one.expected
        for node in nodes:
            found = kept.load(one.out(node) / "peer.safetensors", run)
            assert found is not None
            for expected, part in ((hubs, "hub"), (memories, "memory")):
                gap = _gap(tree.index(expected, node), found[0][part])
                assert gap < 1e-12, (one.folder.name, node, part)
            assert one.status(node)["done"]
            assert not one.refusals(node), one.folder.name
        carried = [one.status(node)["bytes_up"] + one.status(node)["bytes_down"] for node in nodes]
        assert sum(carried) == counted, one.folder.name


def _gap(expected: Any, found: Any) -> float:
    left, right = tree.flatten(expected), tree.flatten(found)
    assert left.keys() == right.keys()
    gaps = [float((left[name] - right[name]).abs().max()) for name in left if left[name].numel()]
    return max(gaps, default=0.0)
