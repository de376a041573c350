"""The configuration: one schema for YAML files, the command line and `consilience.run`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    PlainSerializer,
    PlainValidator,
    ValidationError,
    WithJsonSchema,
    field_validator,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema

from consilience.algorithm import Init
from consilience.coordinate import Coordinate
from consilience.data.dataset import Dataset, Normalisation
from consilience.data.partition import Partitioner
from consilience.data.partitioners import PARTITIONERS
from consilience.data.sources import SOURCES
from consilience.engine.build import ExecutorName, resolve_executor
from consilience.engine.determinism import Precision
from consilience.engine.network import Network
from consilience.errors import UserError, unknown
from consilience.methods import MethodChoice, method_schema, read_method
from consilience.models import MODELS, ModelSpec
from consilience.overrides import DEFAULT_PARTS, apply, check_effect
from consilience.parts import Sweep, first_problem, part_schema, read_part, read_sweep, write_part
from consilience.solver import SOLVERS, Solver
from consilience.topology import TOPOLOGIES, Topology


def _one(kind: str, registry: Mapping[str, type[Any]], base: type) -> tuple[Any, ...]:
    """How a field that holds one named part is read, written and described."""
    return (
        PlainValidator(lambda value: value if isinstance(value, base) else read_part(kind, registry, value)),
        PlainSerializer(write_part, return_type=dict),
        WithJsonSchema(part_schema(registry)),
    )


def _read_solver(value: object) -> Sweep[Solver]:
    if isinstance(value, Sweep):
        return value
    if isinstance(value, Solver):
        if SOLVERS.get(value.name) is not type(value):
            return Sweep((value,), ("",), write_part(value))
        value = write_part(value)
    return read_sweep("solver", SOLVERS, value)


def _read_methods(value: object) -> list[MethodChoice]:
    entries = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    choices = [read_method(entry) for entry in entries]
    if not choices:
        raise UserError("method: the list is empty")
    labels = [choice.label for choice in choices]
    twice = next((label for label in labels if labels.count(label) > 1), None)
    if twice is not None:
        raise UserError(f"method: {twice!r} is there twice; give one of them a label")
    return choices


PartitionerField = Annotated[Partitioner, *_one("partition", PARTITIONERS, Partitioner)]
ModelField = Annotated[ModelSpec, *_one("model", MODELS, ModelSpec)]
TopologyField = Annotated[Topology, *_one("topology", TOPOLOGIES, Topology)]
SolverField = Annotated[
    Sweep[Solver],
    PlainValidator(_read_solver),
    PlainSerializer(lambda sweep: sweep.written, return_type=dict),
    WithJsonSchema(part_schema(SOLVERS, sweep=True)),
]
MethodsField = Annotated[
    list[MethodChoice],
    PlainValidator(_read_methods),
    PlainSerializer(lambda choices: [choice.sweep.written for choice in choices], return_type=list),
    WithJsonSchema({"anyOf": [method_schema(), {"type": "array", "items": method_schema()}]}),
]


ROUNDS_WORTH_COMPILING = 20
"""Compiling takes seconds; shorter runs are over sooner without."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)

    @model_validator(mode="before")
    @classmethod
    def _truth_is_not_a_number(cls, values: Any) -> Any:
        for name, value in values.items() if isinstance(values, dict) else ():
            if (
                isinstance(value, bool)
                and name in cls.model_fields
                and cls.model_fields[name].annotation is not bool
            ):
                raise UserError(f"{name}: expected a number or a name, not {value}")
        return values


class DataSection(_Section):
    """Which data, and how inputs are scaled."""

    name: str = Field("mnist-sample", description="A data set's name; see `consilience datasets`.")
    normalize: Normalisation = Field(
        "half",
        description="none: raw; unit: [0, 1]; half: [-1, 1]; standard: mean 0, variance 1 per channel.",
    )
    own: SkipJsonSchema[Annotated[Dataset | None, PlainValidator(lambda v: v), Field(exclude=True)]] = None

    @model_validator(mode="after")
    def _known(self) -> DataSection:
        if self.own is None and self.name not in SOURCES:
            raise unknown("data set", self.name, SOURCES)
        return self


class LocalSection(_Section):
    """How much a client trains in a round."""

    epochs: int | None = Field(None, ge=1)
    steps: int | None = Field(None, ge=1, description="Instead of epochs.")
    batch_size: int = Field(32, ge=1)
    stragglers: float = Field(
        0.0, ge=0, le=1, description="How likely a client does fewer epochs (or steps) than the others."
    )
    lr_decay: float = Field(1.0, gt=0, description="Multiplies the learning rate from round to round.")
    clip: float | None = Field(None, gt=0, description="The largest norm of a gradient.")

    @model_validator(mode="before")
    @classmethod
    def _one_of_both(cls, value: Any) -> Any:
        if isinstance(value, dict):
            if value.get("epochs") is not None and value.get("steps") is not None:
                raise UserError("local: give epochs or steps, not both")
            if value.get("epochs") is None and value.get("steps") is None:
                return {**value, "epochs": 1}
        return value


class EvaluateSection(_Section):
    """When models are evaluated."""

    every: int = Field(1, ge=1, description="Rounds between evaluations; the last round is always evaluated.")
    clients: bool = Field(True, description="Whether every client is evaluated on its own data at the end.")
    nodes: bool = Field(True, description="Whether metrics have lists over the nodes of a graph.")
    trained: bool = Field(
        True,
        description="Whether peers are also evaluated after training, before they hear their neighbours.",
    )
    coordinates: list[str] = Field(
        default_factory=list,
        description="Parameters whose curvature and weight at every node are recorded, e.g. head.bias[3].",
    )

    @model_validator(mode="after")
    def _recorded(self) -> EvaluateSection:
        if self.coordinates and not self.nodes:
            raise UserError("evaluate.coordinates are among the lists over nodes: set evaluate.nodes: true")
        return self

    @field_validator("coordinates")
    @classmethod
    def _readable(cls, written: list[str]) -> list[str]:
        try:
            return [str(Coordinate.parse(text)) for text in written]
        except UserError as error:
            raise UserError(f"evaluate.coordinates: {error}") from None


class CheckpointSection(_Section):
    """When the state is saved."""

    every: int = Field(10, ge=1, description="Rounds between checkpoints.")


class NetworkSection(_Section):
    """How a graph of peers behaves over time; by default it stays as it is and everything arrives."""

    redraw_every: int | None = Field(None, ge=1, description="Rounds after which a random graph changes.")
    loss: float = Field(0.0, ge=0, lt=1, description="How likely a message gets lost on a link.")
    leave: float = Field(0.0, ge=0, lt=1, description="How likely a node leaves before a round.")
    come_back: float = Field(0.5, gt=0, le=1, description="How likely a node that is away comes back.")
    returning: Literal["old", "fresh"] = Field("old", description="The model with which it comes back.")
    wake: float | tuple[float, float] = Field(
        1.0, description="How likely a node is awake in a round; two numbers: each node has a rate between."
    )
    staleness: int | None = Field(None, ge=0, description="Rounds after which a message is too old.")

    def network(self) -> Network:
        """What the engine takes."""
        wake = self.wake if isinstance(self.wake, tuple) else (self.wake, self.wake)
        fresh = self.returning == "fresh"
        return Network(self.redraw_every, self.loss, self.leave, self.come_back, fresh, wake, self.staleness)


def _named(value: Any) -> Any:
    return {"name": value} if isinstance(value, str) else value


def _read_data(value: Any) -> Any:
    if isinstance(value, Dataset):
        return {"name": value.name, "own": value}
    if value is not None and not isinstance(value, str | dict | DataSection):
        kind = type(value).__name__
        raise UserError(
            f"data: expected a name or a Dataset (Dataset.from_arrays, Dataset.from_torch), not a {kind}"
        )
    return _named(value)


class Config(_Section):
    """One run: methods compared in one setting, or in several."""

    name: str = Field(
        "run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", description="The run's folder is OUT/NAME."
    )
    method: MethodsField = Field(default_factory=lambda: [read_method(DEFAULT_PARTS["method"])])
    data: Annotated[DataSection, BeforeValidator(_read_data, json_schema_input_type=DataSection | str)] = (
        Field(default_factory=DataSection)
    )
    partition: PartitionerField = Field(
        default_factory=lambda: read_part("partition", PARTITIONERS, DEFAULT_PARTS["partition"])
    )
    model: ModelField = Field(default_factory=lambda: read_part("model", MODELS, DEFAULT_PARTS["model"]))
    clients: int | None = Field(
        None, ge=1, description="By default 10, or as many as the topology has nodes."
    )
    participation: int | float = Field(
        1.0, description="A fraction (1.0: everybody) or a count of clients a round."
    )
    failure_rate: float = Field(0.0, ge=0, le=1, description="How likely a client's upload never arrives.")
    network: NetworkSection = Field(default_factory=NetworkSection)
    rounds: int = Field(20, ge=1)
    local: LocalSection = Field(default_factory=lambda: LocalSection(epochs=1))
    solver: SolverField = Field(default_factory=lambda: _read_solver(DEFAULT_PARTS["solver"]))
    topology: TopologyField = Field(
        default_factory=lambda: read_part("topology", TOPOLOGIES, DEFAULT_PARTS["topology"])
    )
    init: Init | None = Field(None, description="By default common on a star and different on a graph.")
    seeds: Annotated[
        list[Annotated[int, Field(ge=0)]],
        BeforeValidator(
            lambda v: [v] if isinstance(v, int) else v,
            json_schema_input_type=Annotated[list[int], Field(min_length=1)] | int,
        ),
    ] = Field([0], min_length=1)
    executor: ExecutorName = "auto"
    lanes: int | None = Field(
        None, ge=1, description="Clients that train side by side; by default as memory allows."
    )
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:\d+)?)$")
    dtype: Literal["float32", "float64"] = "float32"
    precision: Precision = Field(
        "fp32",
        description="Of products on a GPU: inputs in full, or rounded to tf32, or in training to bf16.",
    )
    compile: Literal["auto", "always", "never"] = Field(
        "auto",
        description="Whether steps are compiled, on a GPU; by default in runs of 20 rounds or more. "
        "Those of very large models never are.",
    )
    evaluate: EvaluateSection = Field(default_factory=EvaluateSection)
    targets: list[Annotated[float, Field(gt=0, le=1)]] = Field([0.8, 0.9], description="Accuracies to reach.")
    checkpoint: CheckpointSection = Field(default_factory=CheckpointSection)
    out: Path = Path("runs")
    compare: list[dict[str, Any]] = Field(
        default_factory=list, description="Several settings: each item overrides keys of this file."
    )

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        if len(set(self.seeds)) != len(self.seeds):
            raise UserError(f"seeds: {self.seeds} names a seed twice")
        nodes = self.topology.nodes
        if nodes is not None and nodes < 1:
            raise UserError(f"topology: nodes must be at least 1, not {nodes}")
        if nodes is not None and self.clients is not None and nodes != self.clients:
            raise UserError(f"topology has {nodes} nodes, but clients is {self.clients}")
        if not self.participation > 0:
            raise UserError(f"participation must be above 0, not {self.participation}")
        if isinstance(self.participation, float) and self.participation > 1:
            raise UserError(
                f"participation {self.participation} is above 1.0; a count of clients is a whole number"
            )
        if self.participants > self.population:
            raise UserError(f"participation {self.participation} is more than the {self.population} clients")
        for choice in self.method:
            if choice.init and self.init and choice.init != self.init:
                raise UserError(f"{choice.label} means init: {choice.init}, but init is {self.init}")
            if choice.on_graph and self.topology.name == "star":
                raise UserError(f"{choice.label} is fedavg on a graph; set topology, e.g. erdos_renyi")
        return self

    @property
    def population(self) -> int:
        """The number of clients."""
        return self.clients or self.topology.nodes or 10

    @property
    def participants(self) -> int:
        """Clients of a round."""
        if isinstance(self.participation, int):
            return self.participation
        return max(1, round(self.participation * self.population))

    @property
    def torch_device(self) -> torch.device:
        """The device, with `auto` resolved."""
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        number = int(self.device.partition(":")[2] or 0)
        if self.device.startswith("cuda") and number >= torch.cuda.device_count():
            raise UserError(f"device {self.device} is not available here; use cpu or auto")
        return torch.device(self.device)

    def resolved(self) -> Config:
        """The configuration with `auto` replaced by what it means on this machine."""
        device = self.torch_device
        if self.precision != "fp32" and (device.type != "cuda" or self.dtype != "float32"):
            raise UserError(
                f"precision {self.precision} is for float32 on a GPU, not for {self.dtype} on {device.type}: "
                "set precision: fp32"
            )
        worth = device.type == "cuda" and self.rounds >= ROUNDS_WORTH_COMPILING
        changes = {
            "device": str(device),
            "executor": resolve_executor(self.executor),
            "compile": ("always" if worth else "never") if self.compile == "auto" else self.compile,
        }
        return self.model_copy(update=changes)

    def settings(self) -> list[tuple[str, Config]]:
        """The settings to run, each with a label: this one, or those of `compare`."""
        if not self.compare:
            return [(self.topology.name, self)]
        base = {name: getattr(self, name) for name in Config.model_fields if name != "compare"}
        settings = []
        for number, changes in enumerate(self.compare):
            for key in sorted(changes.keys() & {"name", "out", "targets", "device", "compare"}):
                raise UserError(f"compare[{number}]: {key} belongs to the whole run, not to one setting")
            label = changes.get("label")
            merged = {**base, **{key: value for key, value in changes.items() if key != "label"}}
            data = changes.get("data", self.data.name)
            same = (data.get("name") if isinstance(data, dict) else data) == self.data.name
            config = read_config(merged, f"compare[{number}]", self.data.own if same else None)
            settings.append((str(label or config.topology.name), config))
        labels = [label for label, _ in settings]
        if len(set(labels)) != len(labels):
            settings = [(f"{label} {i + 1}", config) for i, (label, config) in enumerate(settings)]
        return settings

    def written(self) -> dict[str, Any]:
        """The configuration as plain values, with every default spelled out."""
        return self.model_dump(mode="json")


def read_config(values: Mapping[str, Any], source: str = "config", own: Dataset | None = None) -> Config:
    """A checked configuration; a problem is a UserError of one line."""
    try:
        values = dict(values)
        data = _read_data(values.get("data", own))
        if own is not None and isinstance(data, dict):
            values["data"] = {**data, "own": own}
        return Config.model_validate(values)
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
    except ValidationError as error:
        raise UserError(f"{source}: {_problem(error)}") from None


def _problem(error: ValidationError) -> str:
    problem = error.errors()[0]
    if problem["type"] != "extra_forbidden":
        return first_problem(error)
    path = problem["loc"][:-1]
    section: type[BaseModel] = Config
    for step in path:
        kind = section.model_fields[str(step)].annotation
        assert isinstance(kind, type)
        assert issubclass(kind, BaseModel)
        section = kind
    valid = [name for name in section.model_fields if name != "own"]
    return str(
        unknown("key", ".".join(map(str, problem["loc"])), [".".join([*map(str, path), n]) for n in valid])
    )


def load_config(path: Path, overrides: Sequence[str] = ()) -> Config:
    """A configuration file with `key=value` overrides (dotted keys, YAML values)."""
    try:
        values = yaml.safe_load(path.read_text())
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}") from None
    except (yaml.YAMLError, ValueError) as error:  # a ValueError is a date that does not exist, say
        raise UserError(f"{path} is not valid YAML: {' '.join(str(error).split())}") from None
    if not isinstance(values, dict):
        raise UserError(f"{path}: expected keys and values, found {type(values).__name__}")
    for number, override in enumerate(overrides):
        check_effect(values, override)
        apply(values, override, {earlier.partition("=")[0] for earlier in overrides[:number]})
    return read_config(values, str(path))
