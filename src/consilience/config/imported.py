"""Things of one's own that a configuration names: `package.module:name`."""

from __future__ import annotations

import importlib
import sys
from functools import reduce
from pathlib import Path
from typing import Any

from consilience.errors import UserError, unknown


def imported(path: str) -> Any:
    """The thing that `package.module:name` (or `:Class.method`) names.

    Modules are looked for where Python looks, and in the current folder.
    """
    home, _, name = path.partition(":")
    here = str(Path.cwd())
    added = here not in sys.path and "" not in sys.path
    try:
        if added:
            sys.path.insert(0, here)
        module = importlib.import_module(home)
    except (ModuleNotFoundError, ValueError) as error:
        if (
            isinstance(error, ModuleNotFoundError)
            and error.name
            and not f"{home}.".startswith(f"{error.name}.")
        ):
            raise  # it is there, and imports something that is not
        raise UserError(f"{path}: there is no module {home!r}, neither installed nor in {here}") from None
    finally:
        if added:
            sys.path.remove(here)
    try:
        return reduce(getattr, name.split("."), module)
    except AttributeError:
        public = [one for one in vars(module) if not one.startswith("_")]
        raise unknown(f"name in {home}", name, public) from None
