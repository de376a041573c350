"""Who is measured: each contestant's script, packages and environment, and its own Python to run it."""

from __future__ import annotations

import hashlib
import json
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

TORCH = "torch==2.13.0"


@dataclass(frozen=True)
class Contestant:
    """A script, the packages it needs, and the environment in which it is fastest."""

    script: str
    packages: tuple[str, ...] = ()
    """What is installed after torch; empty: this interpreter's own environment is used."""
    bare: tuple[str, ...] = ()
    """What is installed without its dependencies."""
    arguments: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    graphs: bool = False
    """Whether it can run without a server."""
    peer: bool = True
    """Whether it is a library that we are compared with."""
    default: bool = True
    """Whether it runs without being asked for."""


PFL = ("numpy", "pfl[pytorch]==0.6.0")
FLOWER = ("numpy", "flwr[simulation]>=1.41")
FEDLAB = ("numpy", "pandas", "scikit-learn", "tqdm", "munch", "pynvml", "pillow")

CONTESTANTS = {
    "ours": Contestant("ours.py", environment={"OMP_WAIT_POLICY": "PASSIVE"}, graphs=True, peer=False),
    "loop": Contestant("loop.py", graphs=True, peer=False),
    "loop-threads": Contestant("loop.py", arguments=("--threads",), graphs=True, peer=False, default=False),
    "pfl": Contestant("peer_pfl.py", PFL, environment={"PFL_PYTORCH_DEVICE": "cpu"}),
    "flower": Contestant(
        "peer_flower.py", FLOWER, environment={"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    ),
    "fedlab": Contestant("peer_fedlab.py", FEDLAB, bare=("fedlab==1.3.0",)),
    "fedlab-memory": Contestant(
        "peer_fedlab.py", FEDLAB, bare=("fedlab==1.3.0",), arguments=("--in-memory",)
    ),
}


class InstallError(Exception):
    """A peer could not be installed."""


def interpreter(contestant: Contestant, root: Path) -> Path:
    """The Python of a contestant's virtual environment, which is made if it is missing or outdated."""
    if not contestant.packages:
        return Path(sys.executable)
    recipe = json.dumps([platform.python_version(), TORCH, contestant.packages, contestant.bare])
    folder = root / hashlib.sha256(recipe.encode()).hexdigest()[:12]
    python, ready = folder / "bin" / "python", folder / "ready"
    if ready.exists():
        return python
    print(f"installing {' '.join((*contestant.packages, *contestant.bare))}", flush=True)
    root.mkdir(parents=True, exist_ok=True)
    (root / ".gitignore").write_text("*\n")
    _call([sys.executable, "-m", "venv", "--clear", folder])
    constraint = folder / "constraints.txt"
    constraint.write_text(f"{TORCH}\n")
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    _call([*install, TORCH])
    # The constraint keeps peers from replacing this torch by one of several GB with CUDA.
    _call([*install, "--constraint", constraint, *contestant.packages])
    if contestant.bare:
        _call([*install, "--no-deps", *contestant.bare])
    ready.write_text(recipe + "\n")
    return python


def _call(command: Sequence[str | Path]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise InstallError(reason(done.stderr))


def reason(log: str) -> str:
    """The lines of a log that name an error, or its last ones."""
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"(\[rank\d+\]: )?([\w.]*(Error|Exception)\b|ERROR)", line)]
    return " / ".join(dict.fromkeys(errors[-3:] or lines[-3:])) or "nothing was printed"
