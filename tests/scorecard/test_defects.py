"""Checks see the damage that a defect would do: with one in the package, or no guard, they are not kept."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("zenoh", reason='needs pip install "consilience[zenoh]"')
pytest.importorskip("flwr", reason="Flower is not installed: pip install 'consilience[flower]'")

from consilience import wire
from consilience.deploy import hub, peer
from consilience.deploy.zenoh.mailbox import Mailbox
from consilience.exchange import screen
from scorecard import files, frames, messages, methods, pickles, spots
from scorecard.finding import Finding

Attack = Callable[[int, Path], Finding]


@pytest.fixture(autouse=True)
def _no_spot_is_kept() -> Iterator[None]:
    """What was computed with a defect is not used without it."""
    yield
    spots.at_hub.cache_clear()
    spots.at_peer.cache_clear()


def passing(*_: Any, **__: Any) -> None:
    """A check that finds nothing wrong."""


class Whatever(str):
    """A text that differs from no other."""

    __slots__ = ()
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        return True

    def __ne__(self, other: object) -> bool:
        return False


DEFECTS: dict[str, tuple[Attack, int, Any, str, Any]] = {
    "3, any digest will do": (files.flips, 28, wire, "_digest", lambda *_: "0" * 64),
    "13, all is finite": (messages.not_finite, 8, screen, "_is_finite", lambda value: True),
    "14, every form will do": (messages.other_forms, 7, hub, "check_form", passing),
    "14, every form will do a peer": (messages.other_forms, 14, peer, "check_form", passing),
    "15, no limit": (messages.oversize, 9, Mailbox, "_expected", lambda *_: 10 * messages.LIMIT),
    "16, no digest is looked at": (frames.malformed, 400, wire, "_digest", lambda *_: Whatever("0" * 64)),
    "21, every round will do": (messages.other_rounds, 3, hub, "check_header", passing),
    "21, every round will do a peer": (messages.other_rounds, 3, peer, "check_header", passing),
    "23, no guard": (methods.inflated, 9, methods, "GUARD", None),
}


@pytest.mark.parametrize("name", DEFECTS)
def test_a_check_sees_a_defect(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    attack, trials, place, attribute, defect = DEFECTS[name]
    monkeypatch.setattr(place, attribute, defect)
    finding = attack(trials, tmp_path)
    assert not finding.kept
    assert finding.faults


CODE = {
    "import pickle\npickle.loads(b'')": "pickle.loads",
    "import pickle as p": "imports pickle by another name",
    "from pickle import loads": "imports from pickle",
    "import dill\ndill.load(1)": "dill.load",
    "eval('1')": "eval()",
    "list(map(exec, texts))": "exec()",
    "from builtins import eval as e": "imports builtins.eval",
    "import torch\ntorch.load(path)": "torch.load without weights_only=True",
    "import torch\ntorch.load(path, weights_only=False)": "torch.load without weights_only=True",
    "import numpy as np\nnp.load(path)": "np.load without allow_pickle=False",
    "import yaml\nyaml.load(text, yaml.SafeLoader)": "yaml.load",
    "import yaml\nyaml.unsafe_load(text)": "yaml.unsafe_load",
}
HARMLESS = """
import pickle, re, numpy as np, torch, yaml
re.compile("x"), yaml.safe_load("x"), model.eval(), field(compile=1)
torch.load(path, weights_only=True), np.load(path, allow_pickle=False), pickle.UnpicklingError
"""


def test_code_that_could_execute_what_it_reads_is_found(tmp_path: Path):
    for number, code in enumerate(CODE):
        (tmp_path / f"{number:02}.py").write_text(code)
    (tmp_path / "harmless.py").write_text(HARMLESS)
    found = [line.split(": ", 1) for line in pickles.dangerous(tmp_path)]
    assert [reason for _, reason in found] == list(CODE.values())
