"""Tables for papers and for other programs."""

from __future__ import annotations

import csv
import io

import pytest

from consilience.experiment.reading import read_runs
from consilience.problems import Regression
from consilience.report.papers import csv_text, latex_text
from consilience.report.runs import grouped


@pytest.fixture
def groups(tmp_path, written):
    """Two methods: the first is better at the end, the other reaches 0.5 sooner, and 0.9 never."""

    def value(place, seed, number):
        return [0.1515 * number - 0.006 * seed, 0.6 - 0.001 * seed * number][place]

    written(tmp_path / "run", ("a_b & c%", "hwa"), values=value)
    return grouped(read_runs([tmp_path]))


def test_latex_has_the_best_in_bold_and_takes_any_name(groups):
    lines = latex_text(groups).splitlines()
    assert lines[0].startswith("% needs \\usepackage{booktabs}")
    assert lines[2].startswith("% star: 3 seeds; one-way ANOVA over 2 methods, at least 3 seeds each: F = ")
    assert lines[3:] == [
        r"\begin{tabular}{lrrrrr}",
        r"\toprule",
        r"Method & Accuracy (\%) & Rounds to 50 \% & Rounds to 90 \% & Sent & Received \\",
        r"\midrule",
        r"a\_b \& c\% & \textbf{90.30 $\pm$ 0.60} & 4.0 & \textbf{6.0 (2/3)} & 6.00 kB & 3.00 kB \\",
        r"hwa & 59.40 $\pm$ 0.60 & \textbf{1.0} & -- & 12.0 kB & 3.00 kB \\",
        r"\bottomrule",
        r"\end{tabular}",
    ]


def test_values_are_as_they_were_recorded(groups):
    first, second = csv.DictReader(io.StringIO(csv_text(groups)))
    assert (first["method"], first["runs"], first["finished"]) == ("a_b & c%", "run", "True")
    assert float(first["final_mean"]) == pytest.approx(0.903)
    assert (first["rounds_to_0.5"], first["seeds_that_reached_0.9"]) == ("4.0", "2")
    assert (second["rounds_to_0.9"], second["seeds_that_reached_0.9"]) == ("", "0")
    assert float(first["anova_p"]) < 0.001


def test_every_method_is_tested_against_the_best(tmp_path, written):
    written(tmp_path / "run", ("fedavg", "hwa", "swa"))
    *others, best = csv.DictReader(io.StringIO(csv_text(grouped(read_runs([tmp_path])))))
    assert [best[key] for key in ("difference", "test", "p", "p_holm")] == [""] * 4
    assert [one["test"] for one in others] == ["paired t-test"] * 2
    assert [float(one["difference"]) for one in others] == pytest.approx([-2 / 9 + 0.02, -1 / 9 + 0.01])
    assert all(float(one["p"]) < float(one["p_holm"]) < 0.05 for one in others)


@pytest.mark.parametrize(
    ("name", "printed"),
    [
        ("[2cm] a", r"{[}2cm{]} a"),
        ("* a", "{*} a"),
        ("a\n\\input{b}", r"a \textbackslash{}input\{b\}"),
        ("a|b", "a$|$b"),
    ],
)
def test_no_name_is_a_command_of_latex(tmp_path, written, name, printed):
    written(tmp_path / "run", (name, "hwa"), setting=name)
    written(tmp_path / "other", ("hwa",), setting="other")
    lines = latex_text(grouped(read_runs([tmp_path]))).splitlines()
    assert sum(line.startswith(f"{printed} & ") for line in lines) == 1
    assert sum(line.endswith(rf"\emph{{{printed}}}}} \\") for line in lines) == 1
    assert all(line.startswith(("%", "\\", "Method", "hwa & ", printed)) for line in lines)


def test_scores_below_zero_have_a_minus(tmp_path, written):
    written(tmp_path / "run", ["fedavg"], metric=Regression.metric, values=lambda *_: -0.5)
    assert r"fedavg & \textbf{$-$0.5000 $\pm$ 0} & " in latex_text(grouped(read_runs([tmp_path])))


def test_settings_are_apart_and_metrics_have_tables_of_their_own(tmp_path, written):
    written(tmp_path / "a")
    written(tmp_path / "b", setting="ring")
    written(tmp_path / "c", setting="other", targets=[0.7])
    text = latex_text(grouped(read_runs([tmp_path])))
    assert text.count(r"\begin{tabular}") == 2
    assert r"\multicolumn{6}{l}{\emph{ring}} \\" in text
