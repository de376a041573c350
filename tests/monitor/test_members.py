"""Folders of hubs and nodes become federations."""

from __future__ import annotations

import json

import pytest

from consilience.config import read_config
from consilience.deploy.agreeing import agree
from consilience.deploy.carrying import InProcess
from consilience.deploy.journal import Journal, read_lines
from consilience.deploy.serving import serve
from consilience.deploy.site import Site
from consilience.monitor.gathering import state_of
from consilience.monitor.shown import LETTERS


def test_a_hub_says_who_is_there_and_what_was_refused(tmp_path, folders):
    (panel,) = state_of(folders.hub(tmp_path / "hub"))["panels"]
    (line,) = panel["lines"]
    assert (panel["title"], panel["hub"], panel["kind"]) == ("federation abc", True, "federation")
    assert (line["round"], line["rounds"], line["state"]) == (2, 5, "running")
    assert (line["bytes_up"], line["bytes_down"], line["seconds"]) == (2000, 6000, 4.0)
    assert (line["score"], line["curve"][0]) == (0.6, [1, 0.5, 0.5, 0.5])
    assert [(place["state"], place["trouble"]) for place in panel["places"]] == [
        ("heard", False),
        ("refused: it is not finite", True),
        ("asked, no answer", True),
    ]
    assert [place["samples"] for place in panel["places"]] == [10, 20, 30]
    assert panel["refused"] == 2
    assert [(one["round"], one["sender"], one["at"]) for one in panel["refusals"]] == [
        (2, "1", "hub"),
        (1, "1", "hub"),
    ]


def test_the_scores_of_sites_at_the_end_are_no_point_of_the_curve(tmp_path, folders):
    path = folders.hub(tmp_path / "hub")
    final = {"own": {"0": {"accuracy": 0.9}, "2": {"accuracy": None}}}
    with (path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"round": 2, "final": final, "own_accuracy": 0.9}) + "\n")
    (panel,) = state_of(path)["panels"]
    assert panel["lines"][0]["nodes"] == [0.9, None, None]
    assert [point[1] for point in panel["lines"][0]["curve"]] == [0.5, 0.6]
    assert panel["lines"][0]["bytes_up"] == 2000


def test_a_site_beside_its_hub_adds_what_it_refused_and_hides_nothing(tmp_path, folders):
    hub = folders.hub(tmp_path / "hub")
    with (hub / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"round": 2, "final": {"train": {"0": {"accuracy": 0.9}}}}) + "\n")
    site = Journal(tmp_path / "site", "abc", "0")
    site.stand({"samples": 10, "answered": 3})
    site.refuse("hub", "the order is of another run")  # it does not know of which round that was to be
    (panel,) = state_of(tmp_path)["panels"]
    assert panel["lines"][0]["nodes"] == [0.9, None, None]
    assert [(place["round"], place["bytes_up"]) for place in panel["places"]] == [(None, None)] * 3
    assert [(one["round"], one["at"]) for one in panel["refusals"]] == [(0, "0"), (2, "hub"), (1, "hub")]


def test_a_hub_that_has_only_refused_so_far_is_shown(tmp_path, folders):
    path = folders.hub(tmp_path / "hub", rounds=1)
    (path / "metrics.jsonl").unlink()
    (path / "status.json").unlink()
    (panel,) = state_of(path)["panels"]
    assert (panel["title"], panel["refused"], panel["lines"][0]["state"]) == ("federation abc", 1, "waiting")


def test_the_folders_of_several_nodes_are_one_federation(tmp_path, folders):
    folders.node(tmp_path / "a", 0, {"1": True, "2": False}, [0.2, 0.4])
    folders.node(tmp_path / "deeper" / "b", 1, {"0": True, "2": True}, [0.4, 0.6, 0.8])
    (tmp_path / "something else").mkdir()
    (panel,) = state_of(tmp_path)["panels"]
    (line,) = panel["lines"]
    assert (line["label"], line["round"], line["rounds"]) == ("all nodes", 2, 4)
    assert line["curve"] == [
        [1, pytest.approx(0.3), 0.2, 0.4],
        [2, 0.5, 0.4, 0.6],
        [3, pytest.approx(0.6), 0.4, 0.8],
    ]
    assert line["nodes"] == [0.4, 0.8, None]
    assert (line["bytes_up"], line["bytes_down"]) == (50, 14)
    assert panel["edges"] == [[0, 1], [0, 2], [1, 2]]
    assert [place["state"] for place in panel["places"]] == ["there", "there", "not seen by 0"]
    assert [place["staleness"] for place in panel["places"]] == [2, 2, None]


def test_a_node_that_nobody_sees_is_away(tmp_path, folders):
    folders.node(tmp_path / "a", 0, {"1": True, "2": False}, [0.2])
    folders.node(tmp_path / "b", 1, {"0": True, "2": False}, [0.2])
    folders.node(tmp_path / "c", 2, {"0": True, "1": True}, [0.2])
    (panel,) = state_of(tmp_path)["panels"]
    assert [place["trouble"] for place in panel["places"]] == [False, False, True]
    assert panel["places"][2]["state"] == "away: no neighbour sees it"


def test_ten_nodes_stand_in_the_order_of_their_numbers(tmp_path, folders):
    for number in range(12):
        folders.node(tmp_path / str(number), number, {str((number + 1) % 12): True}, [0.5])
    (panel,) = state_of(tmp_path)["panels"]
    assert [place["name"] for place in panel["places"]] == list(map(str, range(12)))
    assert len(panel["edges"]) == 12


def test_reasons_are_cut_and_status_of_other_kinds_does_no_harm(tmp_path, folders):
    path = folders.hub(tmp_path / "hub", reason="x" * 10**5)
    status = {"run": ["a"], "member": 5, "sites": [1], "asked": {"1": 2}, "neighbours": 7, "time": "now"}
    (path / "status.json").write_text(json.dumps(status))
    (panel,) = state_of(path)["panels"]
    assert max(len(one["reason"]) for one in panel["refusals"]) == LETTERS
    (path / "status.json").write_text('{"run": ')  # never written so, but files can be damaged
    assert len(state_of(path)["panels"]) == 1


def test_a_real_hub_writes_what_the_page_needs(tmp_path):
    settings = {
        "method": "fedavg",
        "model": {"name": "mlp", "hidden": [4]},
        "clients": 3,
        "local": {"steps": 1},
    }
    agreement = agree(read_config({**settings, "rounds": 2, "deploy": {"quorum": 2}}))
    sites = {number: Site(agreement.terms, number, agreement.dealt(number)) for number in range(3)}
    hub = serve(agreement, InProcess(sites, lost=lambda number: {2} if number == 1 else set()), tmp_path)
    (panel,) = state_of(tmp_path)["panels"]
    (line,) = panel["lines"]
    assert panel["title"] == f"federation {agreement.terms.run}"
    assert (line["round"], line["rounds"], line["state"]) == (2, 2, "done")
    assert line["bytes_up"] == sum(hub.traffic.up.values()) > 0
    assert [point[0] for point in line["curve"]] == [1, 2]
    assert [place["state"] for place in panel["places"]] == ["heard", "heard", "asked, no answer"]
    final = read_lines(tmp_path / "metrics.jsonl")[-1]["final"]["train"]
    assert line["nodes"] == [final[str(number)]["accuracy"] for number in range(3)]
    assert [place["samples"] for place in panel["places"]] == [hub.enrolled[number] for number in range(3)]
    assert [(one["round"], one["sender"], one["reason"]) for one in panel["refusals"]] == [
        (2, "2", "its answer was lost")
    ]
