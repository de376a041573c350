"""Every public name says what it is: the pages of reference are made from docstrings."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import pkgutil
from collections.abc import Iterator
from types import ModuleType

import pytest

import consilience

NEEDS_A_GPU = "consilience.kernels.triton_"
NEEDS_FLOWER = () if importlib.util.find_spec("flwr") else ("consilience.flower", "consilience.deploy.flower")
MODULES = [
    found.name
    for found in pkgutil.walk_packages(consilience.__path__, "consilience.")
    if found.name != "consilience.__main__" and not found.name.startswith((NEEDS_A_GPU, *NEEDS_FLOWER))
]


def undocumented(module: ModuleType) -> Iterator[str]:
    """Public names that are defined in a module and say nothing."""
    if not module.__doc__:
        yield module.__name__
    for name, value in vars(module).items():
        own = getattr(value, "__module__", None) == module.__name__
        # Pydantic leaves classes with brackets in their names.
        public = name.isidentifier() and not name.startswith("_")
        if not public or not own or not (inspect.isclass(value) or inspect.isfunction(value)):
            continue
        if not value.__doc__:
            yield f"{module.__name__}.{name}"
        if inspect.isclass(value):
            yield from undocumented_methods(value)


def undocumented_methods(cls: type) -> Iterator[str]:
    """Public methods of a class that say nothing, and that fulfil no contract in which they are described."""
    for name, value in vars(cls).items():
        method = getattr(value, "__func__", value)  # of a class method or a static one
        if name.startswith("_") or not (inspect.isfunction(method) or isinstance(value, property)):
            continue
        contracts = [getattr(base, name) for base in cls.__mro__ if name in vars(base)]
        if not any(contract.__doc__ for contract in contracts):
            yield f"{cls.__module__}.{cls.__qualname__}.{name}"


@pytest.mark.parametrize("name", MODULES)
def test_public_names_are_documented(name: str):
    assert not list(undocumented(importlib.import_module(name)))


def test_what_says_nothing_is_found():
    class Contract:
        """A contract."""

        def described(self) -> None:
            """What it does."""

    class Fulfilled(Contract):
        """One that fulfils it, and more."""

        def described(self) -> None: ...

        def silent(self) -> None: ...

        @property
        def quiet(self) -> None: ...

        @classmethod
        def still(cls) -> None: ...

    names = [name.rsplit(".", 1)[-1] for name in undocumented_methods(Fulfilled)]
    assert names == ["silent", "quiet", "still"]
