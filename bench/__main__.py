"""`python -m bench [NAME ...]`: measure, print a table, write bench.json.

A target that is missed is printed, not an exit status; a benchmark that could
not run is.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path

from bench.progress import say
from bench.registry import Benchmark, CannotRun, all_benchmarks, chosen
from bench.results import Result, table, write_json
from bench.rounds import ROUNDS

OUTPUT = Path(__file__).resolve().parent.parent / "bench.json"


def main(argv: Sequence[str]) -> int:
    """Run what was chosen; 1 if something could not run, 2 for a wrong name."""
    arguments = _parser().parse_args(argv)
    benchmarks = all_benchmarks()
    if arguments.list:
        print(_listing(benchmarks))
        return 0
    try:
        selected = chosen(benchmarks, [*arguments.names, *arguments.only])
    except LookupError as error:
        print(f"error: {error}; --list names them", file=sys.stderr)
        return 2
    results, could_not_run = run_all(selected, arguments.rounds)
    print(table(results))
    write_json(results, arguments.output)
    for line in could_not_run:
        print(f"could not run: {line}")
    return 1 if could_not_run else 0


def run_all(
    selected: Sequence[Benchmark], rounds: int
) -> tuple[list[Result], list[str]]:
    """What was measured, and a line for each benchmark that could not run."""
    load = os.getloadavg()[0]
    say(f"{os.cpu_count()} cores, load {load:.1f} before the first benchmark")
    results: list[Result] = []
    could_not_run: list[str] = []
    for number, item in enumerate(selected, start=1):
        say(f"[{number}/{len(selected)}] {item.name}: {item.shows}")
        began = time.monotonic()
        try:
            for result in item.run(rounds):
                results.append(result)
                say(f"  {result.name} = {result.value:,.4g} {result.unit}")
        except CannotRun as error:
            could_not_run.append(f"{item.name}: {error}")
            say(f"  could not run: {error}")
        except Exception as error:  # noqa: BLE001 - the others still run
            traceback.print_exc()
            could_not_run.append(f"{item.name}: {type(error).__name__}: {error}")
        say(f"  took {time.monotonic() - began:.0f} s")
    return results, could_not_run


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a name or its start")
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--list", action="store_true", help="name them and stop")
    parser.add_argument(
        "--rounds", type=int, default=ROUNDS, help=f"at most; default: {ROUNDS}"
    )
    parser.add_argument(
        "--output", type=Path, default=OUTPUT, help="default: bench.json at the root"
    )
    return parser


def _listing(benchmarks: Sequence[Benchmark]) -> str:
    width = max(len(b.name) for b in benchmarks)
    return "\n".join(
        f"{b.name:<{width}}  {b.shows}\n{'':<{width}}  target: {b.target}"
        for b in benchmarks
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
