"""From a configuration to a federation: terms, members' own data, the hub at work, `deploy check`."""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest
import torch
from torch.testing import assert_close
from typer.testing import CliRunner

import consilience as cs
from consilience.cli.app import app
from consilience.config.config import Config, read_config
from consilience.deploy.agreeing import agree, facts_of
from consilience.deploy.carrying import InProcess
from consilience.deploy.journal import AUDIT, METRICS, Journal, read_lines, read_status
from consilience.deploy.serving import serve
from consilience.deploy.site import Order, Site
from consilience.errors import UserError
from consilience.monitor.tail import Tail

VALUES = {
    "data": "mnist-sample",
    "partition": "shards_two_classes",
    "clients": 3,
    "rounds": 2,
    "local": {"epochs": 1, "batch_size": 64},
    "model": {"name": "mlp", "hidden": [8]},
    "method": "hwa",
    "executor": "sequential",
}


def config(**changes) -> Config:
    return read_config({**VALUES, **changes})


def test_check_compares_federations_with_their_simulations(tmp_path):
    file = tmp_path / "f.yaml"
    file.write_text(json.dumps(VALUES))
    found = CliRunner().invoke(
        app, ["deploy", "check", str(file), "method=[fedavg, scaffold]", "seeds=[0, 3]"]
    )
    assert found.exit_code == 0, found.output
    lines = found.output.splitlines()
    assert [line.partition(":")[0] for line in lines] == [
        "fedavg seed 0",
        "fedavg seed 3",
        "scaffold seed 0",
        "scaffold seed 3",
    ]
    assert all("weights equal to the bit" in line and "bytes carried" in line for line in lines)


def test_check_says_what_differs(monkeypatch, tmp_path):
    file = tmp_path / "f.yaml"
    file.write_text(json.dumps(VALUES))
    answer = Site.answer

    def forgetful(self: Site, order: Order) -> bytes:
        self.own.pool.targets[0] = 3
        return answer(self, order)

    monkeypatch.setattr(Site, "answer", forgetful)
    found = CliRunner().invoke(app, ["deploy", "check", str(file)])
    assert found.exit_code == 1
    assert "weights differ by up to" in found.output


def test_members_agree_though_their_own_affairs_differ():
    here, there = agree(config()), agree(config(out="elsewhere", name="b", note="c", executor="batched"))
    assert here.terms.digest == there.terms.digest
    for changes in ({"rounds": 3}, {"method": "fedavg"}, {"seeds": [1]}, {"l2": 0.1}, {"clients": 4}):
        assert agree(config(**changes)).terms.digest != here.terms.digest


def test_a_member_without_the_data_agrees_by_facts_and_brings_its_own():
    whole = agree(config())
    facts = facts_of(whole.scene).model_dump()
    site = agree(config(data="mnist-sample", deploy={"facts": facts}))
    assert site.terms.digest == whole.terms.digest
    assert_close(site.initial(), whole.initial(), rtol=0, atol=0)
    images = np.random.default_rng(0).integers(0, 256, (9, 1, 28, 28), dtype=np.uint8)
    data = cs.Dataset.from_arrays("own", images, np.arange(9), images[:1], np.arange(1), classes=10)
    own = site.brought(data)
    assert own.samples == 9
    assert torch.equal(own.pool.shift, whole.dealt(0).pool.shift)
    with pytest.raises(UserError, match=r"inputs of shape \[1, 27, 28\] do not fit the federation"):
        site.brought(
            dataclasses.replace(data, inputs=data.inputs[:, :, 1:], test_inputs=data.test_inputs[:, :, 1:])
        )
    with pytest.raises(UserError, match="there is a class 12, and the federation has 0 to 9"):
        site.brought(cs.Dataset.from_arrays("own", images, np.arange(9) + 4, images[:1], [0], classes=13))


REFUSED = [
    ({"method": ["hwa", "fedavg"]}, "one method, one seed and one value"),
    ({"seeds": [0, 1]}, "one method, one seed and one value"),
    ({"topology": "ring", "method": "dechw", "network": {"loss": 0.1}}, "network describes a simulated one"),
]


@pytest.mark.parametrize(("changes", "reason"), REFUSED)
def test_what_is_no_single_federation_is_refused(changes, reason):
    with pytest.raises(UserError, match=reason):
        agree(config(**changes))


QUORUMS = [(0, "deploy.quorum"), (1.5, "a number of clients is a whole number"), ("most", "deploy.quorum")]


@pytest.mark.parametrize(("quorum", "reason"), QUORUMS)
def test_a_quorum_is_a_share_a_number_or_all(quorum, reason):
    with pytest.raises(UserError, match=reason):
        config(deploy={"quorum": quorum})


def test_a_line_that_was_torn_spoils_no_other(tmp_path):
    journal = Journal(tmp_path, "abc", "hub")
    journal.note(1, {})
    with (tmp_path / METRICS).open("a") as file:
        file.write('{"round": 2, "te')
    journal.note(3, {})
    tail = Tail(tmp_path / METRICS)
    assert [line["round"] for line in tail.read()] == [1, 3]
    assert tail.damaged == 1


def test_a_hub_at_work_scores_its_model_and_leaves_it_behind(tmp_path):
    split = {"name": "iid", "holdout": 0.2}
    one = agree(config(partition=split))
    sites = {number: Site(one.terms, number, one.dealt(number)) for number in range(3)}
    assert serve(one, InProcess(sites), tmp_path).done
    *rounds, last = read_lines(tmp_path / METRICS)
    simulated = cs.run(**{**VALUES, "partition": split})
    assert [line["round"] for line in rounds] == [1, 2]
    expected = [record["test_accuracy"] for record in simulated.records]
    assert [line["test_accuracy"] for line in rounds] == pytest.approx(expected, abs=1e-12)
    assert {kind: sorted(by_site) for kind, by_site in last["final"].items()} == {
        "train": ["0", "1", "2"],
        "own": ["0", "1", "2"],
    }
    status = read_status(tmp_path)
    assert status is not None
    assert status["done"]
    assert status["sites"] == {str(number): site.own.samples for number, site in sites.items()}
    assert not (tmp_path / AUDIT).exists()
    images = torch.zeros(2, 1, 28, 28, dtype=torch.uint8)
    assert cs.load_model(tmp_path)(images).shape == (2, 10)


def test_a_hub_that_has_waited_long_enough_goes_on_with_those_who_are_there(tmp_path):
    one = agree(config(deploy={"quorum": 2, "deadline": 0.01}))
    sites = {number: Site(one.terms, number, one.dealt(number)) for number in range(3)}
    late = sites.pop(1)
    assert serve(one, InProcess(sites), tmp_path / "two").done
    assert read_lines(tmp_path / "two" / METRICS)[0]["heard"] == [0, 2]

    waited = []

    def wait() -> None:
        waited.append(1)
        sites[1] = late

    alone = agree(config(deploy={"quorum": "all", "deadline": 0.01}))
    sites = {number: Site(alone.terms, number, alone.dealt(number)) for number in (0, 2)}
    serve(alone, InProcess(sites), tmp_path / "all", wait=wait)
    assert waited
    assert read_lines(tmp_path / "all" / METRICS)[0]["heard"] == [0, 1, 2]


def test_a_hub_at_work_writes_down_what_it_refuses(tmp_path, monkeypatch):
    one = agree(config())
    sites = {number: Site(one.terms, number, one.dealt(number)) for number in range(3)}
    honest = Site.answer

    def answer(site: Site, order: Order) -> bytes:
        data = honest(site, order)
        return data[:-1] if site.number == 1 and order.accepted == 0 else data

    monkeypatch.setattr(Site, "answer", answer)
    serve(one, InProcess(sites), tmp_path)
    line, _ = read_lines(tmp_path / AUDIT)  # the other is about scores
    assert (line["from"], line["round"], line["member"]) == ("1", 1, "hub")
    assert "bytes instead of" in line["reason"]
    assert read_lines(tmp_path / METRICS)[1]["heard"] == [0, 2]
