"""Ask the advisory database about the pinned packages, and say so plainly where it cannot be reached.

    python tools/audit.py PIP_AUDIT

Ends with 1 where a pinned package has a known vulnerability, with 2 where nobody could be asked.
"""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
ADVISORIES = "api.osv.dev"
UNREACHABLE = (
    f"nothing was audited: {ADVISORIES}, which knows of vulnerabilities, cannot be reached from here"
)


def main(program: str) -> int:
    """Run pip-audit over the pins."""
    try:
        socket.create_connection((ADVISORIES, 443), timeout=10).close()
    except OSError as error:
        print(f"{UNREACHABLE} ({error}); run `make audit` where it can", file=sys.stderr)
        return 2
    command = [program, "--vulnerability-service", "osv", "--no-deps", "--disable-pip"]
    return subprocess.run([*command, "-r", str(ROOT / "constraints.txt")], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
