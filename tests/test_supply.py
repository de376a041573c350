"""Digests for every pin, a bill of what is installed, and a wheel that comes out again."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LOCK = (ROOT / "requirements.lock").read_text()


def test_the_lock_has_a_digest_for_every_pin_but_torch():
    tool = runpy.run_path(str(ROOT / "tools" / "make_lock.py"))
    versions = tool["pinned"](ROOT / "constraints.txt")
    assert versions.pop("torch") == "2.13.0"
    assert tool["pinned"](ROOT / "requirements.lock") == versions, "run tools/make_lock.py"
    entries = LOCK.replace("\\\n", " ").splitlines()[2:]
    for entry in entries:
        assert re.fullmatch(r"\S+==\S+( +--hash=sha256:[0-9a-f]{64})+", entry), entry


def test_what_the_project_asks_for_is_pinned():
    asked = subprocess.run(
        [sys.executable, ROOT / "tools" / "dependencies.py", "dev", "docs"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split("\n")
    names = [re.split(r"[\[<>=~ ]", line)[0] for line in asked if line]
    assert len(names) > 30
    tool = runpy.run_path(str(ROOT / "tools" / "make_lock.py"))
    pinned = tool["pinned"](ROOT / "constraints.txt")
    assert [name for name in names if tool["normalised"](name) not in pinned] == []


@pytest.mark.parametrize(
    ("file", "usable"),
    [
        ("numpy-2.4.6.tar.gz", True),
        ("numpy-2.4.6-cp311-cp311-manylinux_2_28_x86_64.whl", True),
        ("numpy-2.4.6-cp313-cp313t-win_amd64.whl", True),
        ("numpy-2.4.6-cp310-cp310-win_amd64.whl", False),
        ("numpy-2.4.6-pp311-pypy311_pp73-win_amd64.whl", False),
        ("safetensors-0.8.0-cp38-abi3-macosx_11_0_arm64.whl", True),
        ("idna-3.20-py3-none-any.whl", True),
    ],
)
def test_digests_are_those_of_files_that_a_supported_python_can_use(file, usable):
    assert runpy.run_path(str(ROOT / "tools" / "make_lock.py"))["usable"](file) is usable


def test_the_bill_of_materials_says_what_is_installed_and_always_the_same():
    command = [sys.executable, str(ROOT / "tools" / "make_sbom.py"), "consilience"]
    texts = {
        subprocess.run(
            command, capture_output=True, check=True, env={**os.environ, "PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    }
    assert len(texts) == 1
    bill = json.loads(texts.pop())
    assert bill["bomFormat"] == "CycloneDX"
    assert bill["metadata"]["component"]["name"] == "consilience"
    references = {one["bom-ref"] for one in bill["components"]}
    assert len(references) == len(bill["components"]) > 20
    assert any(one.startswith("pkg:pypi/torch@2.13.0") for one in references)
    named = {other for one in bill["dependencies"] for other in one["dependsOn"]}
    assert named <= references | {bill["metadata"]["component"]["bom-ref"]}


def test_an_audit_that_can_ask_nobody_is_one_line(tmp_path, monkeypatch, capsys):
    tool = runpy.run_path(str(ROOT / "tools" / "audit.py"))
    monkeypatch.setitem(tool["main"].__globals__, "ADVISORIES", "http://127.0.0.1:1/")
    assert tool["main"](tmp_path / "environment") == 2
    said = capsys.readouterr().err
    assert said.startswith("nothing was audited: http://127.0.0.1:1/, which knows of vulnerabilities, cannot")
    assert said.count("\n") == 1
    assert not (tmp_path / "environment").exists()


def test_a_wheel_that_is_built_again_has_the_same_bytes(tmp_path):
    """In another folder, at another time and place, with another mask of permissions and other caches."""
    built = []
    for number, (mask, zone, when) in enumerate([(0o022, "UTC", 1.0e9), (0o077, "Asia/Kathmandu", 1.7e9)]):
        folder = tmp_path / ("deep/" * number) / "here"
        shutil.copytree(ROOT / "src", folder / "src", ignore=shutil.ignore_patterns("__pycache__"))
        for name in ("pyproject.toml", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, folder)
        for path in folder.rglob("*"):
            os.utime(path, (when, when))
            path.chmod((0o777 if path.is_dir() else 0o666) & ~mask)
        if number:
            (folder / "src" / "consilience" / "__pycache__").mkdir()
            (folder / "src" / "consilience" / "__pycache__" / "wire.cpython-311.pyc").write_bytes(b"old")
        code = "from hatchling.build import build_wheel; print(build_wheel('dist'))"
        environment = {name: value for name, value in os.environ.items() if name != "SOURCE_DATE_EPOCH"}
        done = subprocess.run(
            [sys.executable, "-c", code],
            cwd=folder,
            env={**environment, "TZ": zone, "PYTHONHASHSEED": str(number)},
            umask=mask,
            capture_output=True,
            text=True,
            check=True,
        )
        built.append((folder / "dist" / done.stdout.strip()).read_bytes())
    assert built[0] == built[1]
