"""A run without a folder draws nothing, and must not wait for matplotlib."""

from __future__ import annotations

import subprocess
import sys

RUN = """
import sys
import consilience as cs
cs.run(method="fedavg", data="mnist-sample", rounds=1, clients=2, model="logistic")
print("matplotlib" in sys.modules)
"""


def test_what_draws_is_imported_when_something_is_drawn():
    done = subprocess.run([sys.executable, "-c", RUN], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split()[-1] == "False"
