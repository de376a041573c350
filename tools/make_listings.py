"""Make anew what is listed about the package: its inventory, and from it docs/methods.md.

python tools/make_listings.py
"""

from __future__ import annotations

from pathlib import Path

from consilience.cli.inventory import write_inventory
from consilience.cli.listings import INVENTORY, methods_page, read_inventory

ROOT = Path(__file__).parents[1]


def main() -> None:
    """Write both files."""
    write_inventory(ROOT / "src" / "consilience" / "cli" / INVENTORY)
    (ROOT / "docs" / "methods.md").write_text(methods_page(read_inventory()))


if __name__ == "__main__":
    main()
