"""Every example is a configuration that is understood."""

from __future__ import annotations

from pathlib import Path

import pytest

from consilience.config import load_config

EVERY = sorted((Path(__file__).parents[1] / "examples").rglob("*.yaml"))
EXAMPLES = [path for path in EVERY if path.name != "compose.yaml"]  # that is for Docker


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_a_configuration(path: Path):
    config = load_config(path)
    assert config.name == path.stem
    assert all(setting for setting, _ in config.settings())
