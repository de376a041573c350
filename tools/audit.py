"""Ask the advisory database about the pinned packages, and say so plainly where it cannot be reached.

    python tools/audit.py FOLDER

pip-audit gets an environment of its own in the folder. Ends with 1 where a pinned package has a known
vulnerability, with 2 where nobody could be asked.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

ROOT = Path(__file__).parents[1]
ADVISORIES = "https://api.osv.dev/"


def reached(address: str) -> str:
    """Why an address cannot be reached, through a proxy where there is one; nothing where it can."""
    try:
        urlopen(address, timeout=10).close()
    except HTTPError:  # it has answered
        return ""
    except OSError as error:
        return str(getattr(error, "reason", error))
    return ""


def main(folder: Path) -> int:
    """Run pip-audit over the pins."""
    if why := reached(ADVISORIES):
        return _nothing(f"{ADVISORIES}, which knows of vulnerabilities, cannot be reached from here ({why})")
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    install = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "pip-audit"]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    if done.returncode:
        said = done.stderr.strip().splitlines() or ["pip says nothing"]
        return _nothing(f"pip-audit cannot be installed ({said[-1]})")
    command = [python, "-m", "pip_audit", "--vulnerability-service", "osv", "--no-deps", "--disable-pip"]
    return subprocess.run([*command, "-r", str(ROOT / "constraints.txt")], check=False).returncode


def _nothing(why: str) -> int:
    print(f"nothing was audited: {why}; run `make audit` where it can", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
