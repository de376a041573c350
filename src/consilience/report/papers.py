"""The comparison of methods as papers and other programs take it: LaTeX, and comma-separated values."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from typing import Any

from rich.text import Text

from consilience.problems import Metric
from consilience.report.runs import Group
from consilience.report.significance import Variance, against, shown_p, variance
from consilience.report.summary import MethodSummary, soonest, target_key
from consilience.report.table import bold, shown_final, shown_rounds
from consilience.report.units import human_bytes

SPECIAL = str.maketrans(
    {letter: f"\\{letter}" for letter in "&%$#_{}"}
    | {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}"}
    | {"<": "$<$", ">": "$>$", "|": "$|$", "±": r"$\pm$", "×": r"$\times$", "–": "--", "−": "$-$"}
    | {"[": "{[}", "]": "{]}", "*": "{*}"}  # after the end of a line they would say how it ends
)
"""What LaTeX would take for something else than a letter."""


def csv_text(groups: Sequence[Group]) -> str:
    """A line for every method of every group; scores are as they were recorded, not in per cent.

    `difference` and the p-values beside it are those of the tests against the method that is the best of its
    group, which has none.
    """
    rows = [row for group in groups for row in _rows(group)]
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def _rows(group: Group) -> list[dict[str, Any]]:
    finals = group.finals()
    found, tests = variance(finals), against(group.best, finals)
    rows = []
    for one, test in zip(group.entries, tests, strict=True):
        told = one.summary
        reached = {target: told.rounds_to[target_key(target)] for target in group.targets}
        rows.append(
            {
                "setting": group.title,
                "method": one.label,
                "runs": " ".join(one.runs),
                "finished": one.finished,
            }
            | {f"swept.{key}": value for key, value in told.swept.items()}
            | {"metric": group.metric.name, "seeds": told.seeds, "rounds": told.rounds}
            | {"final_mean": told.final_mean, "final_std": told.final_std}
            | {"best_mean": told.best_mean, "best_std": told.best_std}
            | {f"rounds_to_{target:g}": one["mean"] for target, one in reached.items()}
            | {f"seeds_that_reached_{target:g}": one["reached"] for target, one in reached.items()}
            | {"bytes_up": told.bytes_up, "bytes_down": told.bytes_down, "diverged": told.diverged}
            | {"difference": test and test.difference, "test": test and test.test}
            | {"p": test and test.p, "p_holm": test and test.holm}
            | {"anova_p": found and found.p}
        )
    return rows


def latex_text(groups: Sequence[Group]) -> str:
    """Tables for the package booktabs, one for each metric, whose best values are bold in each setting."""
    metrics = dict.fromkeys((group.metric, group.targets) for group in groups)
    return "\n".join(
        _latex([group for group in groups if (group.metric, group.targets) == one], *one) for one in metrics
    )


def _latex(groups: Sequence[Group], metric: Metric, targets: Sequence[float]) -> str:
    heads = ["Method", f"{metric.name.capitalize()} {f'({metric.unit})' if metric.unit else ''}".rstrip()]
    heads += [f"Rounds to {metric.scale * target:.4g} {metric.unit}".rstrip() for target in targets]
    heads += ["Sent", "Received"]
    lines = [f"% {line}" for line in _origins(groups)]
    lines += [f"\\begin{{tabular}}{{l{'r' * (len(heads) - 1)}}}", r"\toprule", _line([*map(Text, heads)])]
    for group in groups:
        lines.append(r"\midrule")
        if len(groups) > 1:
            lines.append(f"\\multicolumn{{{len(heads)}}}{{l}}{{\\emph{{{_word(group.title)}}}}} \\\\")
        lines += map(_line, _cells(group.summaries(), metric, targets))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", ""])


def _origins(groups: Sequence[Group]) -> list[str]:
    """What a reader of the source should know of the numbers."""
    runs = {run: None for group in groups for one in group.entries for run in one.runs}
    lines = [r"needs \usepackage{booktabs}; mean and standard deviation over seeds, on the test set"]
    lines += [" ".join(f"runs: {', '.join(runs)}".split())]
    for group in groups:
        seeds = sorted({one.summary.seeds for one in group.entries})
        told = f"{group.title}: {' to '.join(map(str, dict.fromkeys((seeds[0], seeds[-1]))))} seeds"
        lines.append(" ".join(f"{told}; {shown_variance(variance(group.finals()))}".split()))
    return lines


def shown_variance(found: Variance | None) -> str:
    """An analysis of variance in one sentence."""
    if found is None:
        return "one method, so that there is nothing to test"
    over = f"one-way ANOVA over {found.methods} methods"
    if found.p is None:
        return f"{over}: none ({found.why})"
    return (
        f"{over}, at least {found.seeds} seeds each: F = {found.statistic:.3g}, p {_equal(shown_p(found.p))}"
    )


def _equal(p: str) -> str:
    return p if p.startswith("<") else f"= {p}"


def _cells(rows: Sequence[MethodSummary], metric: Metric, targets: Sequence[float]) -> list[list[Text]]:
    """The cells of the lines of a table; what is best is bold."""
    best = metric.best(row.final_mean for row in rows if row.final_mean is not None)
    keys = [target_key(target) for target in targets]
    first = {key: soonest([row.rounds_to[key] for row in rows]) for key in keys}
    return [
        [
            Text(row.method),
            bold(shown_final(row, metric).replace("-", "−"), when=row.final_mean == best),
            *(bold(shown_rounds(row.rounds_to[key]), when=first[key][place]) for key in keys),
            Text(human_bytes(row.bytes_up)),
            Text(human_bytes(row.bytes_down)),
        ]
        for place, row in enumerate(rows)
    ]


def _line(cells: Sequence[Text]) -> str:
    words = [(_word(cell.plain), cell.style == "bold") for cell in cells]
    return " & ".join(f"\\textbf{{{word}}}" if marked else word for word, marked in words) + r" \\"


def _word(text: str) -> str:
    r"""The text as LaTeX prints it.

    >>> print(_word("fedprox mu=0.1_a & 80 %"))
    fedprox mu=0.1\_a \& 80 \%
    >>> print(_word("[1mm]\n*"))
    {[}1mm{]} {*}
    """
    return " ".join(text.split()).translate(SPECIAL)
