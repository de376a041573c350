"""The plain models of a run: a file each, whose keys `load_state_dict` of the plain module takes.

`weights/SETTING/METHOD/seed-0/model.safetensors` is what a server ends with, `client-3.safetensors` beside it
a client's own model, where a method has such, or a node's. Every file says in its header what else it takes
to use it: the architecture, the shape of inputs and their normalisation. So a file serves without its run.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import safetensors
import safetensors.torch
import torch
from pydantic import TypeAdapter
from torch import Tensor, nn
from torch.nn.parameter import UninitializedBuffer, UninitializedParameter

from consilience import heads
from consilience.config.fields import read_model
from consilience.data.normalising import normalisation
from consilience.data.storage import folder_of
from consilience.data.stored import whole
from consilience.engine.modules import module_of, takes_tokens
from consilience.engine.scene import Scene
from consilience.errors import DamageError, UserError, described, unknown
from consilience.experiment.folder import WEIGHTS, atomic_write
from consilience.experiment.planning import Arm
from consilience.experiment.result import Result
from consilience.experiment.sealing import SEAL
from consilience.learning.layers import copied
from consilience.learning.masking import Masking
from consilience.learning.task import Task
from consilience.plugins import is_reference
from consilience.types import State

HEADER = "consilience"
"""The key in a file's header under which it says what it is."""


@dataclass(frozen=True)
class Origin:
    """Where a model comes from, and what it takes to use it."""

    setting: str
    method: str
    seed: int
    client: int | None
    """The client whose own model it is; None for a server's."""
    rounds: int
    model: dict[str, Any]
    """The architecture, as a configuration says it."""
    shape: tuple[int, ...]
    """The shape of one input."""
    outputs: int
    inputs: str
    """The type of raw inputs: uint8, int64 (tokens) or a float."""
    tokens: int
    """How many tokens there are; 0 where inputs are numbers."""
    dtype: str
    shift: list[Any]
    scale: list[Any]
    """`(raw - shift) / scale` is what the network takes."""
    name: str = ""
    """What the client is called, where clients have names."""
    padding: int | None = None
    """The token that fills up sequences; None where none does."""

    @classmethod
    def read(cls, text: str) -> Origin:
        """What a file's header says."""
        origin = TypeAdapter(cls).validate_json(text)
        if not all(
            isinstance(getattr(torch, one, None), torch.dtype) for one in (origin.dtype, origin.inputs)
        ):
            raise ValueError(f"{origin.dtype[:40]!r} or {origin.inputs[:40]!r} is no type of tensors")
        return origin

    def example(self, rows: int) -> Tensor:
        """Some raw inputs of the right form, always the same, made of noise and not of anybody's data."""
        source = torch.Generator().manual_seed(rows)
        size = (rows, *self.shape)
        if self.tokens:
            return torch.randint(0, self.tokens, size, generator=source)
        if self.inputs == "uint8":
            return torch.randint(0, 256, size, generator=source, dtype=torch.uint8)
        shift, scale = (torch.tensor(numbers, dtype=torch.float64) for numbers in (self.shift, self.scale))
        noise = torch.randn(size, generator=source, dtype=torch.float64)
        return (shift + scale * noise).to(getattr(torch, self.inputs))


class Predictor(nn.Module):
    """A trained network with its preprocessing: raw inputs go in, as they lie in the data set.

    A network that asks for a mask is told which places of a sequence are padding, as in training. `module` is
    the plain network, `origin` says where it comes from.
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, module: nn.Module, origin: Origin) -> None:
        super().__init__()
        self.module, self.origin, self._masking = module, origin, Masking(module, origin.padding)
        dtype = getattr(torch, origin.dtype)
        for name in ("shift", "scale"):
            self.register_buffer(name, torch.tensor(getattr(origin, name), dtype=torch.float64).to(dtype))

    def forward(self, inputs: Tensor) -> Tensor:
        """What the network says about a batch of raw inputs; tokens stay the whole numbers that they are."""
        if not self.origin.tokens:
            inputs = (inputs.to(self.shift.dtype) - self.shift) / self.scale
        return self._masking.ask(self.module, inputs)


def save_weights(run: Path, arm: Arm, task: Task, models: Iterable[tuple[int, int | None, State]]) -> None:
    """Write models that an arm ends with into the run's folder.

    Args:
        run: The folder.
        arm: Which arm it is.
        task: What was computed; it holds what is not trained.
        models: Every model with its replica and the client whose own it is, if it is one's.
    """
    common, network = _common(arm), network_of(arm.scene)
    for replica, client, state in models:
        method, seed = arm.who(replica)
        names = arm.scene.partitions[seed].names
        name = names[client] if names and client is not None else ""
        origin = Origin(setting=arm.setting, method=method, seed=seed, client=client, name=name, **common)
        tensors = _plain(filled(network, {**state, "frozen": task.frozen}))
        header = {"format": "pt", HEADER: json.dumps(dataclasses.asdict(origin))}
        path = _path(run, arm.setting, method, seed, client)
        path.parent.mkdir(parents=True, exist_ok=True)
        atomic_write(path, _sealed(safetensors.torch.save(tensors, header)))


def _sealed(data: bytes) -> bytes:
    """The bytes of a file of safetensors with a digest of all else in its header.

    The header's own entries are sorted: safetensors writes them in random order.
    """
    metadata, layout, tensors = _apart(data)
    sealed = {**metadata, SEAL: _digest(metadata, layout, tensors)}
    text = json.dumps(
        {"__metadata__": dict(sorted(sealed.items())), **layout}, separators=(",", ":")
    ).encode()
    padded = text.ljust(-(-len(text) // 8) * 8)  # tensors begin where a number of eight bytes could
    return len(padded).to_bytes(8, "little") + padded + tensors


def _apart(data: bytes) -> tuple[dict[str, str], dict[str, Any], bytes]:
    """The entries of a file's own in its header, where its tensors lie, and these."""
    length = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + length])
    return header.pop("__metadata__"), header, data[8 + length :]


def _digest(metadata: dict[str, str], layout: dict[str, Any], tensors: bytes) -> str:
    whole = hashlib.sha256(json.dumps([sorted(metadata.items()), layout]).encode())
    whole.update(tensors)
    return whole.hexdigest()


def _read(path: Path) -> tuple[Origin, dict[str, Tensor]]:
    """Where the model in a file comes from, and its tensors, once the digest is checked."""
    with _refusing(path):
        data = path.read_bytes()
        tensors = safetensors.torch.load(data)
        metadata, layout, rest = _apart(data)
        seal = metadata.pop(SEAL)
        origin = Origin.read(metadata[HEADER])
    if seal != _digest(metadata, layout, rest):
        raise DamageError(f"{path} is damaged: its digest is not that of what it holds")
    return origin, tensors


def _origin(path: Path) -> Origin:
    """Where the model in a file comes from, by its header alone."""
    with _refusing(path), safetensors.safe_open(path, "pt") as file:
        return Origin.read(file.metadata()[HEADER])


@contextmanager
def _refusing(path: Path) -> Iterator[None]:
    """Within it, a file of weights is read, once its head is known to be of a sound size and form."""
    try:
        heads.check_file(path)
        yield
    except (OSError, safetensors.SafetensorError, KeyError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{path} is no model of a run, or damaged: {described(error):.200}") from None


def _common(arm: Arm) -> dict[str, Any]:
    """What the models of an arm have in common."""
    scene, data = arm.scene, arm.scene.dataset
    shift, scale = normalisation(data, scene.normalize)
    parts = (data.inputs, data.test_inputs) if takes_tokens(data) else ()
    return {
        "rounds": arm.config.rounds,
        "padding": data.padding,
        "model": arm.config.written()["model"],
        "shape": data.shape,
        "outputs": data.outputs,
        "inputs": str(data.inputs.dtype).removeprefix("torch."),
        "tokens": 1 + max((int(whole(part).max()) for part in parts), default=-1),
        "dtype": str(scene.dtype).removeprefix("torch."),
        "shift": shift.tolist(),
        "scale": scale.tolist(),
    }


def network_of(scene: Scene) -> nn.Module:
    """A plain network, whose weights are to be replaced; one that was given stays as it is."""
    with torch.random.fork_rng(devices=[]):
        return copied(module_of(scene)).to(dtype=scene.dtype)


def filled(network: nn.Module, state: State) -> nn.Module:
    """The network, with the tensors of a state in place of its own."""
    own = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    for params in state.values():
        for name, value in params.items():
            own[name].data = value.detach().cpu()  # which may have grown, with methods that match neurons
    return network


def _plain(network: nn.Module) -> dict[str, Tensor]:
    """A network's state dict; tied tensors are there under every name."""
    return {name: value.detach().clone().contiguous() for name, value in network.state_dict().items()}


def _path(run: Path, setting: str, method: str, seed: int, client: int | None) -> Path:
    name = "model" if client is None else f"client-{client}"
    return run / WEIGHTS / _quoted(setting) / _quoted(method) / f"seed-{seed}" / f"{name}.safetensors"


def _quoted(label: str) -> str:
    """The label as the name of a folder, and never of another one than here."""
    return quote(label, safe=" =,+") if label.strip(".") else label.replace(".", "%2E")


def load_model(
    run: str | Path | Result,
    method: str | None = None,
    *,
    setting: str | None = None,
    seed: int | None = None,
    client: int | str | None = None,
    model: object = None,
) -> Predictor:
    """The model that a run ended with, ready for raw inputs: normalisation is a part of it.

    Args:
        run: The run's folder, what came out of it, or one of its files below `weights/`.
        method: What the run's table calls the method, e.g. `"fedprox mu=0.1"`; not needed where there is one.
        setting: The setting, where there are several.
        seed: The seed; by default the first.
        client: Whose own model is wanted, by number or name, of methods that have such; or a graph's node.
        model: The model, where it was one from Python that no file can name; it stays as it is.
    """
    place = run.folder if isinstance(run, Result) else folder_of(run)
    path = find_weights(place, method, setting=setting, seed=seed, client=client)
    origin, tensors = _read(path)
    network = _made_again(origin, model).to(getattr(torch, origin.dtype))
    own = {**dict(network.named_parameters()), **dict(network.named_buffers())}
    for name in own.keys() & tensors.keys():
        lazy = isinstance(own[name], UninitializedParameter | UninitializedBuffer)  # it finds its size itself
        if not lazy and own[name].shape != tensors[name].shape and model is None:  # grown in training
            own[name].data = torch.empty_like(tensors[name])
    try:
        network.load_state_dict(tensors)
    except RuntimeError as error:
        raise UserError(f"{path} does not fit the model: {' '.join(str(error).split()):.200}") from None
    return Predictor(network, origin).eval()


def _made_again(origin: Origin, given: object) -> nn.Module:
    """The network that a configuration names, or that was given in its place."""
    name = origin.model.get("name")
    try:
        spec = read_model(origin.model if given is None else given)
    except UserError:
        if given is not None or is_reference(name):
            raise
        raise UserError(
            f"the run's model {name!r} was made in Python; pass one: cs.load_model(..., model=...)"
        ) from None
    with torch.random.fork_rng(devices=[]):  # the weights drawn here are thrown away
        return copied(spec.build(origin.shape, origin.outputs))


def find_weights(
    run: Path, method: str | None, *, setting: str | None, seed: int | None, client: int | str | None
) -> Path:
    """The file of the model that is meant; the arguments are those of `load_model`."""
    if run.is_file():
        return run
    folder = run / WEIGHTS
    if not folder.is_dir():
        raise UserError(f"{run} holds no models: there is no {WEIGHTS}/; a run writes it when it ends")
    place = _chosen("setting", folder, setting)
    place = _chosen("method", place, method)
    seeds = sorted(place.iterdir(), key=lambda one: int(one.name.removeprefix("seed-")))
    place = seeds[0] if seed is None else place / f"seed-{seed}"
    if not place.is_dir():
        raise unknown("seed", str(seed), [one.name.removeprefix("seed-") for one in seeds])
    if isinstance(client, str):
        client = _numbers(place).get(client, client)
    path = place / ("model.safetensors" if client is None else f"client-{client}.safetensors")
    if path.exists():
        return path
    there = sorted(int(one.stem.removeprefix("client-")) for one in place.glob("client-*.safetensors"))
    if not there:
        raise UserError(f"clients of {place.parent.name} have no models of their own: leave client out")
    known = ", ".join(_numbers(place))
    if not known:
        known = f"{there[0]} to {there[-1]}" if len(there) == there[-1] - there[0] + 1 else str(there)
    if client is None:
        raise UserError(
            f"every client of {place.parent.name} has a model of its own: choose a client, {known}"
        )
    raise UserError(f"there is no model of client {client}; there are those of {known}")


def _numbers(place: Path) -> dict[str, int]:
    """The numbers of clients by their names, of those that have both a name and a model there."""
    found = {}
    for path in sorted(place.glob("client-*.safetensors")):
        origin = _origin(path)
        if origin.name and origin.client is not None:
            found[origin.name] = origin.client
    return found


def _chosen(kind: str, folder: Path, name: str | None) -> Path:
    """The folder of a setting or method; the only one where no name is given."""
    there = {unquote(one.name): one for one in sorted(folder.iterdir())}
    if name is None and len(there) > 1:
        raise UserError(f"there are several {kind}s: choose one of {', '.join(map(repr, there))}")
    if name is None:
        return next(iter(there.values()))
    if name not in there:
        raise unknown(kind, name, there)
    return there[name]
