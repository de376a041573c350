"""Configurations with mistakes are refused in a line that names the field, and at once; more in check 25."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

from consilience.config import load_config, read_config
from consilience.deploy.files import own_data
from consilience.errors import UserError, abridged
from consilience.experiment.planning import plan
from consilience.graphs import Complete
from consilience.plain import DEEPEST, read_yaml, write_yaml
from scorecard import configurations as harness
from scorecard.mutated_configurations import bases, mutations


def test_what_is_mutated_is_valid(tmp_path: Path):
    for name, (kind, values) in bases().items():
        if kind != "run":  # planning takes a while, and mutations do it, too
            assert harness.judge(harness.Mutation(name, kind, write_yaml(values)), tmp_path).valid


def test_mutations_of_a_seed_are_always_the_same():
    assert list(mutations(20, 5)) == list(mutations(20, 5))
    assert list(mutations(20, 5)) != list(mutations(20, 6))


def test_the_judge_can_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def use(error: BaseException) -> None:
        def raises(*_: object) -> None:
            raise error

        monkeypatch.setattr(harness, "_use", raises)

    one = harness.Mutation("x", "run", "rounds: 1", (), frozenset({"rounds"}))
    for error in (KeyError("x"), UserError("nothing that names it")):
        use(error)
        with pytest.raises(harness.Failure):
            harness.judge(one, tmp_path)
    use(UserError("rounds: too many"))
    assert not harness.judge(one, tmp_path).valid


LINES = [f"{key}: &{key} [{', '.join([f'*{last}'] * 9)}]" for last, key in itertools.pairwise("abcdefghi")]
BOMB = "\n".join(["a: &a [x]", *LINES])
"""Some hundred bytes that stand for 9^8 values."""
TEXTS = [
    # A text, and what the line must say.
    (BOMB, "b.0: the alias *'a'"),
    ("x: " + "[" * 1000 + "]" * 1000, f"more than {DEEPEST} levels"),
    ("x: " + "{a: " * 1000 + "}" * 1000, f"more than {DEEPEST} levels"),
    ("rounds: 3\nseeds: [1]\nrounds: 5", "rounds is there twice, again in line 3"),
    ("local: {steps: 3, steps: 4}", "local.steps is there twice, again in line 1"),
    ('name: "a\\0b"', "name: 'a\\x00b' holds the character U+0000"),
    ("seeds: " + "9" * 5000, "seeds: '999"),
    ("seeds: [" + "9" * 4000 + "]", "seeds.0: a whole number of 13288 bits"),
    ("note: " + "x" * 20_000, "note: 'xxx"),
    ("x" * 500 + ": 1", "is a text of 500 characters, and 200 are the most"),
    ("5: 6", "the top: a key must be text, not 5 (line 1)"),
    ("? [1, 2]\n: 3", "a key must be text, not [1, 2]"),
    ("note: !!python/object:os.system x", "note: the type 'tag:yaml.org,2002:python/object:os.system'"),
    ("note: !!binary aGk=", "note: the type"),
    ("rounds: !!int x", "rounds: 'x' cannot be read"),
    ("rounds: " + "1:" * 400_000 + "1", "rounds: '1:1:1"),  # each part multiplies the number before it
    ("rounds: 0x" + "f" * 50_000, "rounds: '0xfff"),
    ("rounds: 1\n---\nrounds: 2", "more than one document"),
    ("rounds: [1", "is not valid YAML"),
    ("# " + "x" * 2**20, "more than 1,048,576 bytes"),
]


@pytest.mark.parametrize(("text", "line"), TEXTS, ids=[line[:30] for _, line in TEXTS])
def test_text_beyond_the_limits_is_one_line(text: str, line: str, tmp_path: Path):
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(UserError) as caught:
        load_config(file)
    assert line in str(caught.value)
    assert str(file) in str(caught.value)
    assert len(str(caught.value)) < 500


def test_what_no_file_should_be(tmp_path: Path):
    (tmp_path / "c.yaml").write_bytes(b"name: \xff\xfe")
    with pytest.raises(UserError, match="is not valid YAML: it is not text in UTF-8"):
        load_config(tmp_path / "c.yaml")
    with pytest.raises(UserError, match="/dev/zero: it holds more than"):
        load_config(Path("/dev/zero"))
    with pytest.raises(UserError, match=r"--data: name: the alias"):
        own_data("{name: *x}")


def test_what_is_written_has_no_aliases():
    shared = [1, 2]
    values = {"a": shared, "b": [shared, {"c": shared}], "date": "2020-01-01", "none": None, "text": "5"}
    assert "&" not in write_yaml(values)
    assert read_yaml(write_yaml(values), "it") == values
    assert read_yaml("a: 2020-02-30\nb: 1e-3\nc: 0.5\nd: yes\ne: ~", "it") == {
        "a": "2020-02-30", "b": "1e-3", "c": 0.5, "d": True, "e": None,
    }  # fmt: skip


VALUES = [
    ({"data": {"own": {"clients": 3}}}, "unknown key 'data.own'"),
    ({"data": {"name": "mnist-sample", "own": 5}}, "unknown key 'data.own'"),
    ({"data": {"name": "json:loads", "options": 5}}, "data.options: expected arguments by their names"),
    ({"topology": {"name": "ring", "nodes": 10**12}}, "topology: nodes must be from 1 to 1,000,000"),
    ({"evaluate": {"coordinates": [f"a[{'9' * 5000}]"]}}, "evaluate.coordinates: 'a[999"),
    ({"evaluate": {"coordinates": ["a[\u0663]"]}}, "evaluate.coordinates: 'a[\u0663]' is no coordinate"),
    ({"evaluate": {"coordinates": ["x" * 9000]}}, "evaluate.coordinates: 'xxx"),
    ({"targets": [0.5] * 5000}, "targets: List should have at most 1000"),
    ({"metrics": ["f1_macro"] * 5000}, "metrics: 5,000 variants"),
    ({"memory": "\u0663GB"}, "memory: '\u0663GB' is no amount"),
    ({"init": ""}, "init: common, different or the path of a file"),
    ({"device": "cuda:" + "9" * 5000}, "device: String should match"),
    ({"device": "cuda:\u0663"}, "device: String should match"),
    ({"local": {"steps": 2**63}}, "local.steps: Input should be less than or equal to 1000000000"),
    ({"rounds": 10**18}, "rounds: Input should be less"),
    ({"clients": 10**9}, "clients: Input should be less"),
    ({"solver": {"lr": [0.1 * i for i in range(1, 10_001)]}}, "lr: 10,000 variants, and 1,000 are the most"),
    ({"method": {"name": "fedprox", "mu": [*range(1, 2000)]}}, "mu: 1,999 variants"),
    ({"partition": {"name": "dirichlet_class", "alpha": [*range(1, 2000)]}}, "alpha: 1,999 variants"),
    ({"seeds": [*range(5000)]}, "seeds: List should have at most 1000"),
    ({"out": ""}, "out: a folder is missing"),
    ({"out": "x" * 300}, "holds a name of more than 255 bytes"),
    ({"name": "x" * 300}, "name: String should match"),
    ({"evaluate": {"clients": 0}}, "evaluate.clients: Input should be a valid boolean, not 0"),
    ({"topology": {"name": "grid", "periodic": 1}}, "periodic: Input should be a valid boolean"),
    ({"l2": float("inf")}, "l2: Input should be a finite number"),
    ({"note": "\ud800"}, "note: '\\ud800' holds the character U+D800"),
    ({"init": "\u202eback"}, "init: '\\u202eback' holds the character U+202E"),
    ({"seeds": 10**5000}, "seeds: a whole number of 16610 bits"),
    ({"deploy": {"facts": {"shape": [1], "outputs": 2, "bogus": 1}}}, "unknown key 'deploy.facts.bogus'"),
    ({"deploy": {"facts": {"shape": [1], "outputs": 2, "shift": "x"}}}, "deploy.facts.shift: a number"),
    ({"deploy": {"facts": {"shape": [10**9] * 8, "outputs": 2}}}, "deploy.facts.shape: more than"),
    ({"method": ["x" * 5000]}, "unknown method 'xxx"),
]


@pytest.mark.parametrize(("values", "line"), VALUES, ids=[line[:30] for _, line in VALUES])
def test_values_beyond_the_limits_are_one_line(values: dict[str, object], line: str):
    with pytest.raises(UserError) as caught:
        read_config(values)
    assert line in str(caught.value)
    assert len(str(caught.value)) < 2050


PLANS = [
    ({"model": {"name": "mlp", "hidden": [10**18]}}, "model mlp: more parameters than can be counted"),
    ({"model": {"name": "mlp", "hidden": [10**10]}}, "model mlp: 7,950,000,000,010 parameters"),
    ({"method": {"name": "fedavg", "label": "x" * 300}}, "too long for a file's name"),
    ({"method": {"name": "fedavg", "label": "ä" * 50}}, "too long for a file's name"),
]


@pytest.mark.parametrize(("values", "line"), PLANS, ids=[line[:30] for _, line in PLANS])
def test_what_could_not_be_run_is_refused_when_it_is_planned(values: dict[str, object], line: str):
    with pytest.raises(UserError, match=line):
        plan(read_config({**values, "data": harness.tiny(), "clients": 2}).resolved())


@pytest.mark.parametrize("key", ["method.\u00b2", "method." + "9" * 5000, "method.\u0660"])
def test_an_odd_number_of_a_list_is_one_line(key: str, tmp_path: Path):
    file = tmp_path / "c.yaml"
    file.write_text("method: [fedavg]")
    with pytest.raises(UserError, match="a list of 1 is entered by a number"):
        load_config(file, [f"{key}=1"])


def test_a_graph_whose_matrix_does_not_fit_is_refused_before_it_is_drawn():
    with pytest.raises(
        UserError, match="topology complete: who hears whom of 1,000,000 nodes takes 8e\\+03 GB"
    ):
        Complete().adjacency(10**6, np.random.default_rng(0))


def test_a_label_of_a_setting_is_text():
    with pytest.raises(UserError, match=r"compare\[0\]: label must be text, not \['a'\]"):
        read_config({"compare": [{"label": ["a"]}]}).settings()


def test_whole_numbers_of_numpy_are_counts():
    assert read_config({"participation": np.int64(2)}).participants == 2


def test_a_large_seed_is_no_count(caplog: pytest.LogCaptureFixture):
    assert read_config({"seeds": 2**62}).seeds == [2**62]
    assert not caplog.records


def test_lists_that_multiply_are_counted_before_they_are_made():
    lists = {"partition": {"name": "dirichlet_class", "alpha": [*range(1, 101)]}, "clients": [*range(2, 102)]}
    with pytest.raises(UserError, match="10,000 variants"):
        read_config(lists).settings()


def test_a_message_is_one_line_of_some_length():
    assert str(UserError("a\nb")) == "a b"
    assert len(str(UserError("x" * 10**6))) < 2010
    assert abridged(10**5000) == "a number of 16610 bits"
    assert len(abridged({f"k{i}": "x" * 1000 for i in range(1000)})) < 400
