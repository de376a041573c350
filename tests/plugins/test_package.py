"""A package that adds one part of each kind is installed, listed, run and resumed, as its users do."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from consilience.cli.app import main

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NAMES = (
    "unit-moves agreement sparse halfway halved sign-sgd averaged pinball coverage halving jitter every-nth "
    "wheel apples"
)
CONFIG = {
    "name": "apples",
    "data": "apples",
    "problem": {"name": "pinball", "quantile": 0.3},
    "partition": "every-nth",
    "model": "averaged",
    "solver": {"name": "sign-sgd", "lr": 0.01},
    "schedule": {"name": "halving", "warmup": 1},
    "augment": [{"name": "jitter", "sigma": 0.05}],
    "metrics": ["coverage"],
    "topology": "wheel",
    "clients": 5,
    "rounds": 3,
    "local": {"steps": 2, "batch_size": 4},
    "checkpoint": {"every": 1},
    "method": [
        {"objective": "sparse", "rule": {"name": "agreement", "sharpness": [1, 2]}, "server": "halfway"},
        {"name": "unit-moves", "transforms": ["halved"]},
    ],
    "compare": [
        {"label": "wheel", "method": [{"objective": "sparse", "rule": "agreement", "server": "halfway"}]},
        {"label": "star", "topology": "star"},
    ],
}
STOPPED = """
import sys
from pathlib import Path
import consilience as cs
from consilience.config import load_config
from consilience.experiment import run
from consilience.experiment.folder import RunFolder

class Stop(cs.Listener):
    def round(self, arm, lines):
        if arm.setting == "star" and lines[0]["round"] == 2:
            raise KeyboardInterrupt

config = load_config(Path(sys.argv[1]))
try:
    run(config, folder=RunFolder(config.out / config.name), listener=Stop())
except KeyboardInterrupt:
    print("stopped")
"""
COMMANDS = """
import sys
from consilience.cli.app import main

for words in sys.argv[1:]:
    sys.argv = ["consilience", *words.split()]
    try:
        main()
    except SystemExit as done:
        assert not done.code
"""
"""Several commands in one process: to start one takes seconds."""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder into which the package is installed."""
    folder = tmp_path_factory.mktemp("installed")
    words = "--quiet --no-deps --no-build-isolation --no-index --disable-pip-version-check --no-compile"
    command = [sys.executable, "-m", "pip", "install", *words.split(), "--target", str(folder)]
    done = subprocess.run([*command, str(HERE / "orchard")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.fixture
def python(installed: Path, tmp_path: Path) -> Callable[..., str]:
    """What a Python that sees the installed package prints."""

    def run(code: str, *words: object) -> str:
        paths = os.pathsep.join([str(installed), str(ROOT / "src"), os.environ.get("PYTHONPATH", "")])
        done = subprocess.run(
            [sys.executable, "-c", code, *map(str, words)],
            capture_output=True,
            text=True,
            check=False,
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": paths, "OMP_NUM_THREADS": "1"},
        )
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout

    return run


def test_it_is_listed_runs_and_resumes_with_the_same_digest(python: Callable[..., str], tmp_path: Path):
    for out in ("stopped", "whole"):
        (tmp_path / f"{out}.yaml").write_text(yaml.safe_dump({**CONFIG, "out": out}))
    assert python(STOPPED, "stopped.yaml").endswith("stopped\n")
    said = python(COMMANDS, "resume stopped/apples", "run whole.yaml", "methods")
    assert all(re.search(rf"^│ {name} ", said, flags=re.MULTILINE) for name in NAMES.split())
    assert said.count("(orchard)") == len(NAMES.split())
    resumed, whole = re.findall(r"^digest: (\w+)$", said, flags=re.MULTILINE)
    assert resumed == whole
    summary = json.loads((tmp_path / "whole" / "apples" / "summary.json").read_text())
    assert {line["method"] for line in summary["methods"]} == {
        "sparse+agreement+halfway",
        "sparse+agreement+halfway sharpness=1",
        "sparse+agreement+halfway sharpness=2",
        "unit-moves halved",
    }
    last = (tmp_path / "whole" / "apples" / "metrics.jsonl").read_text().splitlines()[-1]
    assert 0 <= json.loads(last)["test_coverage"] <= 1


def test_the_same_parts_are_found_where_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
):
    """Nothing is installed here: the module lies in the working directory, beside the configuration."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [place for place in sys.path if place])

    def command(*words: str) -> str:
        monkeypatch.setattr(sys, "argv", ["consilience", *words])
        with pytest.raises(SystemExit):
            main()
        said = capfd.readouterr()
        return said.err or said.out

    text = (HERE / "orchard" / "src" / "orchard" / "methods.py").read_text()
    (tmp_path / "mine.py").write_text(text.replace('"agreement"', '"my-agreement"'))
    values = {
        "rounds": 1,
        "local": {"steps": 1},
        "model": {"name": "mlp", "hidden": [4]},
        "method": {"rule": "mine:Agreement"},
    }
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(values))
    said = command("run", "run.yaml")
    assert "star my-agreement  round 1/1" in said
    assert "name: mine:Agreement" in (tmp_path / "runs" / "run" / "config.yaml").read_text()
    del sys.modules["mine"]
    assert said.splitlines()[-1] == command("resume", "runs/run").splitlines()[-1]
    del sys.modules["mine"]
    (tmp_path / "mine.py").unlink()
    refused = command("resume", "runs/run")
    assert refused.count("\n") == 1
    assert "rule mine:Agreement: cannot import mine (ModuleNotFoundError" in refused


def test_the_page_shows_the_package_as_it_is():
    page = (ROOT / "docs" / "plugins.md").read_text()
    blocks = re.findall(r"```(?:python|toml)\n(.*?)```", page, flags=re.DOTALL)
    files = [(HERE / "orchard" / "pyproject.toml").read_text()]
    files += [path.read_text() for path in sorted((HERE / "orchard" / "src" / "orchard").glob("[a-z]*.py"))]
    assert set(files) <= set(blocks)
