"""Results as a page: for every recipe its tables, ours beside the paper's, and what became of its claims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from consilience.reproduce.claims import analysis_of_variance, judged, probability
from consilience.reproduce.figures import NOTHING, Figure, figure_of, why_missing
from consilience.reproduce.raw import Raw, kept_cells
from consilience.reproduce.recipes import Recipe, Table
from consilience.reproduce.settings import differences

HEAD = """\
# Results

What the papers have and what this library measured in the same setting: ours, and in brackets the paper's.
Every table is `consilience reproduce NAME`, a cell of it `consilience reproduce NAME --cell CELL`. This page
is made by `python tools/make_results.py` from the raw results in
[benchmarks/results/papers](benchmarks/results/papers).

Accuracies are those of the last round on the test set in per cent, mean and standard deviation over seeds;
rounds to a target are told for every seed. Of a grid the best variant on the test set is shown, as in the
papers. One method is ahead of another where it is better in every seed, or in the mean with p below 0.05 in
a paired t-test. (Of two methods between which there is nothing to choose, three seeds would say so once in
eight times.) A claim holds where all comparisons with at least three seeds say so, and in part where some
do; the verdict says how many of its comparisons could be made where that is not all. How long cells took
says little about speed: a machine may have computed several at a time
([docs/performance.md](docs/performance.md) is about that).
[docs/results.md](docs/results.md) says more about why.
"""


def results_page(recipes: Sequence[Recipe], results: Path) -> str:
    """The whole page, from the raw results that are kept in a folder."""
    found = [(recipe, dict(kept_cells(results / recipe.name))) for recipe in recipes]
    parts = [HEAD, _overview(found), *(recipe_page(recipe, cells, results) for recipe, cells in found)]
    return "\n".join(parts)


def _overview(found: Sequence[tuple[Recipe, Mapping[str, Raw]]]) -> str:
    """A table of all claims and their verdicts."""
    lines = ["| table | claim | verdict |", "|---|---|---|"]
    for recipe, cells in found:
        link = f"[{recipe.title}](#{_anchor(recipe.title)})"
        for claim in recipe.claims:
            lines.append(f"| {link} | {claim.says} | {judged(claim, recipe, cells).told} |")
    return "\n".join(lines) + "\n"


def _anchor(title: str) -> str:
    """The place of a heading on a page, as GitHub and MkDocs name it."""
    kept = "".join(letter for letter in title.lower() if letter.isalnum() or letter in " -_")
    return kept.replace(" ", "-")


def recipe_page(recipe: Recipe, cells: Mapping[str, Raw], results: Path | None = None) -> str:
    """What there is to say about a recipe.

    Args:
        recipe: The recipe.
        cells: What was measured, by cell.
        results: Where the raw results are kept, if they are linked.
    """
    parts = [f"## {recipe.title}\n", f"{recipe.paper}. `consilience reproduce {recipe.name}`\n"]
    if recipe.about:
        parts.append(f"{recipe.about}\n")
    if recipe.open:
        parts.append("What the paper leaves open, and what was used:\n")
        parts.append("\n".join(f"- {one}" for one in recipe.open) + "\n")
    parts += [table_page(table, cells) for table in recipe.tables]
    parts.append(_claims(recipe, cells, results))
    parts.append(_measured(recipe, cells, results))
    return "\n".join(part for part in parts if part)


def table_page(table: Table, cells: Mapping[str, Raw]) -> str:
    """A table of a recipe, in Markdown."""
    figures = {(r, c): figure_of(table, r, c, cells) for r in table.rows for c in table.columns}
    head = f"| {table.title} | {' | '.join(table.columns)} |"
    lines = [head, "|---" * (len(table.columns) + 1) + "|"]
    for row in table.rows:
        told = [_told(figures[row, column], table, row, column, cells) for column in table.columns]
        lines.append(f"| {row} | {' | '.join(told)} |")
    columns = [[figures[row, column] for row in table.rows] for column in table.columns]
    if len(table.rows) > 1:
        found = [
            analysis_of_variance([one for one in column if one is not None and one.kind == "score"])
            for column in columns
        ]
        if any(p is not None for p in found):
            told = [NOTHING if p is None else probability(p) for p in found]
            lines.append(f"| one-way analysis of variance, p | {' | '.join(told)} |")
    notes = [*_seeds(figures), *_variants(figures)]
    return "\n".join(lines) + "\n" + ("\n" + " ".join(notes) + "\n" if notes else "")


def _told(figure: Figure | None, table: Table, row: str, column: str, cells: Mapping[str, Raw]) -> str:
    """A figure, or why there is none, and the paper's in brackets where it has such a row."""
    ours = why_missing(table, row, column, cells) if figure is None else figure.told()
    if row not in table.paper:
        return ours
    printed = table.paper[row][list(table.columns).index(column)]
    return f"{ours} ({NOTHING if printed is None else _number(printed)})"


def _number(value: float) -> str:
    return f"{value:g}" if isinstance(value, int) else f"{value:.2f}"


def _seeds(figures: Mapping[tuple[str, str], Figure | None]) -> list[str]:
    """How many seeds there are, in a sentence."""
    counts = {len(one.values) for one in figures.values() if one is not None}
    if not counts:
        return []
    fewest, most = min(counts), max(counts)
    return [f"{most} seed{'s' * (most > 1)}." if fewest == most else f"{fewest} to {most} seeds."]


def _variants(figures: Mapping[tuple[str, str], Figure | None]) -> list[str]:
    """Which variants of a grid are shown, in a sentence for each row."""
    told: dict[str, tuple[list[str], int]] = {}
    for (row, _), figure in figures.items():
        if figure is not None and figure.variants > 1 and figure.kind != "megabytes":
            words, _ = told.setdefault(row, ([], figure.variants))
            words += [figure.variant] if figure.variant not in words else []
    return [f"{row}: {'; '.join(words)} of {count} variants." for row, (words, count) in told.items()]


def _claims(recipe: Recipe, cells: Mapping[str, Raw], results: Path | None) -> str:
    """What became of claims; what the recipe says about that is about the results that are kept."""
    parts = []
    for claim in recipe.claims:
        found = judged(claim, recipe, cells)
        why = f" ({found.why()})" if found.reasons else ""
        note = f" {claim.note}" if claim.note and results else ""
        parts.append(f"- **{found.told}**: {claim.says}{why}.{note}")
    return "\n".join(parts) + "\n" if parts else ""


def _measured(recipe: Recipe, cells: Mapping[str, Raw], results: Path | None) -> str:
    """How long each cell took and where, or that it is not measured."""
    wanted = {cell.name: cell.written for cell in recipe.study(out=results).cells} if results else {}
    lines = []
    for name in dict.fromkeys([*recipe.cells, *cells]):
        raw = cells.get(name)
        if raw is None:
            lines.append(f"- `{name}`: not measured yet")
            continue
        link = f"[{name}]({results / recipe.name / name})" if results else f"`{name}`"
        unlike = differences(raw.config, wanted[name]) if name in wanted else []
        state = "".join(f", {one}" for one in ([] if raw.finished else ["not finished"]) + unlike)
        lines.append(f"- {link}: {_duration(raw.seconds)} on {_machine(raw)}{state}")
    return "Cells, and how long their rounds took:\n\n" + "\n".join(lines) + "\n"


def _machine(raw: Raw) -> str:
    """What a cell was computed on, in words."""
    made = raw.environment
    device = str(made.get("device", "an unknown device"))
    if raw.config.get("device") == "cpu":
        device = f"the CPU, {device}" + (f", {made['threads']} threads" if "threads" in made else "")
    software = f", torch {made['torch']}" if "torch" in made else ""
    return f"{device} ({raw.config.get('precision', 'fp32')}{software})"


def _duration(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} minutes"
