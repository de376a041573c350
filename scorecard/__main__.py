"""`python -m scorecard [--quick] [--missing | --check N ...]`: attack, print, write docs/reliability.md."""

from __future__ import annotations

import argparse
import json
import logging
import signal
import sys
from pathlib import Path

from scorecard.checks import CHECKS, Check
from scorecard.launching import stop_with_parent
from scorecard.page import page
from scorecard.running import RESULTS, ROOT, Record, attacked, exceeded, kept, missing, read, run

PAGE = ROOT / "docs" / "reliability.md"


def main() -> int:
    """Run the checks that are asked for; 1 where a gate is below 100 %."""
    options = arguments()
    logging.getLogger("flwr").setLevel(logging.ERROR)
    if options.one is not None:
        stop_with_parent()
        options.results.write_text(json.dumps(attacked(options.one, quick=options.quick)))
        return 0
    if options.page:
        PAGE.write_text(page(read(RESULTS)))
        return 0
    results = options.results or (None if options.quick else RESULTS)
    numbers = options.check or [check.number for check in CHECKS if check.quick or not options.quick]
    if options.missing:
        numbers = missing(read(results or RESULTS))
    chosen = [check for check in CHECKS if check.number in numbers]
    for number in (signal.SIGINT, signal.SIGTERM):  # a shell may have them ignored, or end without a word
        signal.signal(number, signal.default_int_handler)
    try:
        found = run(chosen, results, quick=options.quick, told=tell)
    except KeyboardInterrupt:
        print(
            "interrupted; `python -m scorecard --missing` goes on with what was not measured", file=sys.stderr
        )
        return 130
    finally:
        if results == RESULTS:
            PAGE.write_text(page(read(RESULTS)))
    broken = [check.number for check in chosen if not kept(check, found[str(check.number)])]
    gates = [check.number for check in chosen if check.gate and check.number in broken]
    print(f"{len(chosen) - len(broken)} of {len(chosen)} kept" + (f"; not kept: {broken}" if broken else ""))
    if gates:
        print(f"gates below 100 %: {gates}", file=sys.stderr)
    return 1 if gates else 0


def arguments() -> argparse.Namespace:
    """What is asked for."""
    parser = argparse.ArgumentParser(prog="python -m scorecard", description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="few trials; nothing is written unless --results is given"
    )
    which = parser.add_mutually_exclusive_group()
    which.add_argument(
        "--check", type=int, nargs="+", metavar="N", help="only these, merged into the results"
    )
    which.add_argument(
        "--missing", action="store_true", help="only those without a whole result of the sources as they are"
    )
    which.add_argument(
        "--page", action="store_true", help="write the page anew from the results, and run nothing"
    )
    which.add_argument("--one", type=int, help=argparse.SUPPRESS)  # in a process of its own
    parser.add_argument(
        "--results", type=Path, help=f"the file of results; by default {RESULTS.relative_to(ROOT)}"
    )
    options = parser.parse_args()
    known = {check.number: check for check in CHECKS}
    for number in options.check or ():
        if number not in known:
            parser.error(f"there are checks 1 to {len(CHECKS)}, not {number}")
        if options.quick and not known[number].quick:
            parser.error(f"check {number} cannot be done with few trials")
    return options


def tell(check: Check, record: Record) -> None:
    """Print a line about a check, and what was not kept."""
    mark = "kept" if kept(check, record) else "GATE BROKEN" if check.gate else "not kept"
    for name, one in {"": record, "plain Flower: ": record.get("flower")}.items():
        if one is not None:
            figures = "".join(f", {figure} {value}" for figure, value in one["figures"].items())
            took = "" if name else f"  [{record['seconds']:.0f} s, load {record['load'][1]:g}]"
            count = f"{one['passed']:,} of {one['trials']:,}{figures}"
            print(
                f"{check.number:2}  {'' if name else mark:11}  {name or check.name + ': '}{count}{took}",
                flush=True,
            )
    for fault in (*record["faults"], *exceeded(check, record)):
        print(f"      {fault}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
