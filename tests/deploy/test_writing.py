"""Apps for Flower, as the command line writes them, and the terms that every member makes of them."""

from __future__ import annotations

import importlib
import subprocess
import sys
import tomllib

import pytest
import torch
import yaml
from typer.testing import CliRunner

from consilience.cli.app import app
from consilience.config import load_config
from consilience.config.config import read_config
from consilience.data import Dataset, load
from consilience.deploy.agreeing import agree
from consilience.deploy.files import federation_of, own_data
from consilience.deploy.flower.writing import write_app
from consilience.errors import UserError

VALUES = {
    "name": "trial",
    "method": {"name": "hwa", "guard": 1.0},
    "data": {"name": "mnist-sample", "normalize": "standard"},
    "model": {"name": "mlp", "hidden": [4]},
    "clients": 3,
    "rounds": 2,
    "seeds": [5],
    "deploy": {"quorum": 1},
}


@pytest.fixture
def written(tmp_path):
    file = tmp_path / "trial.yaml"
    file.write_text(yaml.safe_dump(VALUES))
    return file


def test_the_command_writes_an_app(written, tmp_path):
    done = CliRunner().invoke(
        app, ["deploy", "flower", str(written), "rounds=3", "--out", str(tmp_path / "a")]
    )
    assert done.exit_code == 0, done.output
    project = tomllib.loads((tmp_path / "a" / "pyproject.toml").read_text())
    assert project["tool"]["flwr"]["app"]["components"]["serverapp"] == "federation.server_app:app"
    assert project["tool"]["flwr"]["app"]["config"]["out"] == "runs/trial-hub"
    agreement = agree(load_config(written, ["rounds=3"]))
    assert agreement.terms.run in done.output
    assert (tmp_path / "a" / "federation" / "client_app.py").exists()


def test_all_members_make_the_same_terms_with_data_or_without(written, tmp_path):
    here = agree(load_config(written))
    write_app(here, tmp_path / "a")
    file = tmp_path / "a" / "federation" / "federation.yaml"
    for found in (agree(federation_of(file, here=True)), agree(federation_of(file, here=False))):
        assert found.terms.digest == here.terms.digest
        assert found.arm.config.deploy.quorum == 1
        assert isinstance(found.arm.config.deploy.quorum, int)  # 1.0 would be everybody
    assert federation_of(file, here=False).deploy.facts == here.facts


def test_data_that_only_others_have_are_not_looked_for(written, tmp_path):
    write_app(agree(load_config(written)), tmp_path / "a")
    file = tmp_path / "a" / "federation" / "federation.yaml"
    values = yaml.safe_load(file.read_text())
    values["data"]["name"] = "nowhere.to_be:found"
    file.write_text(yaml.safe_dump(values))
    assert agree(federation_of(file, here=False)).terms.population == 3
    with pytest.raises(UserError, match="nowhere"):
        federation_of(file, here=True)


@pytest.mark.parametrize(
    "targets", [torch.rand(40), torch.rand(40, 3), torch.arange(160).reshape(40, 4) % 2, torch.arange(40) % 5]
)
def test_the_form_of_targets_travels_too(targets, tmp_path):
    inputs = torch.rand(40, 6)
    data = Dataset.from_arrays("own", inputs, targets, inputs, targets)
    here = agree(read_config({**VALUES, "method": "fedavg", "data": data}))
    write_app(here, tmp_path / "a")
    there = agree(federation_of(tmp_path / "a" / "federation" / "federation.yaml", here=False))
    assert there.terms.digest == here.terms.digest
    assert there.brought(data).samples == 40
    other = Dataset.from_arrays("other", inputs, torch.rand(40, 7), inputs, torch.rand(40, 7))
    with pytest.raises(UserError, match="targets of shape"):
        there.brought(other)


def test_a_site_brings_its_own_rows(written):
    agreement = agree(load_config(written))
    own = agreement.brought(own_data("mnist-sample"))
    assert own.samples == len(load("mnist-sample").targets)
    with pytest.raises(UserError, match="unknown data set 'mnits'"):
        own_data("mnits")
    with pytest.raises(UserError, match="not valid YAML"):
        own_data("{name: ")
    inputs, targets = load("mnist-sample").inputs[:5, :, :7], load("mnist-sample").targets[:5]
    small = Dataset.from_arrays("small", inputs, targets, inputs, targets)
    with pytest.raises(UserError, match="do not fit the federation"):
        agreement.brought(small)
    whole = load("mnist-sample")
    rows, labels = whole.inputs[:5], whole.targets[:5]
    shares = Dataset.from_arrays("shares", rows / 255, labels, rows / 255, labels)
    with pytest.raises(UserError, match="inputs of type float32 do not fit the federation, which has uint8"):
        agreement.brought(shares)
    measured = Dataset.from_arrays("measured", rows, labels / 2, rows, labels / 2)
    with pytest.raises(UserError, match="targets of type float32 do not fit the federation, which has int64"):
        agreement.brought(measured)


def test_folders_and_graphs_are_refused_in_one_line(written, tmp_path):
    agreement = agree(load_config(written))
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("precious")
    with pytest.raises(UserError, match="holds other files"):
        write_app(agreement, tmp_path / "full")
    write_app(agreement, tmp_path / "again")
    write_app(agreement, tmp_path / "again")
    graph = agree(read_config({**VALUES, "method": "dechw", "topology": "ring"}))
    with pytest.raises(UserError, match="consilience node"):
        write_app(graph, tmp_path / "graph")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--client", "3"], "there is no site 3: there are 0 to 2"),
        (["--client", "0", "--data", "mnits"], "unknown data set 'mnits'"),
        (["--client", "0", "--device", "cuda:99"], "device cuda:99 is not available here; use cpu or auto"),
        (["--client", "0", "--device", "abacus"], "device"),
    ],
)
def test_a_site_that_cannot_begin_says_so(words, says, written, tmp_path):
    rest = ["--socket", str(tmp_path / "s"), "--out", str(tmp_path / "o")]
    done = CliRunner().invoke(app, ["site", str(written), *words, *rest])
    assert isinstance(done.exception, UserError)
    assert says in str(done.exception)
    assert not (tmp_path / "s").exists()


def test_without_flower_there_is_one_clear_line(monkeypatch):
    for name in [name for name in sys.modules if name.startswith("consilience.flower")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "flwr", None)
    with pytest.raises(ImportError, match=r"pip install 'consilience\[flower\]'"):
        importlib.import_module("consilience.flower")


def test_an_app_can_be_written_where_there_is_no_flower(written, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "flwr", None)
    done = CliRunner().invoke(app, ["deploy", "flower", str(written), "--out", str(tmp_path / "a")])
    assert done.exit_code == 0, done.output
    assert "Flower is not installed here" in done.output


def test_who_is_started_for_every_message_does_not_import_torch():
    pytest.importorskip("flwr", reason="Flower is not installed: pip install 'consilience[flower]'")
    code = "import sys, consilience.deploy.flower.client; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
