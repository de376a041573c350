"""Folders as runs and members write them, and a page in a real browser."""

from __future__ import annotations

import json
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from consilience.deploy.journal import Journal
from consilience.monitor.gathering import Gathered
from consilience.monitor.server import Server

Served = Callable[..., Server]


class Folders:
    """Folders as they are written."""

    @staticmethod
    def line(**values: Any) -> dict[str, Any]:
        """A line of a simulation's metrics, where nothing else is said."""
        usual = {"setting": "star", "method": "fedavg", "seed": 0, "round": 1, "test_accuracy": 0.5}
        return {
            **usual,
            "train_loss": 1.0,
            "bytes_up": 100,
            "bytes_down": 50,
            "seconds": 0.5,
            "dropped": [],
            **values,
        }

    @staticmethod
    def lines(path: Path, lines: list[dict[str, Any]], *, torn: str = "") -> None:
        """Write JSON lines, and the beginning of another one."""
        path.write_text("".join(json.dumps(line) + "\n" for line in lines) + torn)

    @staticmethod
    def run(
        path: Path,
        lines: list[dict[str, Any]],
        *,
        methods: tuple[str, ...] = ("fedavg",),
        rounds: int = 3,
        nodes: int = 4,
        edges: list[list[int]] | None = None,
        names: tuple[str, ...] = (),
    ) -> Path:
        """A run's folder in which a simulation of one setting has written so many lines."""
        path.mkdir()
        (path / "config.yaml").write_text("name: run\n")
        seeds = sorted({line["seed"] for line in lines}) or [0]
        setting = {
            "topology": "ring" if edges else "star",
            "methods": {method: {"rounds": rounds, "seeds": seeds} for method in methods},
            **({"edges": edges} if edges else {}),
        }
        metric = {"name": "accuracy", "higher_is_better": True, "percent": True}
        (path / "plan.json").write_text(json.dumps({"metric": metric, "settings": {"star": setting}}))
        part = {"sizes": [10 * (node + 1) for node in range(nodes)], **({"clients": names} if names else {})}
        (path / "partitions.json").write_text(json.dumps({"star": {"seeds": {"0": part}}}))
        Folders.lines(path / "metrics.jsonl", lines)
        return path

    @staticmethod
    def hub(path: Path, reason: str = "it is not finite", rounds: int = 2) -> Path:
        """A hub's folder, in the last of whose rounds site 1 was refused and site 2 did not answer."""
        journal = Journal(path, "abc", "hub")
        for number in range(rounds):
            facts = {
                "rounds": 5,
                "asked": [0, 1, 2],
                "heard": [0],
                "refused": {"1": reason},
                "sites": {"0": 10, "1": 20, "2": 30},
                "bytes_up": 1000 * (number + 1),
                "bytes_down": 3000 * (number + 1),
                "test_loss": 1.0,
                "test_accuracy": 0.5 + 0.1 * number,
            }
            journal.refuse(1, reason, number)
            journal.note(number + 1, {"seconds": 2.0, **facts})
            journal.stand({**facts, "done": False})
        return path

    @staticmethod
    def node(path: Path, number: int, neighbours: dict[str, bool], scores: list[float]) -> Path:
        """The folder of a node that sees some of its neighbours."""
        journal = Journal(path, "abc", str(number))
        told = {name: {"alive": alive, "round": 1, "staleness": 2} for name, alive in neighbours.items()}
        for at, score in enumerate(scores):
            scored = {"own_accuracy": score, "own_loss": 1.0, "bytes_up": 10 * (at + 1), "bytes_down": 7}
            journal.note(at + 1, {"seconds": 1.0, "heard": [number], **scored})
            journal.stand({"round": at + 1, "rounds": 4, "neighbours": told, **scored, "done": False})
        return path


@pytest.fixture
def folders() -> Folders:
    return Folders()


@pytest.fixture
def served() -> Iterator[Served]:
    """Serves sources at a free port until the test ends."""
    begun: list[tuple[Server, threading.Thread]] = []

    def serve(*sources: object, page: bool = True) -> Server:
        server = Server(Gathered(list(map(str, sources))), port=0, page=page)
        thread = threading.Thread(target=server.serve_forever, args=(0.05,))
        thread.start()
        begun.append((server, thread))
        return server

    yield serve
    for server, thread in begun:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.fixture
def browsed(tmp_path: Path) -> Callable[[str], str]:
    """What a page has become in Chromium after some virtual seconds, which do not pass while it waits."""
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("needs Chromium, which is not on this machine")

    def browse(url: str) -> str:
        profile = f"--user-data-dir={tmp_path / 'profile'}"
        options = ["--headless", "--no-sandbox", "--disable-gpu", profile, "--virtual-time-budget=7000"]
        done = subprocess.run(
            [chromium, *options, "--dump-dom", url], capture_output=True, text=True, timeout=180, check=True
        )
        return done.stdout

    return browse
