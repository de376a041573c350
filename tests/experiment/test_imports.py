"""What takes long to import is imported where it is used: nobody waits for it before the first round."""

from __future__ import annotations

import subprocess
import sys

import pytest

RUN = """
import consilience as cs
cs.run(method="fedavg", data="mnist-sample", rounds=1, clients=2, model="logistic")
"""
COMMAND_LINE = """
from consilience import experiment
from consilience.cli import app, display
from consilience.config.config import read_config
experiment.plan(read_config({"data": "mnist-sample", "clients": 2, "model": "logistic"}, "name"))
"""


@pytest.mark.parametrize(
    "what", [RUN, COMMAND_LINE], ids=["a run without a folder", "the command line and a configuration"]
)
def test_what_nobody_uses_is_not_imported(what: str):
    unused = ["matplotlib", "networkx", "scipy"]
    looked = f"{what}\nimport sys\nprint([name for name in {unused} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", looked], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "[]"
