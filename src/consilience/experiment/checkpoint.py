"""Where a run stands, as the bytes of a file."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from torch import Tensor

from consilience import wire

NUMBERS, TEXTS = ("arm", "metrics", "clients", "rounds", "base"), ("config", "model", "name")


@dataclass(frozen=True)
class Checkpoint:
    """Where a run stands."""

    arm: int
    """The method (of a setting) that runs; those before it are complete."""
    metrics: int
    """Lines of the metrics that belong to it."""
    clients: int
    """Lines of the clients' results that belong to it."""
    state: dict[str, Tensor]
    config: str = ""
    """A digest of the configuration, but for the number of rounds."""
    model: str = ""
    """A digest of the architecture and of the parameters that are not trained, which it does not hold."""
    rounds: int = 0
    """How many rounds the run is to have."""
    base: int = 0
    """How many it had before it was given more: arms that have no state here begin with theirs of then."""
    name: str = ""
    """What the method is called whose state this is: its memories lie in files of that name."""
    files: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Digests of the files that it counts on, of files of lines of the lines that belong to it.

    Where a file is about to be replaced there are two, and either will do.
    """

    def encoded(self) -> bytes:
        """The bytes of its file, with a digest of all of it."""
        fields = {name: str(getattr(self, name)) for name in (*NUMBERS, *TEXTS)}
        return wire.encode_tensors(self.state, {**fields, "files": json.dumps(self.files)})

    @classmethod
    def decoded(cls, data: bytes) -> Checkpoint:
        """The checkpoint in some bytes; an error (WireError, KeyError, ValueError) where there is none."""
        state, fields = wire.decode_tensors(data)
        arm, metrics, clients, rounds, base = (int(fields[name]) for name in NUMBERS)
        config, model, label = (fields[name] for name in TEXTS)
        files = json.loads(fields["files"])
        return cls(arm, metrics, clients, state, config, model, rounds, base, label, files)
