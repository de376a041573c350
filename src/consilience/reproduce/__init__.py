"""Papers' tables, run again: recipes, raw results, figures beside the papers', and verdicts on claims."""

from __future__ import annotations

from consilience.reproduce.page import results_page as results_page
from consilience.reproduce.recipes import Recipe as Recipe
from consilience.reproduce.recipes import find_recipe as find_recipe
from consilience.reproduce.recipes import read_recipe as read_recipe
from consilience.reproduce.recipes import recipe_files as recipe_files
