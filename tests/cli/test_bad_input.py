"""Bad input is one clear line and exit code 2: no traceback, and nothing is written or lost."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

REFUSED = [
    # (overrides, what the line says)
    # keys
    (["roundz=5"], "unknown key 'roundz'; did you mean 'rounds'?"),
    (["local.epoch=1"], "unknown key 'local.epoch'; did you mean 'local.epochs'?"),
    (["data.normalise=unit"], "unknown key 'data.normalise'; did you mean 'data.normalize'?"),
    (["evaluate.evry=1"], "unknown key 'evaluate.evry'; did you mean 'evaluate.every'?"),
    (["checkpoint.evry=1"], "unknown key 'checkpoint.evry'; did you mean 'checkpoint.every'?"),
    (["method.mu=1"], "unknown option of method fedavg 'mu'"),
    (["method={name: fedprox, mi: 1}"], "unknown option of method fedprox 'mi'; did you mean 'mu'?"),
    (["model.hiden=[8]"], "unknown option of model mlp 'hiden'; did you mean 'hidden'?"),
    (["compare=[{rounds: 1}, {roundz: 2}]"], "compare[1]: unknown key 'roundz'; did you mean 'rounds'?"),
    (["device=cpu", "precision=tf32"], "precision tf32 is for float32 on a GPU, not for float32 on cpu"),
    # names
    (["method=fedavgg"], "unknown method 'fedavgg'; did you mean 'fedavg'?"),
    (["method.name=hwaa"], "unknown method 'hwaa'; did you mean 'hwa'?"),
    (["method=[fedavg, hwaa]"], "unknown method 'hwaa'; did you mean 'hwa'?"),
    (["method={objective: proxima}"], "unknown objective 'proxima'; did you mean 'proximal'?"),
    (
        ["method={objective: proximal, rul: x}"],
        "unknown part of a composed method 'rul'; did you mean 'rule'?",
    ),
    (["model=mlpp"], "unknown model 'mlpp'; did you mean 'mlp'?"),
    (["partition=iidd"], "unknown partition 'iidd'; did you mean 'iid'?"),
    (["topology=rings"], "unknown topology 'rings'; did you mean 'ring'?"),
    (["solver=sdg"], "unknown solver 'sdg'; did you mean 'sgd'?"),
    (["data=mnits"], "unknown data set 'mnits'; did you mean 'mnist'?"),
    (
        ["executor=fast"],
        "executor: Input should be 'auto', 'batched', 'sequential', 'ray' or 'ray-sequential'",
    ),
    (["workers=2"], "workers and cluster are those of executor: ray"),
    (["executor=ray", "cluster="], "cluster: "),
    (["device=tpu"], "device: "),
    (["dtype=float16"], "dtype: Input should be 'float32' or 'float64', not 'float16'"),
    (["init=same"], "init: expected common, different or a file of weights, and there is no file same"),
    (["name=../x"], "name: String should match pattern"),
    # parts, transforms and networks
    (["method={rule: {name: krum, f: 4}}"], "krum with f=4 needs at least 11 messages a round"),
    (["method={name: hwa, transforms: [noisy]}"], "unknown transform 'noisy'; did you mean 'noised'?"),
    (["method={name: hwa, transforms: noised}"], "method: transforms is a list"),
    (["method={name: hwa, then: fedavg}"], "method: then says what comes next and when"),
    (["method={name: hwa, then: {method: fedavg, after: soon}}"], "after is a number of rounds, not 'soon'"),
    (["network.loss=0.1"], "network is about a graph of peers"),
    (["topology=ring", "network.wake=[0.9, 0.5]"], "the smaller first"),
    (["topology=ring", "network.los=0.1"], "unknown key 'network.los'; did you mean 'network.loss'?"),
    (["method=cfa"], "is defined on a graph of peers: set topology"),
    (["method={name: fedavg, weighting: metropolis}"], "follow from the degrees of a graph: set topology"),
    (["method=fedlin", "participation=2"], "set participation 1.0 and failure_rate 0"),
    (["local.clip=0"], "local.clip: Input should be greater than 0"),
    (["method=scaffold", "local.clip=1"], "take local.clip away"),
    # types
    (["rounds=many"], "rounds: Input should be a valid integer"),
    (["rounds=2.5"], "rounds: Input should be a valid integer"),
    (["rounds=true"], "rounds: "),
    (["seeds=true"], "seeds"),
    (["participation=true"], "participation"),
    (["solver={name: sgd, lr: yes}"], "lr: "),
    (["solver={name: sgd, lr: fast}"], "lr: Input should be a valid number"),
    (["local=3"], "local: "),
    (["data=3"], "data: "),
    (["method=3"], "method: a name is missing"),
    (["method=[]"], "method: the list is empty"),
    (["compare=[3]"], "compare.0: "),
    (["targets=high"], "targets: "),
    (["out="], "out: "),
    (["rounds=2024-13-45"], "rounds"),
    (["model.hidden=8"], "hidden: Input should be a valid tuple, not 8"),
    (["model.hidden=[0]"], "hidden widths of at least 1"),
    # overrides
    (["rounds"], "override 'rounds' is not of the form key=value"),
    (["=5"], "override '=5' is not of the form key=value"),
    (["rounds=[1"], "override 'rounds=[1': the value is not valid YAML"),
    (["rounds.x=3"], "override 'rounds.x=3'"),
    (["rounds.x.y=3"], "override 'rounds.x.y=3'"),
    (["method=[fedavg, hwa]", "method.name=swa"], "a list of 2 is entered by a number"),
    (["method=[fedavg, hwa]", "method.2=swa"], "a list of 2 is entered by a number"),
    # numbers
    (["rounds=0"], "rounds: Input should be greater than or equal to 1, not 0"),
    (["rounds=-1"], "rounds: Input should be greater than or equal to 1, not -1"),
    (["clients=0"], "clients: Input should be greater than or equal to 1, not 0"),
    (["clients=6001"], "6001 clients cannot share 6000 training rows"),
    (["participation=4"], "participation 4 is more than the 3 clients"),
    (["participation=1.5"], "participation 1.5 is above 1.0"),
    (["participation=0"], "participation must be above 0, not 0"),
    (["participation=.nan"], "participation must be above 0, not nan"),
    (["failure_rate=1.5"], "failure_rate: Input should be less than or equal to 1, not 1.5"),
    (["seeds=[]"], "seeds: "),
    (["seeds=[0, 0]"], "seeds: [0, 0] names a seed twice"),
    (["seeds=[-1]"], "seeds.0: Input should be greater than or equal to 0, not -1"),
    (["seeds=[18446744073709551616]"], "seed"),
    (["targets=[90]"], "targets: accuracy 90 is not in (0, 1]; write 0.9 for 90 %"),
    (["lanes=0"], "lanes: "),
    (["checkpoint.every=0"], "checkpoint.every: "),
    (["local={epochs: 1, steps: 2}"], "local: give epochs or steps, not both"),
    (["local.batch_size=0"], "local.batch_size: "),
    (["solver={name: sgd, lr: -1}"], "lr must be at least 0, not -1"),
    (["solver={name: sgd, lr: .nan}"], "lr must be at least 0, not nan"),
    (["solver={name: sgd, nesterov: true}"], "nesterov needs a momentum above 0"),
    (["method={name: fedprox, mu: -1}"], "mu must be at least 0, not -1"),
    (["method={name: fedprox, mu: [0.1, -1]}"], "mu must be at least 0, not -1"),
    (["method={name: fedprox, mu: []}"], "mu: the list of values is empty"),
    (["method={name: fedprox, mu: [0.1, 0.1]}"], "mu"),
    (["method=[fedavg, fedavg]"], "'fedavg' is there twice; give one of them a label"),
    (["method={name: fagh, row_index: 999999}"], "row_index 999999 is outside the model's 6370 parameters"),
    # partitions
    (["partition={name: dirichlet_class, alpha: -1}"], "alpha must be a finite number above 0, not -1"),
    (["partition={name: dirichlet_client, alpha: 0}"], "alpha must be a finite number above 0, not 0"),
    (["partition={name: iid, holdout: 1}"], "holdout must be at least 0 and below 1, not 1"),
    (["partition={name: shards_two_classes, pure: true}"], "6 pure shards cannot hold 10 classes"),
    (["partition=shards_two_classes", "clients=4000"], "need at least 8000 training rows, there are 6000"),
    (["partition={name: sizes, fractions: [0.5, 0.4]}"], "2 fractions for 3 clients"),
    (["partition=by_writer"], "does not say who wrote its rows"),
    # methods where they cannot work
    (["method=fedcurv", "topology=ring"], "fedcurv: its Fisher sums need one hub that hears every client"),
    (["method=scaffold", "topology=ring"], "scaffold: its control is a mean over the whole population"),
    (["method=fagh", "topology=ring"], "fagh: neighbours' gradients belong to other models"),
    (["method=fedsgd", "topology=ring"], "fedsgd: neighbours' gradients belong to other models"),
    (["method=scaffold", "solver={name: sgd, momentum: 0.9}"], "scaffold: option II needs plain SGD"),
    (
        ["method={name: dechw, preset: released}", "topology=ring"],
        "dechw: early stopping needs held-out data",
    ),
    (["method=dechetero"], "dechetero is fedavg on a graph; set topology"),
    (["method=dechomo"], "dechomo is fedavg on a graph; set topology"),
    # topologies
    (["topology={name: erdos_renyi, p: 0.001}"], "with 3 nodes and p = 0.001 was connected"),
    (["topology={name: erdos_renyi, p: 0}"], "p must be in (0, 1], not 0"),
    (["topology={name: barabasi_albert, m: 5}"], "m must be from 1 to 2 for 3 nodes, not 5"),
    (["topology={name: ring, nodes: 5}"], "topology has 5 nodes, but clients is 3"),
    (["topology={name: ring, nodes: 0}", "clients="], "nodes"),
    (["topology={name: ring, nodes: -3}", "clients="], "nodes"),
    # models
    (["model=vgg11"], "model vgg11 needs images of at least 32x32, got shape (1, 28, 28)"),
]


@pytest.mark.parametrize(
    ("overrides", "line"), REFUSED, ids=lambda value: " ".join(value) if isinstance(value, list) else ""
)
def test_refused(
    overrides: list[str],
    line: str,
    command: Callable[..., Any],
    tiny: Path,
    out: Path,
    monkeypatch: pytest.MonkeyPatch,
    refused: Callable[..., None],
):
    monkeypatch.chdir(tiny.parent)  # else the line would hold the name of this test
    refused(command("run", tiny.name, *overrides), line)
    assert not out.exists()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device here")
def test_a_device_that_is_not_there(
    command: Callable[..., Any], tiny: Path, out: Path, refused: Callable[..., None]
):
    refused(command("run", tiny, "device=cuda"), "device cuda is not available here; use cpu or auto")
    assert not out.exists()


FILES = [
    (b"", "expected keys and values, found"),
    (b"# nothing\n", "expected keys and values, found"),
    (b"- name: x\n", "expected keys and values, found list"),
    (b"just text\n", "expected keys and values, found str"),
    (b"name: [x\n", "is not valid YAML"),
    (b"name: x\n  rounds: 3\n", "is not valid YAML"),
    (b"\xff\xfe\x00", "is not valid YAML"),
    (b"when: 2024-13-45\n", "unknown key 'when'"),
    (b"rounds: !!python/name:os.system\n", "rounds: the type 'tag:yaml.org,2002:python/name:os.system'"),
    (b"3: 4\n", "3"),
    (b"rounds: 3\nroundz: 4\n", "unknown key 'roundz'; did you mean 'rounds'?"),
]


@pytest.mark.parametrize(("content", "line"), FILES)
@pytest.mark.parametrize("verb", ["run", "partition"])
def test_files_that_are_no_configuration(
    verb: str,
    content: bytes,
    line: str,
    command: Callable[..., Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refused: Callable[..., None],
):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "bad.yaml"
    path.write_bytes(content)
    answer = command(verb, path)
    refused(answer, line)
    assert str(path) in answer.err
    assert [entry.name for entry in tmp_path.iterdir()] == ["bad.yaml"]


def test_a_file_that_is_not_there(command: Callable[..., Any], tmp_path: Path, refused: Callable[..., None]):
    refused(
        command("run", tmp_path / "no.yaml"), f"cannot read {tmp_path / 'no.yaml'}: No such file or directory"
    )


def test_a_folder_in_place_of_a_file(
    command: Callable[..., Any], tmp_path: Path, refused: Callable[..., None]
):
    refused(command("run", tmp_path), f"cannot read {tmp_path}: Is a directory")


@pytest.mark.parametrize("name", ["mnist", "cifar10", "femnist", "tiny-imagenet", "emnist-letters"])
@pytest.mark.parametrize("verb", ["run", "partition"])
def test_data_that_are_not_there(
    verb: str,
    name: str,
    command: Callable[..., Any],
    tiny: Path,
    out: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    refused: Callable[..., None],
):
    (tmp_path / "data").mkdir()
    monkeypatch.setenv("CONSILIENCE_DATA", str(tmp_path / "data"))
    answer = command(verb, tiny, f"data={name}")
    refused(answer, str(tmp_path / "data"))
    assert name in answer.err
    assert not out.exists()


@pytest.mark.parametrize("place", ["out", "out/tiny"])
def test_a_file_in_the_way(
    place: str, command: Callable[..., Any], tiny: Path, tmp_path: Path, refused: Callable[..., None]
):
    path = tmp_path / place
    path.parent.mkdir(exist_ok=True)
    path.write_text("mine")
    refused(command("run", tiny), str(path))
    assert path.read_text() == "mine"


def test_getting_data_that_nobody_knows(command: Callable[..., Any], refused: Callable[..., None]):
    refused(command("data", "get", "mnits"), "unknown data set 'mnits'; did you mean 'mnist'?")


def test_getting_data_without_a_network(
    command: Callable[..., Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, refused: Callable[..., None]
):
    monkeypatch.setenv("CONSILIENCE_DATA", str(tmp_path))
    monkeypatch.setenv("CONSILIENCE_MIRROR", "http://127.0.0.1:9")  # discard: nobody listens
    answer = command("data", "get", "mnist")
    refused(answer, "cannot download http://127.0.0.1:9/train-images-idx3-ubyte.gz (")
    assert str(tmp_path) in answer.err
    assert "put here by hand" in answer.err
