"""`python -m scorecard [--quick] [--check N ...]`: attack, print, write results and docs/reliability.md."""

from __future__ import annotations

import argparse
import json
import logging
import sys
from pathlib import Path

from scorecard.checks import CHECKS, Check
from scorecard.page import page
from scorecard.running import RESULTS, ROOT, Record, attacked, kept, read, run

PAGE = ROOT / "docs" / "reliability.md"


def main() -> int:
    """Run the checks that are asked for; 1 where a gate is below 100 %."""
    parser = argparse.ArgumentParser(prog="python -m scorecard", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="few trials; nothing is written unless --results is given"
    )
    parser.add_argument(
        "--check", type=int, nargs="+", metavar="N", help="only these, merged into the results"
    )
    parser.add_argument(
        "--results", type=Path, help=f"the file of results; by default {RESULTS.relative_to(ROOT)}"
    )
    parser.add_argument(
        "--page", action="store_true", help="write the page anew from the results, and run nothing"
    )
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)  # in a process of its own
    options = parser.parse_args()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    if options.one is not None:
        options.results.write_text(json.dumps(attacked(options.one, quick=options.quick)))
        return 0
    if options.page:
        PAGE.write_text(page(read(RESULTS)))
        return 0
    numbers = options.check or [check.number for check in CHECKS if check.quick or not options.quick]
    unknown = set(numbers) - {check.number for check in CHECKS}
    if unknown:
        parser.error(f"there are checks 1 to {len(CHECKS)}, not {min(unknown)}")
    chosen = [check for check in CHECKS if check.number in numbers]
    results = options.results or (Path("/dev/null") if options.quick else RESULTS)
    found = run(chosen, results, quick=options.quick, told=tell)
    if results == RESULTS:
        PAGE.write_text(page(read(RESULTS)))
    broken = [check.number for check in chosen if not kept(check, found[str(check.number)])]
    gates = [check.number for check in chosen if check.gate and check.number in broken]
    print(f"{len(chosen) - len(broken)} of {len(chosen)} kept" + (f"; not kept: {broken}" if broken else ""))
    if gates:
        print(f"gates below 100 %: {gates}", file=sys.stderr)
    return 1 if gates else 0


def tell(check: Check, record: Record) -> None:
    """Print a line about a check."""
    mark = "kept" if kept(check, record) else "GATE BROKEN" if check.gate else "not kept"
    figures = "".join(f", {name} {value}" for name, value in record["figures"].items())
    count = f"{record['passed']:,} of {record['trials']:,}{figures}"
    took = f"{record.get('seconds', 0.0):.0f} s, load {record['load'][1]:g}"
    print(f"{check.number:2}  {mark:11}  {check.name}: {count}  [{took}]", flush=True)
    for fault in record["faults"]:
        print(f"      {fault}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
