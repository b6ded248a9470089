"""`python -m tests.chaos [NAME ...]`: do harm, check, print a table, write chaos.json.

The exit status is 1 when something did not hold or a case could not run.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from bench.progress import say
from bench.registry import CannotRun
from bench.results import Result, table, write_json
from tests.chaos.registry import Case, Setting, all_cases, chosen

OUTPUT = Path(__file__).resolve().parents[2] / "chaos.json"


def main(argv: Sequence[str]) -> int:
    """Run what was chosen; 1 if something did not hold, 2 for a wrong name."""
    arguments = _parser().parse_args(argv)
    cases = all_cases()
    if arguments.list:
        width = max(len(case.name) for case in cases)
        print("\n".join(f"{case.name:<{width}}  {case.shows}" for case in cases))
        return 0
    try:
        selected = chosen(cases, arguments.names)
    except LookupError as error:
        print(f"error: {error}; --list names them", file=sys.stderr)
        return 2
    results, failures = run_all(selected, arguments.seed)
    print(table(results))
    write_json(results, arguments.output)
    for line in failures:
        print(line)
    missed = [result.name for result in results if result.ok is False]
    if missed:
        print(f"did not hold: {', '.join(missed)}; seed {arguments.seed}")
    return 1 if missed or failures else 0


def run_all(selected: Sequence[Case], seed: int) -> tuple[list[Result], list[str]]:
    """What was measured, and a line for each case that could not run."""
    load = os.getloadavg()[0]
    say(f"{os.cpu_count()} cores, load {load:.1f} before the first case, seed {seed}")
    results: list[Result] = []
    failures: list[str] = []
    for number, case in enumerate(selected, start=1):
        say(f"[{number}/{len(selected)}] {case.name}: {case.shows}")
        began = time.monotonic()
        directory = Path(tempfile.mkdtemp(prefix=f"chaos-{case.name}-"))
        earlier, failed_earlier = len(results), len(failures)
        try:
            for result in case.run(Setting(directory, seed)):
                results.append(result)
                say(f"  {result.name} = {result.value:,.4g} {result.unit}")
        except CannotRun as error:
            failures.append(f"could not run: {case.name}: {error}")
            say(f"  could not run: {error}")
        except Exception as error:  # noqa: BLE001 - the others still run
            traceback.print_exc()
            failures.append(f"failed: {case.name}: {type(error).__name__}: {error}")
        missed = any(result.ok is False for result in results[earlier:])
        if missed or len(failures) > failed_earlier:
            say(f"  logs: {directory}")
        else:
            shutil.rmtree(directory)
        say(f"  took {time.monotonic() - began:.0f} s")
    return results, failures


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a name or its start")
    parser.add_argument("--list", action="store_true", help="name them and stop")
    parser.add_argument(
        "--seed",
        type=int,
        default=random.SystemRandom().randrange(1 << 32),
        help="of everything that is drawn; default: another one each time",
    )
    parser.add_argument(
        "--output", type=Path, default=OUTPUT, help="default: chaos.json at the root"
    )
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
