"""What a node keeps beside its peer's file: its secret, and what it has said last."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from pathlib import Path

import torch

from consilience.deploy import kept
from consilience.errors import UserError

PEER_FILE, SECRET_FILE = "peer.safetensors", "secret"


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
    found = kept.load(_said_file(folder, number), run)
    if found is None or int(found[1]["number"]) != number:
        return None
    parts, fields = found
    data = {place: bytes(state["bytes"]["all"].numpy()) for place, state in parts.items()}
    whose = [one.split(":") for one in fields["whose"].split(",") if one]
    return {int(node): data[place] for node, place in whose}


def secret_in(folder: Path) -> int:
    """The node's own secret, drawn once."""
    path = folder / SECRET_FILE
    try:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(str(secrets.randbits(62)))
            file.flush()
            os.fsync(file.fileno())
    except FileExistsError:
        pass
    try:
        return int(path.read_text())
    except ValueError:
        raise UserError(f"{path} is damaged; move it away, and {PEER_FILE} with it") from None
