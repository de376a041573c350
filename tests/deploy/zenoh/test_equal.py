"""Nodes in processes of their own, over TLS, end with what a simulation ends with."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from consilience import tree
from consilience.config import load_config
from consilience.deploy import kept
from consilience.deploy.agreeing import agree
from consilience.engine.build import simulate

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


def test_every_method_ends_with_the_weights_and_bytes_of_its_simulation(ring: Callable[..., Any]) -> None:
    rings = [
        ring(name, {"method: fedavg": f"method: {method}", **changes})
        for name, (method, changes) in FEDERATIONS.items()
    ]
    first, *others = rings
    nodes = range(len(first.ports))
    first.start_all(*others)
    for one in rings:
        agreement = agree(load_config(one.file, []))
        simulation = simulate(agreement.scene, agreement.arm.variants)
        counted = sum(
            sum(record.bytes_up.values()) + sum(record.bytes_down.values())
            for _ in range(agreement.terms.rounds)
            for record in simulation.step(evaluate=False)
        )
        one.expected = agreement.terms.run, tree.index(simulation.hub, 0), counted
    assert [first.ended(node) for node in nodes] == [0] * len(nodes)
    for one in rings:
        run, hubs, counted = one.expected
        for node in nodes:
            found = kept.load(one.out(node) / "peer.safetensors", run)
            assert found is not None
            gap = _gap(tree.index(hubs, node), found[0]["hub"])
            assert gap < 1e-12, (one.folder.name, node)
            assert one.status(node)["done"]
            assert not one.refusals(node), one.folder.name
        carried = [one.status(node)["bytes_up"] + one.status(node)["bytes_down"] for node in nodes]
        assert sum(carried) == counted, one.folder.name


def _gap(expected: Any, found: Any) -> float:
    left, right = tree.flatten(expected), tree.flatten(found)
    assert left.keys() == right.keys()
    return max(float((left[name] - right[name]).abs().max()) for name in left if left[name].numel())
