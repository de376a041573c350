"""The forms of a run's files, which whoever reads them counts on: a folder may come from anybody."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, JsonValue, RootModel, ValidationError

from consilience.config.options import first_problem
from consilience.errors import DamageError
from consilience.plain import check_plain


@lru_cache(4096)
def _plain(text: str) -> str:
    check_plain(text)
    return text


Name = Annotated[str, AfterValidator(_plain)]
"""A text as configurations have them: nothing in it does anything to a terminal."""
Number = Annotated[float, Field(ge=-1e300, le=1e300)]
"""A number that is finite, as sums of such are."""
Whole = Annotated[int, Field(ge=0, lt=2**63)]


class FileForm(BaseModel):
    """What a file, or a part of it, must have; it may have more."""

    model_config = ConfigDict(extra="allow", strict=True, allow_inf_nan=False)


class Line(FileForm):
    """What lines about rounds and about clients have; all that is not named is a score."""

    __pydantic_extra__: dict[str, Number | None]
    setting: Name
    method: Name
    seed: Whole
    swept: dict[Name, JsonValue] = Field(default_factory=dict)


class MetricsLine(Line):
    """A method, a seed and a round."""

    round: Whole
    seconds: Number
    samples: Number
    bytes_up: Number
    bytes_down: Number
    traffic: dict[str, dict[str, Number]] = Field(default_factory=dict)
    dropped: list[str] = Field(default_factory=list)
    diverged: bool = False
    stopped: str = ""
    nodes: dict[str, list[Number | None]] = Field(default_factory=dict)


class ClientLine(Line):
    """A client at the end."""

    client: Whole
    name: str = ""
    curvature: list[Number | None] = Field(default_factory=list)


class Score(FileForm):
    """The score by which methods are compared."""

    model_config = ConfigDict(extra="forbid", strict=True)
    name: Name
    higher_is_better: bool = True
    percent: bool = False


class PlannedMethod(FileForm):
    """How long a method is to run."""

    rounds: Whole
    seeds: list[Whole]


class PlannedSetting(FileForm):
    """The methods of a setting, and how many rows of each class each client has."""

    methods: dict[Name, PlannedMethod]
    held: list[list[Whole]] = Field(default_factory=list)


class Plan(FileForm):
    """What a run is going to do."""

    metric: Score | None = None
    settings: dict[Name, PlannedSetting] = Field(default_factory=dict)


class Recipe(FileForm):
    """How rows were dealt."""

    name: Name = ""
    options: dict[Name, JsonValue] = Field(default_factory=dict)


class Dealt(FileForm):
    """Who got how many rows."""

    recipe: Recipe = Field(default_factory=Recipe)
    sizes: list[Whole] = Field(default_factory=list)
    holdout_sizes: list[Whole] = Field(default_factory=list)
    dropped: Whole = 0
    clients: list[str] = Field(default_factory=list)


class Split(FileForm):
    """How the rows of a setting were dealt, by seed."""

    data: str = ""
    seeds: dict[str, Dealt]


class Splits(RootModel[dict[Name, Split]]):
    """How the rows of all settings were dealt."""


class Configuration(FileForm):
    """What is looked at of a configuration."""

    note: str | None = None
    targets: list[Number] | dict[str, list[Number]] | None = None
    compare: list[dict[str, Any]] | None = None


class SummaryRow(FileForm):
    """A method at the end."""

    setting: Name
    method: Name
    seeds: Whole
    rounds: Whole
    swept: dict[Name, JsonValue] = Field(default_factory=dict)


class Summary(FileForm):
    """What the end of a run says of it."""

    metric: Name
    digest: Name
    methods: list[SummaryRow]
    environment: dict[str, str | Number | None] = Field(default_factory=dict)


def check_form(path: Path, form: type[BaseModel], value: object) -> None:
    """Refuse a file whose content has another form, in one line that names the place."""
    try:
        form.model_validate(value)
    except ValidationError as error:
        raise DamageError(f"{path} is damaged: {first_problem(error)}") from None


def check_lines(path: Path, form: type[BaseModel], lines: Sequence[object]) -> None:
    """Refuse a file of lines one of which has another form."""
    for number, line in enumerate(lines, 1):
        try:
            form.model_validate(line)
        except ValidationError as error:
            raise DamageError(f"{path} is damaged: line {number}: {first_problem(error)}") from None
