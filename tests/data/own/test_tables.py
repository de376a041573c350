"""Tables as people have them: a CSV or Parquet file with numbers, categories, a target and a hospital."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import consilience as cs

TINY: dict[str, Any] = {"model": {"name": "mlp", "hidden": [4]}, "rounds": 1, "local": {"batch_size": 8}}
RANDOM = np.random.default_rng(0)
ROWS = 60
COLUMNS: dict[str, Any] = {
    "patient": [f"p{row}" for row in range(ROWS)],
    "age": RANDOM.integers(20, 90, ROWS),
    "dose": np.round(RANDOM.normal(5, 2, ROWS), 6),
    "ward": RANDOM.choice(["A", "B", "C"], ROWS),
    "hospital": np.repeat(["Basel", "Bern", "Genève"], [10, 20, 30]),
    "outcome": RANDOM.choice(["dead", "alive"], ROWS),
    "stay": RANDOM.integers(1, 400, ROWS),
}


def written(path: Path, columns: dict[str, Any], between: str = ",") -> Path:
    lines = [
        between.join(columns),
        *(between.join(map(str, row)) for row in zip(*columns.values(), strict=True)),
    ]
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def without(*labels: str) -> dict[str, Any]:
    return {label: column for label, column in COLUMNS.items() if label not in labels}


@pytest.mark.parametrize("between", [",", ";", "\t"])
def test_a_csv_file_of_hospitals(tmp_path: Path, between: str):
    path = written(tmp_path / "visits.csv", COLUMNS, between)
    data = cs.Dataset.from_table(path, "outcome", client="hospital", drop=["patient"])
    assert (data.name, data.clients, data.outputs) == ("visits", ("Basel", "Bern", "Genève"), 2)
    assert data.shape == (2 + 3 + 1,)  # age and dose, three wards, stay
    assert torch.bincount(data.groups).tolist() == [8, 16, 24]
    assert torch.bincount(data.test_groups).tolist() == [2, 4, 6]
    result = cs.run("fedavg", data=data, **TINY)
    assert [line["name"] for line in result.clients] == ["Basel", "Bern", "Genève"]


def test_training_rows_alone_standardise():
    test = {label: np.asarray(column)[:7] for label, column in without("patient").items()}
    data = cs.Dataset.from_table(without("patient"), "outcome", test=test, client="hospital")
    numbers = data.inputs[:, [0, 1, 5]].double()
    assert torch.allclose(numbers.mean(0), torch.zeros(3, dtype=torch.float64), atol=1e-6)
    assert torch.allclose(numbers.std(0, correction=0), torch.ones(3, dtype=torch.float64), atol=1e-6)
    assert torch.equal(data.inputs[:7], data.test_inputs)
    wards = data.inputs[:, 2:5]
    assert torch.equal(wards.argmax(1), torch.from_numpy(np.unique(COLUMNS["ward"], return_inverse=True)[1]))
    assert torch.equal(wards.sum(1), torch.ones(ROWS))
    raw = cs.Dataset.from_table(without("patient"), "outcome", standardise=False)
    assert float(raw.inputs[:, 0].min()) >= 20


def test_a_value_that_training_rows_lack_is_none_of_theirs():
    test = {label: np.asarray(column)[:2] for label, column in without("patient").items()}
    test["ward"] = np.array(["D", "A"])
    data = cs.Dataset.from_table(without("patient", "hospital"), "outcome", test=test)
    assert data.test_inputs[:, 2:5].tolist() == [[0, 0, 0], [1, 0, 0]]


def test_texts_among_the_numbers_of_test_rows_are_no_categories():
    test = {**without("patient"), "age": mixed("age", "n/a")["age"]}
    with pytest.raises(cs.UserError, match=r"visits, test: column 'age' holds numbers, but 'n/a' in row 5"):
        cs.Dataset.from_table(without("patient"), "outcome", test=test, name="visits")


def test_missing_values_of_pandas():
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame(without("patient"))
    for kind, value in (("string", "A"), ("Int64", 1), ("datetime64[ns]", "2024-01-01")):
        column = pandas.Series([value] * (ROWS - 1) + [None], dtype=kind)
        with pytest.raises(cs.UserError, match="column 'ward' lacks 1 of 60 values, the first in row 60"):
            cs.Dataset.from_table(frame.assign(ward=column), "outcome")


def test_parquet_and_csv_are_the_same(tmp_path: Path):
    arrow = pytest.importorskip("pyarrow")
    parquet = pytest.importorskip("pyarrow.parquet")
    parquet.write_table(arrow.table(COLUMNS), tmp_path / "visits.parquet")
    options: dict[str, Any] = {"client": "hospital", "drop": ["patient"]}
    stored = cs.Dataset.from_table(tmp_path / "visits.parquet", "outcome", **options)
    text = cs.Dataset.from_table(written(tmp_path / "visits.csv", COLUMNS), "outcome", **options)
    assert stored.digest() == text.digest()


def test_numbers_to_predict():
    data = cs.Dataset.from_table(without("patient", "outcome"), "stay", problem="regression")
    assert data.targets.is_floating_point()
    assert cs.run("fedavg", data=data, clients=3, **TINY).score is not None
    several = cs.Dataset.from_table(without("patient"), ["dose", "age"], problem=cs.Regression())
    assert several.outputs == 2


def mixed(label: str, text: str) -> dict[str, Any]:
    column = np.asarray(COLUMNS[label]).astype(object)
    column[4] = text
    return {**COLUMNS, label: column}


def gap(label: str) -> dict[str, Any]:
    return mixed(label, "")


REFUSED = [
    (gap("dose"), {"drop": ["patient"]}, "column 'dose' lacks 1 of 60 values, the first in row 5"),
    (gap("ward"), {"drop": ["patient"]}, "column 'ward' lacks 1 of 60 values, the first in row 5"),
    (mixed("age", "n/a"), {"drop": ["patient"]}, "column 'age' holds numbers, but 'n/a' in row 5; mend"),
    (COLUMNS, {"drop": ["patient"], "holdout": "0.2"}, "holdout must be between 0 and 1, not '0.2'"),
    (COLUMNS, {"client": "hospitl"}, "unknown column of visits 'hospitl'; did you mean 'hospital'?"),
    (COLUMNS, {"drop": ["patents"]}, "unknown column of visits 'patents'; did you mean 'patient'?"),
]


@pytest.mark.parametrize(("columns", "options", "message"), REFUSED)
def test_what_cannot_be_used_is_refused_by_name(tmp_path: Path, columns, options, message):
    with pytest.raises(cs.UserError) as caught:
        cs.Dataset.from_table(written(tmp_path / "visits.csv", columns), "outcome", **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_identifiers_are_no_categories(tmp_path: Path):
    many = {label: np.tile(np.asarray(column), 2) for label, column in COLUMNS.items()}
    many["patient"] = [f"p{row}" for row in range(2 * ROWS)]
    with pytest.raises(cs.UserError, match=r"'patient' has 96 different values.*drop=..patient"):
        cs.Dataset.from_table(written(tmp_path / "visits.csv", many), "outcome")


def test_files_that_are_no_tables(tmp_path: Path):
    with pytest.raises(cs.UserError, match="cannot be read"):
        cs.Dataset.from_table(tmp_path / "missing.csv", "outcome")
    (tmp_path / "ragged.csv").write_text("a,b\n1,2\n\n3\n")
    with pytest.raises(cs.UserError, match="line 4 has 1 values for 2 columns"):
        cs.Dataset.from_table(tmp_path / "ragged.csv", "a")
    (tmp_path / "twice.csv").write_text("a,b,a\n1,2,3\n4,5,6\n")
    with pytest.raises(cs.UserError, match="two columns are called 'a'"):
        cs.Dataset.from_table(tmp_path / "twice.csv", "b")
    with pytest.raises(cs.UserError, match="two columns are called '1'"):
        cs.Dataset.from_table({1: [1, 2], "1": [3, 4], "b": [0, 1]}, "b")


def test_decimal_commas_between_semicolons(tmp_path: Path):
    columns = without("patient", "age")
    points = written(tmp_path / "points.csv", columns, ";")
    commas = tmp_path / "commas.csv"
    commas.write_text(points.read_text().replace(".", ","))
    found = [cs.Dataset.from_table(path, "outcome", client="hospital", name="x") for path in (points, commas)]
    assert found[0].digest() == found[1].digest()
    with commas.open("a") as file:
        file.write(commas.read_text().splitlines()[-1].replace(",", "?") + "\n")
    with pytest.raises(cs.UserError, match=r"column 'dose' holds numbers, but '.*\?.*' in row 61"):
        cs.Dataset.from_table(commas, "outcome", client="hospital")
    categories = cs.Dataset.from_table(
        written(tmp_path / "some.csv", mixed("age", "n/a")), "outcome", drop=["patient"], categorical=["age"]
    )
    assert categories.shape[0] > found[0].shape[0]
