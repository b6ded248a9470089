"""`tt-replay FILE`: runs a recording again and compares every decision.

Exit status: 0 when all are equal, 1 at the first difference, 2 when the file
cannot be replayed.
"""

from __future__ import annotations

import argparse
import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from google.protobuf.json_format import MessageToJson

import ttserve
from device_service.codec.recording_entries import NotARecording, entries
from ttserve.environment import prepare_device_service
from ttserve.errors import StartupError

if TYPE_CHECKING:
    from device_service.recording.recorder import Recording

PROGRAM = "tt-replay"
EXAMPLES = """examples:
  kill -USR1 PID                     # of tt-device-service: its log names the file
  tt-replay stall.ttrec              # what it holds, and whether all is equal
  tt-replay stall.ttrec --step 4711  # what was decided about one step
  tt-replay stall.ttrec --print | jq .   # what is in the file
"""
DIFFERENT_STATUS = 1
USAGE_STATUS = 2


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command; the exit status."""
    options = _parser().parse_args(argv)
    try:
        data = Path(options.file).read_bytes()
        if options.print:
            for entry in entries(data):
                sys.stdout.write(MessageToJson(entry, indent=None) + "\n")
            return 0
        return _replay(data, step=options.step, as_json=options.json)
    except BrokenPipeError:  # whoever reads has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        return _refuse(f"{options.file}: {error.strerror}")
    except (NotARecording, StartupError) as error:
        return _refuse(f"{options.file}: {error}")


def _replay(data: bytes, *, step: int | None, as_json: bool) -> int:
    prepare_device_service(model=None)
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")  # noqa: TID251 - before vLLM is imported
    # These import vLLM and torch, which read the environment once.
    from device_service.codec.recording_file import decode
    from device_service.replay.run import replay
    from device_service.replay.show import as_object, detail, report

    recording = decode(data)
    _check_step(recording, step)
    with _quiet_engine():
        replayed = replay(recording)
    if as_json:
        sys.stdout.write(json.dumps(as_object(replayed)) + "\n")
    elif step is not None:
        sys.stdout.write(detail(replayed, step) + "\n")
    else:
        sys.stdout.write(report(replayed) + "\n")
    return 0 if replayed.difference is None else DIFFERENT_STATUS


@contextmanager
def _quiet_engine() -> Iterator[None]:
    """What fails in a replay failed when it was recorded, or is the difference."""
    engine = logging.getLogger("device_service")
    level = engine.level
    engine.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        engine.setLevel(level)


def _check_step(recording: Recording, step: int | None) -> None:
    numbers = [it.number for it in recording.steps]
    if step is None or step in numbers:
        return
    held = f"{numbers[0]} to {numbers[-1]}" if numbers else "no steps"
    raise NotARecording(f"it has no step {step}; it holds {held}")


def _refuse(message: str) -> int:
    sys.stderr.write(f"{PROGRAM}: error: {message}\n")
    return USAGE_STATUS


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog=PROGRAM,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=EXAMPLES,
        description="Replays a recording of tt-device-service on the simulated mesh\n"
        "and compares every scheduling decision. Exit status: 0 all are equal,\n"
        "1 they differ, 2 the file cannot be replayed.",
    )
    parser.add_argument("--version", action="version", version=ttserve.__version__)
    parser.add_argument("file", metavar="FILE", help="A recording.")
    shown = parser.add_mutually_exclusive_group()
    shown.add_argument(
        "--print",
        action="store_true",
        help="Print what is in the file, a line of JSON for each part; replay nothing.",
    )
    shown.add_argument("--json", action="store_true", help="Print the result as JSON.")
    shown.add_argument(
        "--step", metavar="N", type=int, help="Print what was decided about step N."
    )
    return parser


if __name__ == "__main__":
    sys.exit(main())
