"""Writes a Flower app for a federation, which `flwr run` takes as it is."""

from __future__ import annotations

import json
from pathlib import Path

from consilience import __version__
from consilience.deploy.agreeing import Agreement
from consilience.deploy.files import described
from consilience.errors import UserError
from consilience.plain import write_yaml

FLOWER = "1.41"
"""The oldest Flower that carries a federation."""
FEDERATION = "federation.yaml"

PROJECT = """\
[build-system]
requires = ["hatchling"]
build-backend = "hatchling.build"

[project]
name = {name}
version = "1.0.0"
description = {description}
license = {{ file = "LICENSE" }}
# Every machine has consilience {version} beside Flower, which would install another if it stood here.
dependencies = ["flwr>={flower}"]

[tool.hatch.build.targets.wheel]
packages = ["federation"]

[tool.flwr.app]
publisher = "consilience"
fab-format-version = 1
flwr-version-target = "{flower}.0"

[tool.flwr.app.components]
serverapp = "federation.server_app:app"
clientapp = "federation.client_app:app"

[tool.flwr.app.config]
out = {out}  # the hub's files, from the folder in which the SuperLink was started
tested = false  # whether the data are on the server too, which then scores the model on their test set
strict = false  # whether a site's number never goes to another node; for SuperNodes with registered keys
"""

MODULE = '''\
"""The {side} of a federation; what it does is in consilience.deploy.flower."""

from pathlib import Path

from consilience.deploy.flower.{module} import {function}

app = {function}(Path(__file__).with_name("{file}"))
'''

LICENSE = """\
Licensed under the Apache License, Version 2.0 (the "License"); you may not use these files except in
compliance with the License. You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software distributed under the License is
distributed on an "AS IS" BASIS, WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and limitations under the License.
"""

README = """\
# {label}: {population} sites, {rounds} rounds

Written by `consilience deploy flower`; terms {run}. On every site, the configuration beside this file:

    consilience site federation/{file} --client N --data WHAT --socket /run/consilience/site --out DIR
    flower-supernode ... --node-config 'number=N socket="/run/consilience/site"'

then, where the SuperLink is, `flwr run .`; if it ends early, the same command goes on from its files.
"""


def write_app(agreement: Agreement, folder: Path) -> list[Path]:
    """The files of a federation's app, written into a folder that is empty or holds such an app."""
    if agreement.terms.graph:
        raise UserError("Flower has a server; a federation on a graph runs with `consilience node`")
    if folder.exists() and any(folder.iterdir()) and not (folder / "federation" / FEDERATION).exists():
        raise UserError(f"{folder} holds other files; name a new folder")
    name, terms = agreement.arm.config.name, agreement.terms
    label = agreement.arm.labels[0]
    texts = {
        "pyproject.toml": PROJECT.format(
            name=json.dumps(name.lower()),
            description=json.dumps(f"{label} for {terms.population} sites"),
            out=json.dumps(str(agreement.arm.config.out / f"{name}-hub")),
            version=__version__,
            flower=FLOWER,
        ),
        "LICENSE": LICENSE,
        "README.md": README.format(
            label=label, population=terms.population, rounds=terms.rounds, run=terms.run, file=FEDERATION
        ),
        "federation/__init__.py": '"""A federation."""\n',
        "federation/server_app.py": MODULE.format(
            side="ServerApp", module="server", function="server_app", file=FEDERATION
        ),
        "federation/client_app.py": MODULE.format(
            side="ClientApp", module="client", function="client_app", file=FEDERATION
        ),
        f"federation/{FEDERATION}": write_yaml(described(agreement)),
    }
    (folder / "federation").mkdir(parents=True, exist_ok=True)
    for place, text in texts.items():
        (folder / place).write_text(text)
    return [folder / place for place in texts]
