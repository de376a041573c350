"""Runs one node of several federations, one after the other: torch is imported once."""

import json
import sys
from pathlib import Path

from consilience.cli.noding import run_node

if __name__ == "__main__":
    for file, number, keys, listen, connect, out in json.loads(sys.argv[1]):
        code = run_node(Path(file), [], number, Path(keys), listen, connect, None, Path(out))
        if code:
            sys.exit(code)
