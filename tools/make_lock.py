"""Write requirements.lock: the digests that the packages of constraints.txt have on PyPI, for all platforms.

pip reads the file as constraints and then installs nothing whose digest is not in it. torch is left out:
which build of it is wanted (CPU, CUDA, one from elsewhere) is for each machine to say.

    python tools/make_lock.py [--check]
"""

from __future__ import annotations

import argparse
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from html.parser import HTMLParser
from pathlib import Path
from urllib.request import urlopen

ROOT = Path(__file__).parents[1]
INDEX = "https://pypi.org/simple"
ELSEWHERE = frozenset({"torch"})
HEAD = """\
# The packages of constraints.txt with the digests of all their files on PyPI. Made by tools/make_lock.py.
# `make` installs with it everything but torch, of which each machine has the build that it needs.
"""


class Links(HTMLParser):
    """The files that a page of the index names, with their digests."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[str, str] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Take note of a link."""
        path, _, digest = (dict(attrs).get("href") or "").partition("#sha256=")
        if tag == "a" and digest:
            self.found[path.rpartition("/")[2]] = digest


def normalised(name: str) -> str:
    """What the index calls a project."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pinned(path: Path) -> dict[str, str]:
    """The versions in a file of constraints, by the names of projects."""
    lines = [line.partition("#")[0].split(" ")[0].strip() for line in path.read_text().splitlines()]
    return {
        normalised(name): version
        for name, _, version in (line.partition("==") for line in lines if "==" in line)
    }


def usable(file: str) -> bool:
    """Whether a file is a source, or a wheel that some Python can use for which this project is meant."""
    if not file.endswith(".whl"):
        return True
    python, abi, _ = file.removesuffix(".whl").split("-")[-3:]
    interpreter = re.fullmatch(r"cp3(\d+)", python)
    return abi in {"abi3", "none"} or (interpreter is not None and int(interpreter[1]) >= 11)


def digests(name: str, version: str) -> list[str]:
    """The digests of all files of a version."""
    links = Links()
    with urlopen(f"{INDEX}/{name}/", timeout=60) as answer:
        links.feed(answer.read().decode())
    project = re.escape(name).replace(r"\-", "[-_.]+")
    own = re.compile(rf"{project}-{re.escape(version)}(-.+\.whl|\.tar\.gz|\.zip)", re.IGNORECASE)
    found = sorted(digest for file, digest in links.found.items() if own.fullmatch(file) and usable(file))
    if not found:
        sys.exit(f"{INDEX} has no {name} {version}")
    return found


def locked() -> str:
    """The text of the lock."""
    versions = {
        name: version for name, version in pinned(ROOT / "constraints.txt").items() if name not in ELSEWHERE
    }
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(digests, versions, versions.values()))
    entries = [
        f"{name}=={version}" + "".join(f" \\\n    --hash=sha256:{digest}" for digest in one)
        for (name, version), one in zip(versions.items(), found, strict=True)
    ]
    return HEAD + "\n".join(sorted(entries)) + "\n"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="only say whether the file is current")
    path, text = ROOT / "requirements.lock", locked()
    if parser.parse_args().check:
        sys.exit(None if path.read_text() == text else "requirements.lock is not what the index says today")
    path.write_text(text)
