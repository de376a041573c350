"""Parts from elsewhere: how a name in a configuration becomes a class, whoever wrote it.

A registry knows the parts that come with this package. Others are named by where they are,
`package.module:Name`, or by the name under which an installed package announces them: an entry point of the
group `consilience.plugins`, called as the part itself is. They are imported when somebody asks for them.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache, reduce
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar, cast

from consilience.errors import UserError, kind_of, unknown

GROUP = "consilience.plugins"
"""The group of entry points by which packages announce parts."""

REFERENCE = r"^[A-Za-z_][\w.]*:[A-Za-z_][\w.]*$"
"""What names a part by where it is: `package.module:Name`."""

Part = TypeVar("Part")


class Registry(Mapping[str, Part]):
    """The parts of one kind by name: those that come with this package, and those of plugins."""

    def __init__(
        self,
        kind: str,
        builtin: Mapping[str, Part],
        meant: Callable[[object], bool],
        fault: Callable[[Any], str | None] = lambda found: None,
    ) -> None:
        """The registry of one kind.

        Args:
            kind: What such a part is called in errors, e.g. "rule".
            builtin: The parts that come with this package.
            meant: Whether an object is to be a part of this kind.
            fault: What is wrong with an object that is to be one; None where nothing is.
        """
        self.kind, self.builtin, self._meant, self._fault = kind, builtin, meant, fault

    def __getitem__(self, name: str) -> Part:
        if is_reference(name):
            return self._checked(load(name, self.kind), f"{self.kind} {name}")
        plugins = announced(name)
        if not plugins:
            return self.builtin[name]
        found = {plugin: load(plugin.value, f"plugin {called(plugin)}") for plugin in plugins}
        own = [plugin for plugin in plugins if self._meant(found[plugin])]
        if name in self.builtin and not own:
            return self.builtin[name]
        first, *others = own or plugins
        if name in self.builtin:
            raise UserError(
                f"plugin {called(first)}: the name is taken, {self.kind} {name} comes with consilience"
            )
        if others and own:
            raise UserError(f"plugin {called(first)}: the name is taken by {called(others[0])}")
        return self._checked(found[first], f"plugin {called(first)}", name)

    def __iter__(self) -> Iterator[str]:
        """The names of all that can be chosen; faulty plugins are left out."""
        yield from self.builtin
        names = dict.fromkeys(plugin.name for plugin in announced())
        yield from (name for name in names if name not in self.builtin and self.fault(name) is None)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def means(self, plugin: EntryPoint) -> bool:
        """Whether a plugin is to be of this kind."""
        return self._meant(load(plugin.value, f"plugin {called(plugin)}"))

    def fault(self, name: str) -> str | None:
        """What is wrong with the name of a plugin, in one line; None where it can be chosen."""
        try:
            _ = self[name]
        except UserError as error:
            return str(error)
        return None

    def _checked(self, found: object, who: str, name: str | None = None) -> Part:
        """The object, once it is a part of this kind that has a name, and that of its entry point if any."""
        own = getattr(found, "name", None)
        if not self._meant(found):
            fault: str | None = f"is no {self.kind}"
        elif not (isinstance(own, str) and own):
            fault = "has no name: give the class `name = ...`"
        elif name is not None and own != name:
            fault = f"is called {own!r}: its entry point must have the same name"
        else:
            fault = self._fault(found)
        if fault is not None:
            raise UserError(f"{who}: {_described(found)} {fault}")
        return cast(Part, found)


def registry(module: Mapping[str, object], base: Callable[..., Part], kind: str) -> Registry[type[Part]]:
    """The parts of a kind that a module has imported, by the names that configurations use.

    So a new part needs one line: the import in the `__init__` of its folder.

    Args:
        module: What the module holds.
        base: The class of which all parts of this kind are subclasses.
        kind: What such a part is called, e.g. "rule".
    """
    root = cast(type[Part], base)  # a type checker takes no abstract class for a type[...]
    parts = [one for one in module.values() if isinstance(one, type) and issubclass(one, root)]
    builtin = {vars(part)["name"]: part for part in parts if "name" in vars(part)}
    return Registry(kind, builtin, lambda found: isinstance(found, type) and issubclass(found, root), _unfit)


def instances(module: Mapping[str, object], base: Callable[..., Part], kind: str) -> Registry[Part]:
    """The objects of a class that a module has imported, by their names; see `registry`."""
    root = cast(type[Part], base)
    builtin = {cast(Any, one).name: one for one in module.values() if isinstance(one, root)}
    return Registry(kind, builtin, lambda found: isinstance(found, root))


def _unfit(found: type) -> str | None:
    """Why a class cannot be made from the options of a configuration; None where it can."""
    missing = getattr(found, "__abstractmethods__", ())
    if missing:
        return f"does not define {', '.join(sorted(missing))}"
    options = getattr(found, "__dataclass_params__", None)
    return None if options is not None and options.frozen else "must be a frozen dataclass"


def is_reference(name: object) -> bool:
    """Whether a name says where a part is: `package.module:Name`."""
    return isinstance(name, str) and re.match(REFERENCE, name) is not None


def load(reference: str, kind: str) -> object:
    """What is called `package.module:Name`; modules in the working directory are found, too.

    Args:
        reference: The module and the name in it.
        kind: What it is to be, for the text of an error, e.g. "rule".

    Raises:
        UserError: There is no such thing, or its module cannot be imported.
    """
    path, _, name = reference.partition(":")
    who = kind if kind.startswith("plugin ") else f"{kind} {reference}"
    try:
        module = _module(path)
    except (Exception, SystemExit) as error:
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise UserError(f"{who}: cannot import {path} ({reason})") from error
    try:
        return reduce(getattr, name.split("."), cast(object, module))
    except AttributeError:
        raise UserError(f"{who}: {unknown(f'name in {path}', name, _public(module))}") from None


def name_of(part: object) -> str:
    """The name by which a configuration finds the class of a part again: its own, or where the class is."""
    cls = type(part)
    name: str = getattr(part, "name", cls.__name__)
    ours = cls.__module__.partition(".")[0] == __name__.partition(".")[0]
    if ours or any(load(plugin.value, f"plugin {called(plugin)}") is cls for plugin in announced(name)):
        return name
    return path_of(cls) or name


def place_of(found: Any) -> str:
    """Where an object of Python was defined, as `package.module:Name`; one that has no name, its class."""
    named = found if hasattr(found, "__qualname__") else type(found)
    return f"{named.__module__}:{named.__qualname__}"


def path_of(found: object) -> str | None:
    """The `package.module:Name` under which another process finds the same; None where there is none."""
    home, _, name = place_of(found).partition(":")
    try:  # what functions define, and the program itself, cannot be found by others
        known = reduce(getattr, name.split("."), cast(object, sys.modules.get(home)))
    except AttributeError:
        return None
    return f"{home}:{name}" if known is found and home != "__main__" else None


def announced(name: str | None = None) -> tuple[EntryPoint, ...]:
    """The entry points of installed packages, or those of a name; nothing is imported."""
    return tuple(plugin for plugin in _announced() if name in (None, plugin.name))


@cache
def _announced() -> tuple[EntryPoint, ...]:
    """All entry points: to look for them takes longer than to read a configuration."""
    return tuple(entry_points(group=GROUP))


def package_of(plugin: EntryPoint) -> str:
    """The installed package that announces a plugin."""
    return plugin.dist.name if plugin.dist is not None else "unknown"


def called(plugin: EntryPoint) -> str:
    """A plugin as errors name it: what it is called, its package, and where it is."""
    return f"{plugin.name} of {package_of(plugin)} ({plugin.value})"


def _described(found: object) -> str:
    return found.__qualname__ if isinstance(found, type) else kind_of(found)


def _public(module: ModuleType) -> list[str]:
    """The names that a module defines itself, or all where that is nothing."""
    names = [name for name in vars(module) if not name.startswith("_")]
    own = [name for name in names if getattr(vars(module)[name], "__module__", "") == module.__name__]
    return own or names


def _module(name: str) -> ModuleType:
    """The module of a name; the working directory is looked at last."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        here = str(Path.cwd())
        if error.name != name.partition(".")[0] or here in sys.path:
            raise
    sys.path.append(here)
    return importlib.import_module(name)
