"""Where a site trains: on the device that it is told, or that its file names; a server needs none."""

from __future__ import annotations

import pytest
import torch
import yaml
from torch.testing import assert_close

from consilience import tree, wire
from consilience.config.config import read_config
from consilience.deploy.agreeing import agree
from consilience.deploy.carrying import InProcess, federate
from consilience.deploy.checking import check_one
from consilience.deploy.files import described, federation_of
from consilience.deploy.hub import Hub
from consilience.deploy.site import Site
from consilience.errors import UserError

CPU, META = torch.device("cpu"), torch.device("meta")
VALUES = {
    "method": "scaffold",
    "data": "mnist-sample",
    "model": "lenet5",
    "clients": 2,
    "rounds": 2,
    "local": {"steps": 2, "batch_size": 8},
    "evaluate": {"clients": True},
}


@pytest.fixture
def written(tmp_path):
    """The file of a federation whose sites are to have a GPU, written on a machine without one."""
    file = tmp_path / "federation.yaml"
    file.write_text(yaml.safe_dump(described(agree(read_config({**VALUES, "device": "cuda:99"})))))
    return file


def test_a_file_names_the_device_of_sites_and_a_server_needs_none(written):
    config = federation_of(written, here=False)
    assert config.device == "cuda:99"
    assert agree(config).device == CPU
    with pytest.raises(UserError, match="device cuda:99 is not available here"):
        _ = config.torch_device
    told = federation_of(written, here=True, device="cpu")
    assert told.torch_device == CPU
    assert agree(told).terms.digest == agree(config).terms.digest


def test_a_federation_is_compared_with_its_simulation_without_the_sites_device():
    values = {
        **VALUES,
        "model": {"name": "mlp", "hidden": [4]},
        "device": "cuda:99",
        "executor": "sequential",
    }
    assert check_one(agree(read_config(values))).equal


def test_data_are_on_the_device_and_initial_weights_are_not():
    agreement = agree(read_config(VALUES), META)  # which stands for any device that is not the CPU
    pool = agreement.dealt(0).pool
    assert isinstance(pool.inputs, torch.Tensor)
    assert {one.device for one in (pool.inputs, pool.targets, pool.shift, pool.scale)} == {META}
    assert {one.device for one in agreement.terms.sums.values()} == {META}
    assert {one.device for one in tree.flatten(agreement.initial()).values()} == {CPU}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_sites_on_a_gpu_end_where_those_on_the_cpu_do(tmp_path):
    device = torch.device("cuda:0")
    config = read_config({**VALUES, "dtype": "float64", "partition": {"name": "iid", "holdout": 0.1}})
    here, there = agree(config), agree(config, device)
    states = []
    for one, folder in ((here, tmp_path / "cpu"), (there, tmp_path / "gpu")):
        sites = {n: Site(one.terms, n, one.dealt(n), file=folder / f"{n}") for n in range(2)}
        hub = Hub(here.terms, here.initial())
        federate(hub, InProcess(sites))
        found, refused = hub.scores(InProcess(sites).ask(hub.score_orders()).data)
        assert not refused
        assert found.keys() == {"train", "own"}
        again = Site(here.terms, 0, here.dealt(0), file=folder / "0")  # a file serves on either device
        states.append((hub.state, found, wire.decode(again.answer(hub.score_orders()[0]))[0]))
    assert_close(states[0], states[1])
