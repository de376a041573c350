"""The commands of nodes, as a user types them."""

from __future__ import annotations

import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from consilience.cli import app as cli
from consilience.deploy.journal import Journal

Run = Callable[..., tuple[Any, str, str]]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(*words: object) -> tuple[Any, str, str]:
        monkeypatch.setattr(sys, "argv", ["consilience", *map(str, words)])
        with pytest.raises(SystemExit) as stopped:
            cli.main()
        said = capsys.readouterr()
        return stopped.value.code, said.out, said.err

    return run


def _refused(answer: tuple[Any, str, str], line: str) -> None:
    code, _, said = answer
    assert code == 2
    assert said.startswith("consilience: ")
    assert said.count("\n") == 1
    assert line in said


def test_certificates_are_made_once(command: Run, tmp_path: Path) -> None:
    code, said, _ = command("certificates", tmp_path / "keys", "--nodes", 3)
    assert code == 0
    assert [Path(line).name for line in said.split()] == ["node-0.pem", "node-1.pem", "node-2.pem"]
    assert command("certificates", tmp_path / "keys", "--nodes", 3)[1] == ""


def test_a_node_that_cannot_start_says_why(
    command: Run, ring: Callable[..., Any], keys: Path, tmp_path: Path
) -> None:
    file = ring().file

    def node(*more: object, folder: Path = keys, number: int = 1) -> tuple[Any, str, str]:
        out = ("--out", tmp_path / "out")
        return command("node", file, *more, "--id", number, "--certificates", folder, *out)

    _refused(command("node", file), "a node needs FILE, --id")
    _refused(node(folder=tmp_path), "authority.pem is missing")
    _refused(node(number=9), "node-9.pem is missing")
    _refused(node(), "neither listens nor connects")
    for wrong in ("tcp/127.0.0.1:0", "127.0.0.1:0", "tls/127.0.0.1", "tls/host:port"):
        _refused(node("--listen", wrong), f"--listen {wrong} is no address like tls/10.0.0.7:7447")
        _refused(node("--connect", wrong), f"--connect {wrong} is no address")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"tls/127.0.0.1:{taken.getsockname()[1]}"
        _refused(node("--listen", address), "Address already in use")
    _refused(node("--listen", "tls/127.0.0.1:0", "--data", "{name: nothing}"), "unknown data set")
    _refused(node("--listen", "tls/127.0.0.1:0", number=4), "there is no client 4")
    _refused(node("topology=star", "clients=4", "--listen", "tls/127.0.0.1:0"), "nodes need a graph")
    _refused(node("method=desa", "--listen", "tls/127.0.0.1:0"), "passes messages on")
    _refused(node("method=[fedavg, dechw]", "--listen", "tls/127.0.0.1:0"), "one method")


def test_it_shows_how_things_stand(command: Run, tmp_path: Path) -> None:
    _refused(command("node", "--status", tmp_path), "no node has written here")
    Journal(tmp_path, "0123", "2").stand(
        {
            "round": 4,
            "rounds": 9,
            "neighbours": {
                "1": {"alive": True, "round": 4, "staleness": 0, "bytes": 1234},
                "3": {"alive": False, "round": 2, "staleness": 2, "bytes": 56},
            },
            "waiting": [1],
            "refusals": 5,
            "trouble": ["tls/10.0.0.7:7447: nobody listens there"],
            "sent": 99_999,
            "test_accuracy": 0.75,
            "done": False,
        }
    )
    code, said, _ = command("node", "--status", tmp_path)
    assert code == 0
    first, second, one, three, waiting, trouble = said.splitlines()
    assert first == "node 2 of run 0123: round 5 of 9, test_accuracy 0.750"
    assert "99,999 bytes sent, 5 refused" in second
    assert one == "  node 1: there, round 5, newest message 0 rounds old, 1,234 bytes received"
    assert three == "  node 3: away, round 3, newest message 2 rounds old, 56 bytes received"
    assert waiting == "waiting for 1"
    assert trouble == "tls/10.0.0.7:7447: nobody listens there"
