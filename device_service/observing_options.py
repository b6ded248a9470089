"""Options of the command line about logs, metrics and recordings."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from device_service.recording_directory import make_directory
from ttserve.logs import FORMATS


def add_observing_options(own: Any) -> None:
    """Add them to the group of our own options."""
    own.add_argument(
        "--log-format",
        choices=FORMATS,
        default="text",
        help="How log lines are written: for people, or as one JSON object each.",
    )
    own.add_argument(
        "--metrics-port",
        metavar="PORT",
        type=_port,
        help="Serve Prometheus metrics at /metrics on this port; 0 takes a free one. "
        "Unset means none.",
    )
    own.add_argument(
        "--metrics-host",
        metavar="HOST",
        help="Address of the metrics port. Unset means 127.0.0.1.",
    )
    own.add_argument(
        "--recording-dir",
        metavar="DIR",
        type=_writable_directory,
        help="Where recordings are written when the engine dies and on SIGUSR1; the "
        "newest 16 are kept. Unset means ttserve/recordings in the user's cache.",
    )


def _writable_directory(text: str) -> Path:
    try:
        make_directory(Path(text))
    except OSError as error:
        raise argparse.ArgumentTypeError(
            f"nothing can be written to {text}: {error.strerror}"
        ) from None
    return Path(text)


def _port(text: str) -> int:
    if text.isascii() and text.isdigit() and int(text) < 65536:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a port, 0 to 65535")
