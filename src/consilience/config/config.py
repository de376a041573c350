"""The configuration: one schema for YAML files, the command line and `consilience.run`."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import (
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    ValidationError,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema

from consilience.algorithm import Init
from consilience.config.augmenting import AugmentField
from consilience.config.entries import read_method
from consilience.config.fields import (
    MethodsField,
    ModelField,
    PartitionerField,
    ProblemField,
    ScheduleField,
    SolverField,
    TopologyField,
    TrackersField,
    read_solver,
)
from consilience.config.hints import place_of
from consilience.config.keys import read_init, read_out, read_participation, read_seeds
from consilience.config.metrics import MetricsField
from consilience.config.options import (
    MOST_VARIANTS,
    allow_lists,
    check_count,
    problem_of,
    read_part,
)
from consilience.config.overrides import DEFAULT_PARTS
from consilience.config.own_data import with_clients
from consilience.config.sections import (
    MOST,
    CheckpointSection,
    DataSection,
    DeploySection,
    EvaluateSection,
    LocalSection,
    MemoriesSection,
    NetworkSection,
    Section,
    Targets,
    TargetsByScore,
    read_data,
)
from consilience.config.stopping import StopWhenField
from consilience.config.sweeps import OF_SETTING, OF_TRAINING, PLAIN, Numbers, expand, put, take_lists
from consilience.data.dataset import Dataset
from consilience.data.partitioners import PARTITIONERS
from consilience.engine.choosing import resolve_executor
from consilience.engine.determinism import Precision
from consilience.engine.memory import read_size, usual_memory
from consilience.engine.scene import ExecutorName
from consilience.errors import UserError, abridged, unknown
from consilience.graphs import TOPOLOGIES
from consilience.models import MODELS
from consilience.plain import check_plain
from consilience.sweeping import label_of

WHOLE_RUN = frozenset(
    {"metrics", "name", "out", "targets", "note", "device", "memory", "tracking", "deploy", "compare"}
)
"""Keys that an item of `compare` cannot change."""
MOST_CLIENTS = 10**6
INTERNAL = frozenset({"compare", "numbers"})
"""Fields that a setting has of its own."""


class Config(Section):
    """One run: methods compared in one setting, or in several."""

    model_config: ClassVar[ConfigDict] = ConfigDict(json_schema_extra=allow_lists(*PLAIN))

    name: str = Field(
        "run", pattern=r"^[A-Za-z0-9][A-Za-z0-9._=,-]{0,199}$", description="The run's folder is OUT/NAME."
    )
    method: MethodsField = Field(default_factory=lambda: [read_method(DEFAULT_PARTS["method"])])
    data: Annotated[DataSection, BeforeValidator(read_data, json_schema_input_type=DataSection | str)] = (
        Field(default_factory=DataSection)
    )
    augment: AugmentField = Field(
        (), description="How training inputs are varied, e.g. [flip, crop, package.module:function]."
    )
    problem: ProblemField | None = Field(
        None, description="What is to be learned; by default what the data set's targets look like."
    )
    l2: float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="The weight of |parameters|^2 / 2, a part of every client's loss.",
    )
    partition: PartitionerField = Field(
        default_factory=lambda: read_part("partition", PARTITIONERS, DEFAULT_PARTS["partition"])
    )
    model: ModelField = Field(default_factory=lambda: read_part("model", MODELS, DEFAULT_PARTS["model"]))
    clients: int | None = Field(
        None,
        ge=1,
        le=MOST_CLIENTS,
        description="How many there are; by default 10, or as many as the topology has nodes.",
    )
    participation: Annotated[int | float, BeforeValidator(read_participation)] = Field(
        1.0, description="A fraction (1.0: everybody) or a count of clients a round."
    )
    failure_rate: float = Field(0.0, ge=0, le=1, description="How likely a client's upload never arrives.")
    network: NetworkSection = Field(default_factory=NetworkSection)
    rounds: int = Field(20, ge=1, le=MOST)
    local: LocalSection = Field(default_factory=lambda: LocalSection(epochs=1))
    solver: SolverField = Field(default_factory=lambda: read_solver(DEFAULT_PARTS["solver"]))
    schedule: ScheduleField | None = Field(
        None, description="How the solver's learning rate changes; by default it does not."
    )
    topology: TopologyField = Field(
        default_factory=lambda: read_part("topology", TOPOLOGIES, DEFAULT_PARTS["topology"])
    )
    init: Annotated[Init | str | None, BeforeValidator(read_init)] = Field(
        None,
        description="How models start: common or different, by default common on a star and different on a "
        "graph; or a file of weights (safetensors, or a state dict) with which all start.",
    )
    seeds: Annotated[
        list[Annotated[int, Field(ge=0, lt=2**63)]],
        BeforeValidator(read_seeds, json_schema_input_type=Annotated[list[int], Field(min_length=1)] | int),
    ] = Field([0], min_length=1, max_length=MOST_VARIANTS)
    executor: ExecutorName = "auto"
    workers: int | None = Field(
        None,
        ge=1,
        le=10_000,
        description="Processes of `executor: ray`; by default one a GPU, or one a core.",
    )
    cluster: str = Field(
        "auto",
        description="The Ray cluster they are on: an address; auto: the one that runs here, or a new "
        "one; local: a new one.",
    )
    lanes: int | None = Field(
        None, ge=1, le=MOST, description="Clients that train side by side; by default as memory allows."
    )
    memory: (
        Annotated[
            str,
            BeforeValidator(
                lambda v: v if v is None else f"{read_size(v)}B", json_schema_input_type=str | int
            ),
        ]
        | None
    ) = Field(
        None,
        description="What the engine may take of the device's memory, e.g. 8GB; by default what is free.",
    )
    device: str = Field("auto", pattern=r"^(auto|cpu|cuda(:[0-9]{1,3})?)$")
    dtype: Literal["float32", "float64"] = "float32"
    precision: Precision = Field(
        "fp32",
        description="How products on a GPU take inputs: in full, or rounded to tf32, or in training to bf16.",
    )
    compile: Literal["auto", "always", "never"] = Field(
        "auto",
        description="Whether steps are compiled, on a GPU; by default where more than a minute of training "
        "is ahead. Those of very large models never are.",
    )
    evaluate: EvaluateSection = Field(default_factory=EvaluateSection)
    metrics: MetricsField = Field(
        default_factory=list,
        description="Scores beside the problem's own: names, or functions as package.module:name.",
    )
    targets: Targets | TargetsByScore | None = Field(
        None,
        description="Values of the problem's metric to reach, or such lists by the names of scores; "
        "by default accuracies of 0.8 and 0.9.",
    )
    stop_when: StopWhenField | None = Field(
        None, description="What ends a run before its last round: scores that are enough, or patience."
    )
    note: Annotated[str, StringConstraints(strip_whitespace=True)] = Field(
        "", description="Printed under the table of results: what there is to see in it."
    )
    memories: MemoriesSection = Field(default_factory=MemoriesSection)
    checkpoint: CheckpointSection = Field(default_factory=CheckpointSection)
    deploy: DeploySection = Field(default_factory=DeploySection)
    tracking: TrackersField = Field(
        default_factory=list, description="Who is told how the run goes: tensorboard, mlflow, wandb."
    )
    out: Annotated[Path, BeforeValidator(read_out, json_schema_input_type=str)] = Path("runs")
    compare: list[dict[str, Any]] = Field(
        default_factory=list,
        max_length=MOST_VARIANTS,
        description="Several settings: each item overrides keys of this file.",
    )
    numbers: SkipJsonSchema[Annotated[Numbers, Field(exclude=True)]] = Field(default_factory=Numbers)
    """Lists that were given for numbers of the setting and of training."""

    @model_validator(mode="after")
    def _consistent(self) -> Config:
        if len(set(self.seeds)) != len(self.seeds):
            raise UserError(f"seeds: {abridged(self.seeds)} names a seed twice")
        nodes = self.topology.nodes
        if nodes is not None and not 1 <= nodes <= MOST_CLIENTS:
            raise UserError(f"topology: nodes must be from 1 to {MOST_CLIENTS:,}, not {nodes}")
        if nodes is not None and self.clients is not None and nodes != self.clients:
            raise UserError(f"topology has {nodes} nodes, but clients is {self.clients}")
        if not self.executor.startswith("ray") and (self.workers is not None or self.cluster != "auto"):
            raise UserError("workers and cluster are those of executor: ray; set it, or leave these out")
        if self.executor.startswith("ray") and ":" in self.device:
            raise UserError(
                f"device {self.device}: each worker of executor: ray has a GPU of its own; set device: cuda"
            )
        if not self.cluster.strip():
            raise UserError("cluster: an address, auto or local is needed")
        if not self.participation > 0:
            raise UserError(f"participation must be above 0, not {self.participation}")
        if isinstance(self.participation, float) and self.participation > 1:
            raise UserError(
                f"participation {self.participation} is above 1.0; a count of clients is a whole number"
            )
        if self.participants > self.population:
            raise UserError(f"participation {self.participation} is more than the {self.population} clients")
        for choice in self.method:
            if choice.init and self.common and choice.init != self.common:
                raise UserError(f"{choice.label} means init: {choice.init}, but init is {self.init}")
            if choice.on_graph and self.topology.name == "star":
                raise UserError(f"{choice.label} is fedavg on a graph; set topology, e.g. erdos_renyi")
        return self

    @property
    def common(self) -> Init | None:
        """Whether models start alike, where `init` says so: with weights from a file they do."""
        if self.init is None:
            return None
        return "different" if self.init == "different" else "common"

    @property
    def population(self) -> int:
        """The number of clients."""
        return self.clients or self.topology.nodes or 10

    @property
    def participants(self) -> int:
        """How many clients take part in a round."""
        given = self.participation
        return given if isinstance(given, int) else max(1, round(given * self.population))

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
        """The configuration with every `auto` replaced by what it means on this machine."""
        device = self.torch_device
        if self.precision != "fp32" and (device.type != "cuda" or self.dtype != "float32"):
            raise UserError(
                f"precision {self.precision} is for float32 on a GPU, not for {self.dtype} on {device.type}: "
                "set precision: fp32"
            )
        counted = self.compare or "topology.nodes" in self.numbers.lists
        changes = {
            "clients": self.clients if counted else self.population,
            "device": str(device),
            "memory": self.memory or (f"{usual_memory(device)}B" if device.type == "cuda" else None),
            "executor": resolve_executor(self.executor),
        }
        return self.model_copy(update=changes)

    def settings(self) -> list[tuple[str, Config]]:
        """The settings to run, each with a label: this one, or those of `compare`, by swept numbers."""
        compared = self._compared()
        check_count(
            "settings", sum(prod(map(len, one.numbers.of(OF_SETTING).values())) for _, one in compared)
        )
        return [
            (" ".join(filter(None, (label, label_of(numbers)))), config.chosen(numbers))
            for label, one in compared
            for numbers, config in one.swept_over(OF_SETTING)
        ]

    @property
    def length(self) -> int:
        """The number of rounds of the longest setting."""
        return max(one.rounds for _, one in self.settings())

    def chosen(self, numbers: dict[str, object]) -> Config:
        """The configuration, which knows the numbers that tell it from other settings."""
        if not numbers:
            return self
        return self.model_copy(update={"numbers": Numbers(self.numbers.lists, numbers)})

    def trainings(self) -> list[tuple[dict[str, object], Config]]:
        """The setting with each of the numbers that are swept in training, which come with it."""
        return self.swept_over(OF_TRAINING)

    def swept_over(self, keys: tuple[str, ...]) -> list[tuple[dict[str, object], Config]]:
        """The configuration with every combination of the lists under some keys."""
        lists = self.numbers.of(keys)
        if not lists:
            return [({}, self)]
        rest = {path: values for path, values in self.numbers.lists.items() if path not in lists}
        base = put(self._values(), rest)
        return [
            (short, read_config(put(base, values), label_of(short)).chosen(self.numbers.chosen))
            for values, short in expand(lists)
        ]

    def _values(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in Config.model_fields if name not in INTERNAL}

    def _compared(self) -> list[tuple[str, Config]]:
        """This setting, or those of `compare`, each with a label."""
        if not self.compare:
            return [(self.topology.name, self)]
        base = put(self._values(), self.numbers.lists)
        settings = []
        for number, given in enumerate(self.compare):
            _check_changes(number, given)
            label, changes = given.get("label"), {key: given[key] for key in given if key != "label"}
            solver = changes.get("solver")
            if isinstance(solver, dict) and "name" not in solver:  # the solver of this file, but for these
                changes["solver"] = {**self.solver.written, **solver}
            merged = {**base, **changes}
            data = changes.get("data", self.data.name)
            same = (data.get("name") if isinstance(data, dict) else data) == self.data.name
            same = same and ":" not in self.data.name  # a function is called again, with its options
            config = read_config(merged, f"compare[{number}]", self.data.own if same else None)
            settings.append((str(label or config.topology.name), config))
        labels = [label for label, _ in settings]
        if len(set(labels)) != len(labels):
            settings = [(f"{label} {i + 1}", config) for i, (label, config) in enumerate(settings)]
        return settings

    def written(self) -> dict[str, Any]:
        """The configuration as plain values, with every default spelled out."""
        values = put(self.model_dump(mode="json"), self.numbers.lists)
        if not self.compare:
            return values
        return values | {"compare": [{"label": label, **one.own_values()} for label, one in self._compared()]}

    def own_values(self) -> dict[str, Any]:
        """What a setting that is compared with others says of itself: everything but what all share."""
        nodes = {"clients", "topology.nodes"} & self.numbers.lists.keys()
        counted = self if nodes else self.model_copy(update={"clients": self.population})
        return {key: value for key, value in counted.written().items() if key not in WHOLE_RUN}


def read_config(values: Mapping[str, Any], source: str = "config", own: Dataset | None = None) -> Config:
    """The checked configuration that some values stand for; a problem is a UserError of one line.

    Args:
        values: The keys of a configuration file, with plain values or the objects they stand for.
        source: Where the values are from, for the text of an error.
        own: A data set from Python, in place of a known one.
    """
    try:
        check_plain(values)
        values, lists = take_lists(values)
        if "numbers" in values:
            raise unknown("key", "numbers", Config.model_fields.keys() - INTERNAL)
        data = read_data(values.get("data", own))
        if own is not None and isinstance(data, dict):
            data = {**data, "own": own}
        if data is not None:
            values["data"] = data
        return Config.model_validate({**with_clients(values), "numbers": Numbers(lists)})
    except UserError as error:
        raise UserError(f"{source}: {error}") from None
    except ValidationError as error:
        raise UserError(f"{source}: {problem_of(error, Config)}") from None


def _check_changes(number: int, changes: Mapping[str, Any]) -> None:
    """Refuse keys that an item of `compare` cannot have."""
    for key in sorted(changes.keys() & WHOLE_RUN):
        raise UserError(f"compare[{number}]: {key} belongs to the whole run, not to one setting")
    known = {"label", *Config.model_fields} - WHOLE_RUN
    for key in changes:
        if key not in known:
            raise UserError(f"compare[{number}]: {unknown('key', key, known, place_of(key))}")
    if not isinstance(changes.get("label", ""), str | int | float):
        raise UserError(f"compare[{number}]: label must be text, not {abridged(changes['label'])}")
