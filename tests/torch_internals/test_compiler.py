"""Torch's compiler is not imported for what needs none of it, and is itself where somebody does."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
import consilience as cs

setting = {"data": "mnist-sample", "clients": 2, "local": {"steps": 1}, "model": "mnist-cnn", "device": "cpu"}
cs.run("fedavg", rounds=1, executor="batched", **setting)
assert "torch._dynamo" not in sys.modules, "imported for a run"

import torch

reset = torch._dynamo.reset  # by name, without an import of one's own
assert torch._dynamo is sys.modules["torch._dynamo"], "an import puts the module in its place"
assert reset is torch._dynamo.reset
gradient = torch.compile(torch.func.grad(lambda x: x.sin().sum()), backend="eager")
assert torch.equal(gradient(torch.zeros(2)), torch.ones(2))
"""


def test_the_compiler_is_imported_when_it_is_used():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"torch changed: {done.stderr}"
