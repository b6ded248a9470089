"""The command line of `tt-top`."""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

import ttserve
from ttserve.client_security import (
    ChannelSecurity,
    add_channel_options,
    channel_security,
)
from ttserve.errors import StartupError

DEFAULT_ADDRESS = "127.0.0.1:50051"
PIPE_COLUMNS = 160  # nothing is cut
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:/\s,]+):(?P<port>\d{1,5})")

_EPILOG = """\
keys: q quit, p pause the view, left and right choose a lane (or all)

  tt-top                      the device service of this machine
  tt-top device:50051 --once  one picture, for a pipe

exit codes: 0 in order; 1 the device service cannot be reached, or refuses; 2 the
command line is wrong
"""


@dataclass(frozen=True, slots=True)
class TopConfig:
    """Where to look and how. `pipe_columns` is how wide a picture in a pipe is;
    None leaves that to COLUMNS.
    """

    address: str
    security: ChannelSecurity
    once: bool
    pipe_columns: int | None


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise StartupError(message)


def read_command_line(
    arguments: Sequence[str], environ: Mapping[str, str] = os.environ
) -> TopConfig:
    """Read the options; StartupError for what is malformed."""
    parser = _Parser(
        prog="tt-top",
        description="Shows what a device service is doing: lanes, rows, queues, KV "
        "blocks, sessions, and its steps as they happen.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=ttserve.__version__)
    parser.add_argument(
        "address",
        nargs="?",
        default=DEFAULT_ADDRESS,
        metavar="HOST:PORT",
        help="of the device service (%(default)s)",
    )
    parser.add_argument("--once", action="store_true", help="print one picture and end")
    add_channel_options(parser.add_argument_group("TLS and tokens"))
    options = parser.parse_args(arguments)
    address = _ADDRESS.fullmatch(options.address)
    if address is None or not 0 < int(address["port"]) < 65536:
        raise StartupError(
            f"{options.address!r} is not HOST:PORT (for example {DEFAULT_ADDRESS} "
            "or [::1]:50051)"
        )
    security = channel_security(options, environ)
    pipe_columns = None if environ.get("COLUMNS") else PIPE_COLUMNS
    return TopConfig(options.address, security, options.once, pipe_columns)
