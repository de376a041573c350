"""Federations of real processes on this machine: a SuperLink, SuperNodes, and sites beside them.

Flower starts a process for every message, so that an exchange takes seconds. One federation is always run;
the others are behind CONSILIENCE_LONG=1.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

pytest.importorskip("flwr", reason="Flower is not installed: pip install 'consilience[flower]'")

from consilience.deploy.agreeing import Agreement, agree
from consilience.deploy.flower.writing import write_app
from consilience.deploy.journal import AUDIT, METRICS, read_lines
from scorecard.flower_grid import ended, equal, federation, simulated
from scorecard.flower_processes import BIN, Place, certify, opened, status, until

long = pytest.mark.skipif(not os.environ.get("CONSILIENCE_LONG"), reason="takes minutes: CONSILIENCE_LONG=1")


@pytest.fixture
def place(tmp_path: Path):
    with opened(tmp_path) as made:
        yield made


def begin(place: Place, method: str, **changes) -> Agreement:
    """Write the app of a federation, and start its sites."""
    agreement = agree(federation(method, evaluate={"clients": False}, **changes))
    write_app(agreement, place.folder / f"app-{method}")
    for number in range(agreement.terms.population):
        start_site(place, method, number)
    return agreement


def start_site(place: Place, method: str, number: int) -> None:
    name = f"site{number}"
    words = [f"app-{method}/federation/federation.yaml", "--client", str(number)]
    words += ["--socket", f"{number}.sock", "--out", f"{method}-{number}"]
    place.start(name, str(BIN / "python"), "-m", "consilience", "site", *words)


def start_nodes(place: Place, count: int) -> None:
    for number in range(count):
        place.supernode(f"node{number}", node_config(place, number))


def node_config(place: Place, number: int) -> str:
    return f'number={number} socket="{place.folder}/{number}.sock"'


def run(place: Place, method: str, more: str = "") -> Path:
    """Hand the app to the SuperLink; the hub's folder."""
    hub = place.folder / f"hub-{method}"
    place.flwr("run", f"app-{method}", "trial", "--run-config", f'out="{hub}" {more}')
    return hub


def finish(place: Place, hub: Path, seconds: float = 240.0) -> None:
    until(lambda: status(hub).get("done"), "the federation ends", lambda: place.said("link"), seconds)


def kill_hub(place: Place) -> None:
    """End the process that Flower started for the ServerApp."""
    (found,) = place.found("flwr-serverapp")
    os.kill(found, signal.SIGKILL)
    until(lambda: not place.found("flwr-serverapp"), "the hub is gone")


def test_a_hub_killed_in_the_middle_goes_on_and_ends_as_the_simulation(place):
    agreement = begin(place, "scaffold", clients=2, rounds=2, deploy={"secret": "seed", "quorum": "all"})
    place.superlink()
    start_nodes(place, 2)
    hub = run(place, "scaffold")
    sites = [place.folder / f"scaffold-{number}" for number in range(2)]
    answered = "the sites have answered in the second round"
    until(
        lambda: all(status(one).get("exchange") == 1 for one in sites), answered, lambda: place.said("link")
    )
    kill_hub(place)
    assert not status(hub).get("done")
    run(place, "scaffold")
    finish(place, hub)
    assert equal(ended(agreement, hub), simulated(agreement))
    assert read_lines(hub / AUDIT) == []
    place.running["site0"].terminate()
    assert place.running["site0"].wait(60) == 0
    assert "stopped; the same command goes on" in place.said("site0")
    assert not (place.folder / "0.sock").exists()


@long
def test_methods_are_equal_to_the_simulation(place):
    place.superlink()
    start_nodes(place, 3)
    for method in ["fedavg", "scaffold", "hwa", "fedcurv", "fagh", "fedlin", "pfedme"]:
        agreement = begin(place, method, rounds=2, deploy={"secret": "seed", "quorum": "all"})
        hub = run(place, method)
        finish(place, hub)
        assert equal(ended(agreement, hub), simulated(agreement)), method
        assert read_lines(hub / AUDIT) == [], method
        for number in range(3):
            place.kill(f"site{number}")


@long
def test_flowers_own_simulation_ends_as_ours(place, monkeypatch):
    """Flower starts a SuperLink by itself, and clients are made by Ray (`flwr[simulation]`)."""
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "local")  # not one that runs here, or has died
    agreement = agree(federation("scaffold", evaluate={"clients": False}))
    write_app(agreement, place.folder / "app")
    hub, count = place.folder / "hub", agreement.terms.population
    words = ["--federation-config", f"num-supernodes={count}", "--run-config", f'out="{hub}"', "--stream"]
    place.start("run", str(BIN / "flwr"), "run", "app", *words)
    until(lambda: status(hub).get("done"), "the federation ends", lambda: place.said("run"), 180.0)
    assert equal(ended(agreement, hub), simulated(agreement))


@long
def test_supernodes_and_sites_that_are_killed_are_missed_and_come_back(place):
    settings = {"secret": "seed", "quorum": "all", "deadline": 40.0}
    agreement = begin(place, "scaffold", rounds=3, deploy=settings)
    place.superlink()
    start_nodes(place, 3)
    hub = run(place, "scaffold")
    until(lambda: len(read_lines(hub / METRICS)) == 1, "the first round ends", lambda: place.said("link"))
    place.kill("node1")
    place.kill("site2")
    start_site(place, "scaffold", 2)
    until(lambda: read_lines(hub / AUDIT), "somebody is missed", lambda: place.said("link"))
    place.supernode("node1", node_config(place, 1))
    finish(place, hub)
    assert equal(ended(agreement, hub), simulated(agreement))
    assert {line["from"] for line in read_lines(hub / AUDIT)} >= {"1"}


@long
def test_a_quorum_goes_on_without_those_who_are_gone(place):
    agreement = begin(place, "hwa", rounds=2, deploy={"secret": "seed", "quorum": 2, "deadline": 20.0})
    place.superlink()
    start_nodes(place, 3)
    hub = run(place, "hwa")
    until(lambda: len(read_lines(hub / METRICS)) == 1, "the first round ends", lambda: place.said("link"))
    place.kill("node1")
    finish(place, hub)
    assert read_lines(hub / METRICS)[1]["heard"] == [0, 2]
    assert not equal(ended(agreement, hub), simulated(agreement))


@long
def test_with_tls_and_keys_only_those_who_are_registered_take_part(tmp_path):
    with opened(tmp_path, secure=True) as place:
        certify(place.folder, ["node0", "node1", "stranger"])
        agreement = begin(place, "scaffold", clients=2, rounds=2, deploy={"secret": "seed", "quorum": "all"})
        place.superlink()
        for number in range(2):
            place.flwr("supernode", "register", f"node{number}.pub", "trial")
            key = ["--auth-supernode-private-key", f"node{number}"]
            place.supernode(f"node{number}", node_config(place, number), *key)
        place.supernode("stranger", "number=0", "--auth-supernode-private-key", "stranger")
        hub = run(place, "scaffold", "strict=true")
        finish(place, hub)
        assert equal(ended(agreement, hub), simulated(agreement))
        assert place.running["stranger"].wait() != 0
        assert read_lines(hub / AUDIT) == []
