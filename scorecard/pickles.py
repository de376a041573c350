"""Pickles where no pickle belongs: none is executed, and no code could."""

from __future__ import annotations

import ast
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

import consilience
from consilience import wire
from consilience.algorithms import METHODS
from consilience.api import load_model
from consilience.config import Config
from consilience.config.config import read_config
from consilience.data.dataset import Dataset
from consilience.deploy.site import Order
from consilience.deploy.terms import RefusedError
from consilience.errors import UserError
from consilience.experiment import execution, plan
from consilience.experiment.folder import RunFolder
from scorecard.federations import federation_of
from scorecard.finding import Finding, Tally
from scorecard.spots import at_peer


class Malice:
    """What a pickle could do: make a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = str(folder)

    def __reduce__(self) -> tuple[Callable[..., object], tuple[str]]:
        return os.mkdir, (self.folder,)


def pickles(trials: int, folder: Path) -> Finding:
    """Check 22: a pickle that does something, wherever files and messages are read; a look at the code."""
    tally, canary = Tally(), folder / "executed"
    raw, saved = pickle.dumps(Malice(canary), protocol=2), folder / "malice.pt"
    torch.save({"w": Malice(canary)}, saved)
    places = _places(folder)
    for name, swallow in places.items():
        for kind, data in {"pickle": raw, "torch.save": saved.read_bytes()}.items():
            try:
                swallow(data)
                fault: str | None = "it was taken"
            except (UserError, RefusedError, wire.WireError):
                fault = None
            except Exception as error:
                fault = f"{type(error).__name__}: {error}"
            if canary.exists():
                canary.rmdir()
                fault = "it was executed"
            tally.note(f"{kind} as {name}", fault)
    tally.figures["places"] = len(places)
    found = dangerous(Path(consilience.__file__).parent)
    tally.note("the package's code", *found)
    return tally.finding()


def _places(folder: Path) -> dict[str, Callable[[bytes], object]]:
    """Where a stranger's bytes are read."""
    config = read_config(
        {
            "model": {"name": "mlp", "hidden": [4]},
            "clients": 2,
            "rounds": 1,
            "local": {"steps": 1},
            "checkpoint": {"every": 1},
        }
    )
    run = folder / "run"
    execution.run(config, folder=RunFolder(run))
    place = federation_of(METHODS["scaffold"]())
    graph = at_peer()

    def instead(path: Path, read: Callable[[Path], object]) -> Callable[[bytes], object]:
        def attempt(data: bytes) -> object:
            before = path.read_bytes() if path.exists() else None
            path.write_bytes(data)
            try:
                return read(path)
            finally:
                if before is None:
                    path.unlink()
                else:
                    path.write_bytes(before)

        return attempt

    def resume(path: Path) -> object:
        return execution.run(config, folder=RunFolder(run), existing="resume")

    weights = next((run / "weights").rglob("*.safetensors"))
    state = next((run / "states").glob("*.safetensors"))
    objects = folder / "own.npz"
    return {
        "checkpoint": instead(run / "checkpoint.safetensors", resume),
        "state of a method": instead(state, lambda path: RunFolder(run).load_state("star fedavg", 1)),
        "plain model": instead(weights, lambda path: load_model(run)),
        "init, .pt": instead(folder / "init.pt", lambda path: plan(_starting(config, path))),
        "init, .safetensors": instead(
            folder / "init.safetensors", lambda path: plan(_starting(config, path))
        ),
        "file of a hub": instead(folder / "hub.safetensors", lambda path: place.hub(file=path)),
        "file of a site": instead(folder / "site.safetensors", lambda path: place.site(0, file=path)),
        "message to a site": lambda data: place.site(0).answer(Order(data)),
        "message to a peer": lambda data: _refusing(graph.hear(data)[0]),
        "message": wire.decode,
        "arrays of one's own, .npy": instead(
            folder / "x.npy", lambda path: Dataset.from_arrays("own", path, *OWN)
        ),
        "clients of one's own, .npz": instead(objects, lambda path: Dataset.from_folder(_alone(path))),
    }


def _starting(config: Config, path: Path) -> Config:
    return read_config({**config.written(), "init": str(path)})


def _refusing(reason: str | None) -> None:
    if reason is not None:
        raise RefusedError(reason)


def _alone(path: Path) -> Path:
    """A folder in which a file is alone."""
    folder = path.with_suffix("")
    folder.mkdir(exist_ok=True)
    shutil.copy(path, folder / path.name)
    return folder


OWN = np.zeros(3, int), np.zeros((3, 2)), np.zeros(3, int)
"""What there is of a data set beside its inputs."""
GENERATED = {"kernels/descent.py", "kernels/triton_dense.py"}
"""Files that execute text, which they have written themselves from recorded arithmetic."""
UNSAFE = {"eval", "exec", "compile", "__import__"}
UNSAFE_CALLS = {("yaml", "load"), ("yaml", "load_all"), ("yaml", "unsafe_load"), ("yaml", "full_load")}
MODULES = {"pickle", "_pickle", "dill", "cloudpickle", "shelve", "marshal", "joblib", "jsonpickle"}
"""Modules that unpickle, or do what is as bad."""
HARMLESS = {"UnpicklingError"}
"""What may be used of them: torch raises it for files that it refuses."""
LOADERS = {"torch": ("load", "weights_only", True), "np": ("load", "allow_pickle", False)}
"""Functions that are safe with an option alone."""


def dangerous(package: Path) -> list[str]:
    """Every place in a package's code that could execute what was read."""
    found = []
    for path in sorted(package.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            name, reason = str(path.relative_to(package)), _danger(node)
            if reason and not (name in GENERATED and reason in {"exec()", "compile()"}):
                found.append(f"{name}:{getattr(node, 'lineno', 0)}: {reason}")
    return found


def _danger(node: ast.AST) -> str | None:
    if isinstance(node, ast.Import | ast.ImportFrom):
        return _dangerous_import(node)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        used = node.value.id, node.attr
        unsafe = used[0] in MODULES and used[1] not in HARMLESS
        return ".".join(used) if unsafe or used in UNSAFE_CALLS else None
    return _dangerous_call(node) if isinstance(node, ast.Call) else None


def _dangerous_import(node: ast.Import | ast.ImportFrom) -> str | None:
    """An import that unpickles, or that hides by another name what could."""
    watched = MODULES | {"builtins", "yaml", "torch", "numpy"}
    if isinstance(node, ast.Import):
        hidden = [one.name for one in node.names if one.name in watched and one.asname not in {None, "np"}]
        return f"imports {hidden[0]} by another name" if hidden else None
    module, names = node.module or "", {one.name for one in node.names}
    if module in MODULES and names - HARMLESS:
        return f"imports from {module}"
    unsafe = UNSAFE | {name for place, name in UNSAFE_CALLS if place == module}
    unsafe |= {"load"} if module in {"torch", "numpy"} else set()
    return f"imports {module}.{min(names & unsafe)}" if module in watched and names & unsafe else None


def _dangerous_call(node: ast.Call) -> str | None:
    """A call of what executes text, here or where it is handed on, or of a loader without its option."""
    name = node.func
    handed_on = [one.id for one in (name, *node.args) if isinstance(one, ast.Name) and one.id in UNSAFE]
    if handed_on:
        return f"{handed_on[0]}()"
    if not (
        isinstance(name, ast.Attribute) and isinstance(name.value, ast.Name) and name.value.id in LOADERS
    ):
        return None
    function, option, safe = LOADERS[name.value.id]
    options = {one.arg: one.value.value for one in node.keywords if isinstance(one.value, ast.Constant)}
    if name.attr == function and options.get(option) is not safe:
        return f"{name.value.id}.{function} without {option}={safe}"
    return None
