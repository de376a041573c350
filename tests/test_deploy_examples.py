"""The examples for containers and services: linters read them, and every command in them is there."""

from __future__ import annotations

import functools
import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer.main
import yaml

from consilience.cli.app import app
from consilience.config import load_config

DEPLOY = Path(__file__).parents[1] / "examples" / "deploy"
COMPOSE = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
PREFIX = "/opt/consilience"
WRITTEN_IN = {"site": "deploying", "deploy": "deploying", "node": "noding", "certificates": "noding"}
"""The files of commands that not every branch has."""


def tool(name: str) -> str:
    """The path of a program, beside the interpreter or anywhere."""
    beside = Path(sys.executable).parent / name
    found = str(beside) if beside.exists() else shutil.which(name)
    if found is None:
        pytest.skip(f"needs {name}, which is not on this machine")
    return found


def passes(*words: object) -> None:
    done = subprocess.run(list(map(str, words)), capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout + done.stderr if done.returncode else "") == (0, "")


def test_the_dockerfile_passes_hadolint():
    passes(tool("hadolint"), "--failure-threshold", "info", DEPLOY / "Dockerfile")


def test_the_yaml_files_pass_yamllint():
    rules = "{line-length: {max: 120}, document-start: disable, braces: {max-spaces-inside: 0}}"
    options = ["--strict", "--config-data", f"{{extends: default, rules: {rules}}}"]
    passes(tool("yamllint"), *options, DEPLOY / "compose.yaml", DEPLOY / "federation.yaml")


def test_the_compose_file_has_the_form_of_its_specification():
    passes(tool("check-jsonschema"), "--builtin-schema", "vendor.compose-spec", DEPLOY / "compose.yaml")


def test_the_script_for_certificates_is_a_script():
    passes("sh", "-n", DEPLOY / "certificates.sh")


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.stem)
def test_systemd_takes_the_units(unit, tmp_path):
    analyze = tool("systemd-analyze")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("consilience", "flower-superlink", "flower-supernode"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    for one in UNITS:  # they name each other
        (tmp_path / one.name).write_text(one.read_text().replace(PREFIX, str(tmp_path)))
    given = tmp_path / unit.name.replace("@.", "@0.")
    if given.name != unit.name:
        given.write_text((tmp_path / unit.name).read_text())
    done = subprocess.run([analyze, "verify", "--man=no", given], capture_output=True, text=True, check=False)
    about = [line for line in done.stderr.splitlines() if "consilience" in line or str(tmp_path) in line]
    assert about == []
    if done.returncode and "Failed to" in done.stderr and "consilience" not in done.stderr:
        pytest.skip(f"systemd does not work here: {done.stderr.splitlines()[0]}")
    assert done.returncode == 0


def commands() -> Iterator[tuple[str, list[str]]]:
    """Every command in the examples, by where it stands."""
    for name, service in COMPOSE["services"].items():
        yield f"compose {name}", [*service.get("entrypoint", []), *service["command"]]
    for unit in UNITS:
        text = unit.read_text().replace("\\\n", " ")
        yield unit.name, [Path(word).name if "/bin/" in word else word for word in shlex.split(_start(text))]
    for line in re.findall(r"`(consilience [^`]*)`", (DEPLOY / "README.md").read_text()):
        yield f"README: {line}", shlex.split(line)


def _start(unit: str) -> str:
    found = re.findall(r"^ExecStart=(.*)$", unit, flags=re.MULTILINE)
    assert len(found) == 1
    return found[0].replace("%i", "0").replace("$NEIGHBOURS", "--connect=tls/10.0.0.7:7447")


COMMANDS = dict(commands())


def test_there_are_a_server_and_three_sites_with_workers_beside_them():
    services = COMPOSE["services"]
    assert {
        "superlink",
        "monitor",
        *(f"{kind}-{n}" for n in range(3) for kind in ("site", "supernode")),
    } <= services.keys()
    for number in range(3):
        site, node = services[f"site-{number}"], services[f"supernode-{number}"]
        assert f"--client={number}" in site["command"]
        assert site["network_mode"] == "none"
        assert f'--node-config=number={number} socket="/run/consilience/site"' in node["command"]
        assert f"socket-{number}:/run/consilience" in site["volumes"]
        assert f"socket-{number}:/run/consilience" in node["volumes"]
        assert f"./certificates/site-{number}:/certificates:ro" in node["volumes"]
    named = {place.split(":")[0] for one in services.values() for place in one.get("volumes", ())}
    assert {name for name in named if not name.startswith("./")} == COMPOSE["volumes"].keys()
    assert not any("insecure" in word for one in services.values() for word in one["command"])


def test_the_federation_is_a_configuration_for_three():
    config = load_config(DEPLOY / "federation.yaml")
    assert config.population == sum(name.startswith("site-") for name in COMPOSE["services"])


@pytest.mark.parametrize("place", [name for name, words in COMMANDS.items() if words[0] == "consilience"])
def test_commands_of_ours_are_there_with_such_options(place):
    words = COMMANDS[place][1:]
    module = WRITTEN_IN.get(words[0])
    if module and importlib.util.find_spec(f"consilience.cli.{module}") is None:
        pytest.skip(f"`consilience {words[0]}` is not part of this version")
    command: Any = typer.main.get_command(app)
    while hasattr(command, "commands"):
        assert words[0] in command.commands
        command, words = command.commands[words[0]], words[1:]
    options = {name for one in command.params for name in one.opts if name.startswith("--")}
    given = {word.partition("=")[0] for word in words if word.startswith("--")}
    assert given <= options
    needed = {one.opts[0] for one in command.params if one.required and one.param_type_name == "option"}
    assert needed <= given


@pytest.mark.parametrize(
    "place", [name for name, words in COMMANDS.items() if words[0].startswith(("flower-", "flwr"))]
)
def test_options_of_flower_are_there(place):
    program, *words = COMMANDS[place]
    said = help_of(program, words[0]) if program == "flwr" else help_of(program)
    for word in words:
        if word.startswith("--"):
            assert word.partition("=")[0] in said


@functools.cache  # each takes more than a second
def help_of(program: str, *words: str) -> str:
    command = [tool(program), *words, "--help"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout
