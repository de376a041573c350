"""Single parameters by name and place."""

from __future__ import annotations

import json

import pytest
import torch

import consilience as cs
from consilience.config.config import read_config
from consilience.errors import UserError
from consilience.learning.coordinate import Coordinate

PARAMS = {"head.weight": torch.arange(6.0).reshape(2, 3), "scale": torch.tensor(1.0)}
GRAPH = {
    "data": "mnist-sample",
    "clients": 4,
    "rounds": 2,
    "model": {"name": "mlp", "hidden": [4]},
    "topology": "ring",
    "partition": "iid",
}


@pytest.mark.parametrize("text", ["head.weight[1,2]", " head.weight [ 1 , 2 ] ", "head.weight[1, 2]"])
def test_the_written_form_is_read(text):
    one = Coordinate.parse(text)
    assert one == Coordinate("head.weight", (1, 2))
    assert str(one) == "head.weight[1, 2]"
    one.check(PARAMS)
    assert one.of(PARAMS["head.weight"]) == 5
    assert one.of(PARAMS["head.weight"].expand(7, 3, 2, 3)).shape == (7, 3)


@pytest.mark.parametrize(
    "text", ["", "head.weight", "head.weight[]", "head.weight[-1]", "[3]", "a[1][2]", "a[x]"]
)
def test_other_forms_are_refused(text):
    with pytest.raises(UserError, match="is no coordinate; write a parameter and a place in it"):
        Coordinate.parse(text)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("haed.weight[1, 2]", "no parameter 'haed.weight'; it has head.weight [2, 3], scale []"),
        ("head.weight[2, 0]", r"head.weight has the shape [2, 3]"),
        ("head.weight[1]", r"head.weight has the shape [2, 3]"),
        ("scale[0]", r"scale has the shape []"),
    ],
)
def test_places_that_a_model_does_not_have_are_refused(text, line):
    with pytest.raises(UserError) as refused:
        Coordinate.parse(text).check(PARAMS)
    assert line in str(refused.value)


def test_a_run_records_them_and_draws_them(tmp_path):
    followed = ["head.bias[3]", "body.1.weight[0,400]"]
    result = cs.run(["dechw", "dechetero"], **GRAPH, evaluate={"coordinates": followed}, out=str(tmp_path))
    for record in result.records:
        names = {name for name in record["nodes"] if name.endswith("]")}
        expected = {
            f"{kind} {one}"
            for kind in ("curvature", "share")
            for one in ("head.bias[3]", "body.1.weight[0, 400]")
        }
        assert names == (expected if record["method"] == "dechw" else set())
        for name in names:
            assert len(record["nodes"][name]) == 4
            assert all(value >= 0 for value in record["nodes"][name])
    weights = [record["nodes"]["share head.bias[3]"] for record in result.records[:2]]
    assert all(0 < value < 1 for row in weights for value in row)
    assert result.path is not None
    assert (result.path / "coordinates.png").stat().st_size > 10_000
    assert (
        "share head.bias[3]"
        in json.loads((result.path / "metrics.jsonl").read_text().splitlines()[0])["nodes"]
    )


def test_mistakes_are_found_before_the_run():
    with pytest.raises(UserError, match=r"evaluate.coordinates: 'head.bias' is no coordinate"):
        read_config({"evaluate": {"coordinates": ["head.bias"]}}, "config")
    with pytest.raises(UserError, match=r"the model has no parameter 'hed.bias'"):
        cs.run("dechw", **GRAPH, evaluate={"coordinates": ["hed.bias[0]"]})
    with pytest.raises(UserError, match=r"evaluate.coordinates is about the nodes of a graph: set topology"):
        cs.run("hwa", **{**GRAPH, "topology": "star"}, evaluate={"coordinates": ["head.bias[0]"]})
