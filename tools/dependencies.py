"""Print what pyproject.toml asks for: the package's own dependencies, and those of extras that are named.

python tools/dependencies.py [EXTRA ...]
"""

from __future__ import annotations

import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]


def main(extras: list[str]) -> None:
    """Print one requirement a line, as pip reads them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    optional = project["optional-dependencies"]
    print("\n".join([*project["dependencies"], *(one for extra in extras for one in optional[extra])]))


if __name__ == "__main__":
    main(sys.argv[1:])
