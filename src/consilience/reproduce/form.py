"""What stands where in the file of a recipe: the kinds of values, looked at before any is used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from consilience.config.options import first_problem
from consilience.errors import UserError


class _Form(BaseModel):
    """Kinds of values by key; what is missing, or unknown, is found by whoever looks for it."""

    model_config = ConfigDict(strict=True)


class Selection(_Form):
    """Where to look for results, and for what."""

    cell: str = ""
    setting: str = ""
    method: str = ""
    score: str = ""
    target: float = 0
    round: int = 0
    megabytes: Any = None


class _Table(_Form):
    title: str = ""
    where: dict[str, Any] = {}
    rows: dict[str, str | dict[str, Any]] = {}
    columns: dict[str, str | dict[str, Any]] = {}
    paper: dict[str, list[float | None]] = {}


class _Claim(_Form):
    says: str = ""
    tables: str | list[str] = ""
    columns: str | list[str] = ""
    ahead: str | list[str] = ""
    of: str | list[str] = ""
    alike: float = 0
    note: str = ""


class _Recipe(_Form):
    title: str = ""
    paper: str = ""
    about: str = ""
    open: list[str] = []
    quick: dict[str, Any] = {}
    tables: list[_Table] = []
    claims: list[_Claim] = []
    cells: list[dict[str, Any]] = []


def check_recipe(given: Mapping[str, Any]) -> None:
    """Refuse values of other kinds than the file of a recipe has."""
    _check(given, _Recipe)


def check_selection(given: Mapping[str, Any]) -> None:
    """Refuse values of other kinds than selectors have."""
    _check(given, Selection)


def _check(given: Mapping[str, Any], form: type[_Form]) -> None:
    try:
        form.model_validate(dict(given))
    except ValidationError as error:
        raise UserError(first_problem(error)) from None
