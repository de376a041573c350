"""What a node keeps beside its peer's file: what it has said last."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch

from consilience.deploy import kept

PEER_FILE = "peer.safetensors"


def _said_file(folder: Path, number: int) -> Path:
    """The file for the messages of an exchange: two take turns, since neighbours may be one behind."""
    return folder / f"said-{number % 2}.safetensors"


def save_said(folder: Path, run: str, number: int, said: Mapping[int, bytes]) -> None:
    """Keep the messages of an exchange, by receiver; equal ones once."""
    distinct = list(dict.fromkeys(said.values()))
    parts = {
        str(place): {"bytes": {"all": torch.frombuffer(bytearray(data), dtype=torch.uint8)}}
        for place, data in enumerate(distinct)
    }
    whose = ",".join(f"{node}:{distinct.index(data)}" for node, data in said.items())
    kept.save(_said_file(folder, number), run, parts, {"number": str(number), "whose": whose})


def load_said(folder: Path, run: str, number: int) -> dict[int, bytes] | None:
    """The messages of an exchange that were kept, by receiver; None where they were not."""
    path = _said_file(folder, number)
    found = kept.load(path, run)
    if found is None:
        return None
    parts, fields = found
    with kept.understood(path):
        if int(fields["number"]) != number:
            return None
        data = {place: bytes(state["bytes"]["all"].numpy()) for place, state in parts.items()}
        whose = [one.split(":") for one in fields["whose"].split(",") if one]
        return {int(node): data[place] for node, place in whose}
