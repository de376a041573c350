"""The sections of a configuration file."""

from __future__ import annotations

import math
import traceback
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    FiniteFloat,
    PlainValidator,
    field_validator,
    model_validator,
)
from pydantic.json_schema import SkipJsonSchema

from consilience.config.options import MOST_VARIANTS, allow_lists
from consilience.data.dataset import MOST_OUTPUTS, Dataset
from consilience.data.normalising import Normalisation
from consilience.data.sets import SOURCES, Source
from consilience.engine.network import Network
from consilience.errors import UserError, abridged, check_options, described, kind_of, unknown
from consilience.learning.coordinate import Coordinate
from consilience.plugins import is_reference, load

Targets = Annotated[list[FiniteFloat], Field(max_length=MOST_VARIANTS)]
"""Values to reach."""
TargetsByScore = dict[
    str,
    Annotated[
        Targets,
        BeforeValidator(
            lambda value: value if isinstance(value, list) else [value],
            json_schema_input_type=list[float] | float,
        ),
    ],
]
"""Values to reach, by the names of scores."""


MOST = 10**9
"""The most rounds or steps that anything is counted in."""
MOST_ROWS = 10**12
"""The largest batch; one is never larger than what a client holds."""


class Section(BaseModel):
    """Keys of a configuration: no others are taken, and nothing is changed later."""

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


def _read_own(value: object) -> Dataset | None:
    """A data set of Python, which no file can name."""
    if value is None or isinstance(value, Dataset):
        return value
    raise unknown("key", "data.own", [f"data.{name}" for name in DataSection.model_fields if name != "own"])


class DataSection(Section):
    """Which data there are, and how inputs are scaled."""

    # A function's options may stand beside its name.
    model_config = ConfigDict(json_schema_extra={"additionalProperties": True})

    name: str = Field(
        "mnist-sample",
        description="A data set's name (`consilience datasets`), or package.module:function that gives one.",
    )
    options: dict[str, Any] = Field(default_factory=dict, description="Arguments of such a function.")
    normalize: Normalisation = Field(
        "auto",
        description="auto: half for bytes, none for floats; none: raw; unit: [0, 1]; half: [-1, 1]; "
        "standard: mean 0, variance 1 per channel.",
    )
    resident: Literal["auto", "always", "never"] = Field(
        "auto",
        description="Whether inputs are held in memory, or read as batches need them; by default held "
        "where they take at most half of it.",
    )
    own: SkipJsonSchema[Annotated[Dataset | None, PlainValidator(_read_own), Field(exclude=True)]] = None
    """A data set from Python, in place of a known one."""

    @model_validator(mode="after")
    def _known(self) -> DataSection:
        if self.own is None and self.name not in SOURCES:
            raise unknown("data set", self.name, SOURCES)
        return self


class LocalSection(Section):
    """How much a client trains in a round."""

    model_config: ClassVar[ConfigDict] = ConfigDict(json_schema_extra=allow_lists())

    epochs: int | None = Field(None, ge=1, le=MOST)
    steps: int | None = Field(None, ge=1, le=MOST, description="How many steps, instead of epochs.")
    batch_size: int = Field(32, ge=1, le=MOST_ROWS)
    stragglers: float = Field(
        0.0, ge=0, le=1, description="How likely a client does fewer epochs (or steps) than the others."
    )
    lr_decay: float = Field(
        1.0, gt=0, allow_inf_nan=False, description="Multiplies the learning rate from round to round."
    )
    clip: float | None = Field(None, gt=0, allow_inf_nan=False, description="The largest norm of a gradient.")

    @model_validator(mode="before")
    @classmethod
    def _one_of_both(cls, value: Any) -> Any:
        if isinstance(value, dict):
            if value.get("epochs") is not None and value.get("steps") is not None:
                raise UserError("local: give epochs or steps, not both")
            if value.get("epochs") is None and value.get("steps") is None:
                return {**value, "epochs": 1}
        return value


class EvaluateSection(Section):
    """When models are evaluated, and what is recorded of them."""

    every: int = Field(
        1, ge=1, le=MOST, description="Rounds between evaluations; the last round is always evaluated."
    )
    clients: bool = Field(
        True, strict=True, description="Whether every client is evaluated on its own data at the end."
    )
    nodes: bool = Field(
        True, strict=True, description="Whether metrics have lists over the nodes of a graph."
    )
    trained: bool = Field(
        True,
        strict=True,
        description="Whether peers are also evaluated after training, before they hear their neighbours.",
    )
    coordinates: list[str] = Field(
        default_factory=list,
        max_length=MOST_VARIANTS,
        description="Parameters whose curvature and weight at every node are recorded, e.g. head.bias[3].",
    )
    curvature: bool = Field(
        False,
        strict=True,
        description="Whether every client trains once more at the end and records each output's curvature.",
    )

    @model_validator(mode="after")
    def _recorded(self) -> EvaluateSection:
        if self.coordinates and not self.nodes:
            raise UserError("evaluate.coordinates are among the lists over nodes: set evaluate.nodes: true")
        if self.curvature and not self.clients:
            raise UserError("evaluate.curvature is among the results of clients: set evaluate.clients: true")
        return self

    @field_validator("coordinates")
    @classmethod
    def _readable(cls, written: list[str]) -> list[str]:
        try:
            return [str(Coordinate.parse(text)) for text in written]
        except UserError as error:
            raise UserError(f"evaluate.coordinates: {error}") from None


Shape = Annotated[list[Annotated[int, Field(ge=1, le=MOST)]], Field(max_length=8)]
Kind = Literal["uint8", "int64", "float16", "bfloat16", "float32", "float64"]
"""The types that data may have."""


class FactsSection(Section):
    """What the data of all members of a federation look like: no member sees those of another."""

    shape: Shape = Field(description="The shape of one input.")
    outputs: int = Field(
        ge=1, le=MOST_OUTPUTS, description="How many classes there are, or numbers that are predicted."
    )
    inputs: Kind = Field("float32", description="The type of inputs as they lie in the data.")
    targets: Kind = Field("int64", description="The type of targets.")
    target: Shape = Field(
        default_factory=list, description="The shape of one target; empty where it is one number."
    )
    padding: int | None = Field(None, ge=0, le=MOST, description="The token that fills up sequences.")
    shift: Any = Field(0.0, description="Inputs are normalised to (input - shift) / scale.")
    scale: Any = Field(1.0, description="See shift.")

    @model_validator(mode="after")
    def _fit(self) -> FactsSection:
        if max(math.prod(self.shape), math.prod(self.target)) > MOST:
            raise UserError(f"deploy.facts.shape: more than {MOST:,} numbers a row")
        for name in ("shift", "scale"):
            _check_numbers(f"deploy.facts.{name}", getattr(self, name), self.shape)
        return self


def _check_numbers(where: str, value: object, shape: list[int]) -> None:
    """Refuse what is no number, nor numbers that fit inputs of a shape."""
    try:
        numbers = np.asarray(value if isinstance(value, int | float | list) else "")
        fits = np.broadcast_shapes(numbers.shape, tuple(shape)) == tuple(shape)
    except ValueError:  # of lists that differ in length, or of another shape
        fits = False
    if not fits or numbers.dtype.kind not in "fi" or not np.isfinite(numbers).all():
        raise UserError(f"{where}: a number or one a channel is wanted, not {abridged(value)}")


class DeploySection(Section):
    """How a real federation runs; a simulation does not look at it."""

    # A whole number is a count, and comes first: 1 would otherwise be read as 1.0, which is everybody.
    quorum: (
        Annotated[int, Field(ge=1, strict=True)] | Annotated[float, Field(gt=0, le=1)] | Literal["all"]
    ) = Field(
        1,
        union_mode="left_to_right",
        description="How many of a round's clients must be heard: a share (0.5), a number (1 is one client), "
        "or all, and then an exchange is repeated until they are.",
    )
    deadline: float = Field(
        600.0, gt=0, allow_inf_nan=False, description="Seconds that an exchange may take."
    )
    secret: Literal["drawn", "seed"] = Field(
        "drawn",
        description="What keys a client's own draws (order of training, noise): a secret that it draws, or "
        "the public seed, as in a simulation, whose results it then repeats; noise can then be undone.",
    )
    staleness: int | None = Field(
        None,
        ge=0,
        le=MOST,
        description="Peers go on at their own pace, with each neighbour's newest message that is at most so "
        "many rounds old; by default they wait for each other.",
    )
    facts: FactsSection | None = Field(
        None, description="What the data look like, for members that do not have those of `data`."
    )

    @field_validator("quorum", mode="before")
    @classmethod
    def _whole_numbers_count(cls, value: object) -> object:
        if isinstance(value, float) and value > 1:
            raise UserError(f"deploy.quorum {value} is above 1.0; a number of clients is a whole number")
        return value


class MemoriesSection(Section):
    """What clients remember from round to round, in methods where they do."""

    resident: Literal["auto", "always", "never"] = Field(
        "auto",
        description="Whether memories are held in memory, or kept in a file and read as cohorts need them; "
        "by default held where those of all clients would take at most 2 GiB, or an eighth of a GPU.",
    )


class CheckpointSection(Section):
    """When the state is saved."""

    every: int = Field(10, ge=1, le=MOST, description="Rounds between checkpoints.")
    minutes: float = Field(
        10.0,
        ge=0,
        le=MOST,
        description="How old the last checkpoint may be when a round ends, for rounds that take long.",
    )


class NetworkSection(Section):
    """How a graph of peers behaves over time; by default it stays as it is and everything arrives."""

    redraw_every: int | None = Field(
        None, ge=1, le=MOST, description="Rounds after which a random graph changes."
    )
    loss: float = Field(0.0, ge=0, lt=1, description="How likely a message gets lost on a link.")
    leave: float = Field(0.0, ge=0, lt=1, description="How likely a node leaves before a round.")
    come_back: float = Field(0.5, gt=0, le=1, description="How likely a node that is away comes back.")
    returning: Literal["old", "fresh"] = Field("old", description="The model with which it comes back.")
    wake: float | tuple[float, float] = Field(
        1.0, description="How likely a node is awake in a round; two numbers: each node has a rate between."
    )
    staleness: int | None = Field(None, ge=0, le=MOST, description="Rounds after which a message is too old.")

    def network(self) -> Network:
        """The network as the engine takes it."""
        wake = self.wake if isinstance(self.wake, tuple) else (self.wake, self.wake)
        fresh = self.returning == "fresh"
        return Network(self.redraw_every, self.loss, self.leave, self.come_back, fresh, wake, self.staleness)


def named(value: Any) -> Any:
    """The value, as a mapping with a name where a name alone was given."""
    return {"name": value} if isinstance(value, str) else value


def read_data(value: Any) -> Any:
    """The section `data` from a name, a mapping or a Dataset; a function that is named is called."""
    if isinstance(value, Dataset):
        return {"name": value.name, "own": value}
    known = named(value)
    if isinstance(known, dict) and is_reference(known.get("name")) and known.get("own") is None:
        found = load(known["name"], "data set")
        return known if isinstance(found, Source) else made_data(known, found)
    if isinstance(known, dict) and known and all(isinstance(one, tuple | list) for one in known.values()):
        raise UserError("data: arrays by client become data by cs.Dataset.from_clients({...})")
    if value is not None and not isinstance(value, str | dict | DataSection):
        raise UserError(
            "data: expected a name or a Dataset (Dataset.from_arrays, Dataset.from_clients), "
            f"not {kind_of(value)}"
        )
    return known


def made_data(section: dict[str, Any], function: Any) -> dict[str, Any]:
    """The section `data` with what its function gives; keys that are no others are the function's options."""
    keys = DataSection.model_fields.keys()
    name, given = section["name"], section.get("options", {})
    if not isinstance(given, dict):
        raise UserError(f"data.options: expected arguments by their names, not {abridged(given)}")
    options = {**given, **{k: v for k, v in section.items() if k not in keys}}
    if not callable(function):
        raise UserError(f"data: {name} is {kind_of(function)}, not a function that gives data")
    check_options(f"data {name}", function, 0, options)
    try:
        own = function(**options)
    except UserError:
        raise
    except Exception as error:  # whatever a user's function raises
        frames = traceback.extract_tb(error.__traceback__)
        file = frames[:2][-1].filename  # where the function is; what it called may be anybody's
        line = [frame.lineno for frame in frames if frame.filename == file][-1]
        place = f"{Path(file).name}, line {line}"
        raise UserError(f"data: {name} fails in {place}: {described(error)}") from error
    if isinstance(own, dict):
        own = Dataset.from_clients(own, name)
    if not isinstance(own, Dataset):
        raise UserError(f"data: {name} gives {kind_of(own)}, not a Dataset or arrays by client")
    return {**{key: section[key] for key in section if key in keys}, "options": options, "own": own}
