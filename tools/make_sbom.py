"""Print a software bill of materials: CycloneDX 1.6 JSON of what is installed, from its own metadata.

    python tools/make_sbom.py [PACKAGE] > sbom.cdx.json

Without a package: everything in the environment; with one, what it needs. The same environment gives the same
bytes: there is no date in it, and its serial number is made of its content.
"""

from __future__ import annotations

import json
import platform
import re
import sys
import tomllib
import uuid
from importlib.metadata import Distribution, distributions
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

ROOT = Path(__file__).parents[1]
NAMESPACE = uuid.UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")  # that of URLs, as RFC 4122 gives it


def normalised(name: str) -> str:
    """What the index calls a project."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed() -> dict[str, Distribution]:
    """The distributions of this environment, by name."""
    found = {normalised(one.metadata["Name"]): one for one in distributions() if one.metadata["Name"]}
    return dict(sorted(found.items()))


def needs(one: Distribution, there: dict[str, Distribution]) -> list[str]:
    """The names of the distributions that one asks for without extras, as far as they are there."""
    asked = [Requirement(line) for line in one.requires or []]
    names = {normalised(a.name) for a in asked if a.marker is None or a.marker.evaluate({"extra": ""})}
    return sorted(names & there.keys())


def closure(name: str, there: dict[str, Distribution]) -> dict[str, Distribution]:
    """A distribution and all that it needs."""
    found: dict[str, Distribution] = {}
    waiting = [normalised(name)]
    while waiting:
        if (one := waiting.pop()) not in found:
            found[one] = there[one]
            waiting += needs(there[one], there)
    return dict(sorted(found.items()))


def reference(name: str, version: str) -> str:
    """The package URL of a distribution; a local version is a build that PyPI does not have."""
    return f"pkg:pypi/{name}@{version.replace('+', '%2B')}"


def component(name: str, one: Distribution) -> dict[str, Any]:
    """What the bill says about a distribution."""
    said = one.metadata
    found: dict[str, Any] = {"type": "library", "name": name, "version": one.version}
    found |= {"purl": reference(name, one.version), "bom-ref": reference(name, one.version)}
    if licence := said.get("License-Expression"):
        found["licenses"] = [{"expression": licence}]
    elif (licence := said.get("License")) and len(licence) < 80 and "\n" not in licence:
        found["licenses"] = [{"license": {"name": licence}}]
    return found


def bill(root: str | None) -> dict[str, Any]:
    """The bill of materials of this environment, or of one package in it."""
    there = installed()
    chosen = there if root is None else closure(root, there)
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    own = normalised(project["name"])
    subject = reference(own, project["version"])
    content: dict[str, Any] = {
        "metadata": {
            "component": {
                "type": "application",
                "name": own,
                "version": project["version"],
                "bom-ref": subject,
            },
            "properties": [{"name": "python", "value": platform.python_version()}],
        },
        "components": [component(name, one) for name, one in chosen.items() if name != own],
        "dependencies": [
            {
                "ref": reference(name, one.version),
                "dependsOn": [reference(other, there[other].version) for other in needs(one, chosen)],
            }
            for name, one in chosen.items()
        ],
    }
    serial = uuid.uuid5(NAMESPACE, json.dumps(content, sort_keys=True))
    head = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{serial}",
        "version": 1,
    }
    return {**head, **content}


if __name__ == "__main__":
    print(json.dumps(bill(sys.argv[1] if len(sys.argv) > 1 else None), indent=1))
