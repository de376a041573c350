"""A model of one's own: a module, something that makes one, or the place where Python finds either."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from torch import nn

from consilience.errors import UserError, described, kind_of, unknown
from consilience.models.spec import ModelSpec
from consilience.plugins import is_reference, load, path_of

UNWRITTEN = "<python>"
"""What a configuration says in place of a model that no file can name."""

SHAPE, OUTPUTS = ("shape",), ("outputs", "num_classes")
"""Parameters by which a function asks for the shape of one input, and for how many numbers to give."""


@dataclass(frozen=True, eq=False)
class OwnModel:
    """A model that is none of this library's.

    Attributes:
        source: A module, which every seed and client starts from; or what makes one, each time anew.
        path: Where Python finds the source, as `package.module:Name`; None where no other process could.
        options: Arguments for what makes it.
    """

    source: nn.Module | Callable[..., object]
    path: str | None = None
    options: Mapping[str, object] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What errors and files call it."""
        if self.path is not None:
            return self.path
        named = type(self.source) if isinstance(self.source, nn.Module) else self.source
        return str(getattr(named, "__qualname__", type(named).__name__))

    @property
    def fixed(self) -> bool:
        """Whether it comes with its weights, so that all seeds and clients start from the same."""
        return isinstance(self.source, nn.Module)

    def written(self) -> dict[str, object]:
        """What stands for it in a configuration."""
        if self.path is None:
            return {"name": UNWRITTEN, "of": self.name}
        return {"name": self.path, **self.options}

    def build(self, shape: tuple[int, ...], outputs: int) -> nn.Module:
        """The module: the one that was given, or one that is made now, from torch's default generator.

        Args:
            shape: The shape of one input, without a batch axis.
            outputs: How many numbers the model shall give for an input.
        """
        if isinstance(self.source, nn.Module):
            return self.source
        positional, named = self._arguments(shape, outputs)
        try:
            made = self.source(*positional, **named)
        except UserError:
            raise
        except Exception as error:
            raise UserError(f"model {self.name} cannot be made: {described(error)}") from error
        if not isinstance(made, nn.Module):
            raise UserError(f"model {self.name} gives {kind_of(made)}, not a torch.nn.Module")
        return made

    def _arguments(self, shape: tuple[int, ...], outputs: int) -> tuple[list[object], dict[str, object]]:
        """What to call the source with: its options, and what it asks for about the data."""
        options = dict(self.options)
        try:
            parameters = inspect.signature(self.source).parameters
        except (TypeError, ValueError):  # of something that is not written in Python
            return [], options
        kinds = {one.kind for one in parameters.values()}
        for key in options:
            if key not in parameters and inspect.Parameter.VAR_KEYWORD not in kinds:
                raise unknown(f"option of model {self.name}", key, parameters)
        told: dict[str, object] = {**dict.fromkeys(SHAPE, shape), **dict.fromkeys(OUTPUTS, outputs)}
        asked = {key: value for key, value in told.items() if key in parameters and key not in options}
        missing = [
            key
            for key, one in parameters.items()
            if one.default is one.empty and one.kind in _NEEDED and key not in {**options, **asked}
        ]
        if (
            len(missing) == 2
            and not asked
            and parameters[missing[1]].kind is not inspect.Parameter.KEYWORD_ONLY
        ):
            return [shape, outputs], options
        if missing:
            raise UserError(
                f"model {self.name} needs {' and '.join(missing)}: give options, or call what it should be "
                "told about the data shape and outputs"
            )
        return [], {**asked, **options}


_NEEDED = (
    inspect.Parameter.POSITIONAL_ONLY,
    inspect.Parameter.POSITIONAL_OR_KEYWORD,
    inspect.Parameter.KEYWORD_ONLY,
)
"""The kinds of parameters that need a value where they have no default."""


def names_unwritten(value: object) -> bool:
    """Whether a value in a configuration stands for a model that no file can name."""
    return isinstance(value, Mapping) and value.get("name") == UNWRITTEN


def names_own(name: object) -> bool:
    """Whether a name in a configuration is that of a model of one's own."""
    return is_reference(name) or name == UNWRITTEN


def read_own(value: object) -> OwnModel | None:
    """The model of one's own that a value stands for; None where it is no such value.

    Args:
        value: A module, something that makes one, `package.module:Name`, or a mapping with such a name and
            options.
    """
    if isinstance(value, OwnModel):
        return value
    if isinstance(value, nn.Module):
        return OwnModel(value)
    if isinstance(value, str | Mapping):
        options = {"name": value} if isinstance(value, str) else {str(k): v for k, v in value.items()}
        name = options.pop("name", None)
        return _of_path(str(name), options) if names_own(name) else None
    if isinstance(value, functools.partial) and not value.args:
        plain = all(isinstance(one, _PLAIN) for one in value.keywords.values())
        path = path_of(value.func) if plain else None
        return OwnModel(value) if path is None else OwnModel(value.func, path, value.keywords)
    return OwnModel(value, path_of(value)) if callable(value) else None


_PLAIN = (int, float, str, bool, list, type(None))
"""What an option in a file may be."""


def _of_path(path: str, options: Mapping[str, object]) -> OwnModel | None:
    if path == UNWRITTEN:
        raise UserError(
            f"model: that of this run ({options.get('of')}) was given from Python and no file can name it: "
            "continue with cs.resume(..., model=the same model)"
        )
    source = load(path, "model")
    if isinstance(source, type) and issubclass(source, ModelSpec):
        return None  # a registry knows what to do with it
    if isinstance(source, nn.Module):
        if options:
            raise UserError(f"model {path} is a module that was made already, so it takes no options")
        return OwnModel(source, path)
    if not callable(source):
        raise UserError(f"model {path} is {kind_of(source)}: neither a module nor a function that makes one")
    return OwnModel(source, path, options)
