"""Make RESULTS.md anew, from the recipes and the raw results that are kept.

python tools/make_results.py
"""

from __future__ import annotations

import os
from pathlib import Path

from consilience.reproduce import find_recipe, recipe_files, results_page
from consilience.reproduce.raw import RESULTS

ROOT = Path(__file__).parents[1]
PAGE = "RESULTS.md"


def main() -> None:
    """Write the page."""
    os.chdir(ROOT)  # links are relative to it
    recipes = [find_recipe(file) for file in recipe_files()]
    Path(PAGE).write_text(results_page(recipes, RESULTS))


if __name__ == "__main__":
    main()
