"""What a configuration means where the data are a user's own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from consilience.config.sections import DataSection, named
from consilience.data.dataset import Dataset
from consilience.data.partitioners import ByClient
from consilience.errors import UserError

BY_CLIENT = ByClient.name


def with_clients(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """The values of a configuration, in which data that come from clients say who they are.

    Such data imply how they are split, and how many clients there are. Fewer clients are some of them.
    """
    data = values.get("data")
    own = data.own if isinstance(data, DataSection) else (data or {}).get("own")
    if not isinstance(own, Dataset) or not own.clients:
        return values
    given = values.get("partition")
    partition = ByClient() if given is None else named(given)
    kind = partition.get("name") if isinstance(partition, dict) else getattr(partition, "name", None)
    if kind != BY_CLIENT:
        raise UserError(
            f"partition: {own.name} comes from {len(own.clients)} clients ({_some(own.clients)}), each with "
            f"its own rows; leave partition out, or make it {BY_CLIENT} (to set a holdout), not {kind}"
        )
    topology = values.get("topology")
    nodes = topology.get("nodes") if isinstance(topology, dict) else getattr(topology, "nodes", None)
    clients = values.get("clients") or nodes or len(own.clients)
    if isinstance(clients, int) and clients > len(own.clients):
        raise UserError(f"clients: {own.name} comes from {len(own.clients)} clients, not from {clients}")
    return {**values, "partition": partition, "clients": clients}


def _some(names: tuple[str, ...]) -> str:
    """The first names, for a line."""
    return ", ".join(names[:3]) + (", ..." if len(names) > 3 else "")
