"""The command line and the environment of `tt-serve`, checked and frozen."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, pairwise
from typing import NoReturn

import ttserve
from ttserve.errors import StartupError
from ttserve.launcher.flags import Owner, sort_flags

# Others reach the gRPC port only where a device service is started by itself.
GRPC_HOST = "127.0.0.1"
MOST_FRONTENDS = 64
MOST_DEVICES = 64
LOG_FORMAT = "--log-format"
HIGHEST_PORT = 65535

DESCRIPTION = """\
Serve a model on this machine: a device service, which owns the accelerator, or
several, and one or more frontends, which speak OpenAI's HTTP API. They are started,
watched, restarted when they fail, and stopped together by one Ctrl-C.
"""

EPILOG = """\
Every other flag belongs to the device service (vLLM's engine flags and its own)
or to the frontends (vLLM's server flags and their own) and is passed on.
`tt-device-service --help` and `tt-frontend --help` explain them.

examples:
  tt-serve
      the default model, http://127.0.0.1:8000
  tt-serve ./my-model --port 8080 --frontends 3
      a local directory, three frontends behind one port
  tt-serve --data-parallel-size 2
      two device services, which all frontends use
  tt-serve --max-model-len 4096 --max-num-seqs 8
      less memory for the KV cache (goes to the device service)
  tt-serve --api-key secret --enable-auto-tool-choice --tool-call-parser hermes
      a key, and tools (goes to the frontends)
  tt-serve --mesh sim
      no weights at all: a simulated device, for load and protocol work

signals:
  SIGINT, SIGTERM, SIGHUP  stop; requests have --shutdown-timeout to finish
  SIGUSR1                  the device services write recordings (tt-replay)
  SIGUSR2                  restart the frontends, one at a time

exit codes:
  0    stopped by a signal, in order
  2    the command line is wrong, or a port is taken
  130  killed by a second Ctrl-C
  else the code of the part that could not be kept running
"""


@dataclass(frozen=True)
class LauncherConfig:
    """What to run. Ports are numbers as typed; HTTP port 0 means any free one."""

    model: str | None
    host: str
    port: int
    # Of the first device service; each further one takes the next number.
    grpc_port: int
    data_parallel_size: int
    # Of the first frontend; each further one takes the next number.
    metrics_port: int
    # Of the first device service; None: they serve no metrics.
    device_metrics_port: int | None
    frontends: int
    # For requests under way when the launcher is told to stop.
    shutdown_seconds: float
    device_flags: tuple[str, ...]
    frontend_flags: tuple[str, ...]

    @property
    def http_url(self) -> str:
        """As a client on this machine would write it."""
        is_tls = any(flag.startswith("--ssl-certfile") for flag in self.frontend_flags)
        host = reachable(self.host)
        bracketed = f"[{host}]" if ":" in host else host
        return f"{'https' if is_tls else 'http'}://{bracketed}:{self.port}"

    @property
    def logs_json(self) -> bool:
        """Whether both parts were told to; the last word counts, as for them."""
        words = " ".join(self.device_flags).replace("=", " ").split()
        formats = [b for a, b in pairwise(words) if a.replace("_", "-") == LOG_FORMAT]
        return formats[-1:] == ["json"]

    def grpc_address(self, device: int) -> str:
        return f"{GRPC_HOST}:{self.grpc_port + device}"


def parse(argv: Sequence[str]) -> LauncherConfig:
    """Raises StartupError; `--help` prints and exits."""
    flags = sort_flags(argv)
    own_words = flags.by_owner[Owner.LAUNCHER]
    if any(word.startswith("--help=") for word in own_words):
        raise StartupError(
            "ask the part that has the flags: tt-device-service --help=WORD"
        )
    own = _parser().parse_args(own_words)
    _check_ports(own)
    return LauncherConfig(
        model=_the_model(flags.positional, own.model),
        host=own.host,
        port=own.port,
        grpc_port=own.grpc_port,
        data_parallel_size=own.data_parallel_size,
        metrics_port=own.metrics_port,
        device_metrics_port=own.device_metrics_port,
        frontends=own.frontends,
        shutdown_seconds=own.shutdown_timeout,
        device_flags=tuple(flags.by_owner[Owner.DEVICE]),
        frontend_flags=tuple(flags.by_owner[Owner.FRONTEND]),
    )


def reachable(host: str) -> str:
    """Where a program on this machine reaches what listens on `host`."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def wants_colour(
    environment: Mapping[str, str] = os.environ, *, is_terminal: bool
) -> bool:
    """NO_COLOR is the convention of https://no-color.org."""
    return is_terminal and not environment.get("NO_COLOR")


def with_variables(
    variables: Mapping[str, str], environment: Mapping[str, str] = os.environ
) -> Mapping[str, str]:
    """The environment of a child that has some variables of its own."""
    return {**environment, **variables}


def _check_ports(own: argparse.Namespace) -> None:
    """Every process has ports of its own."""
    given = (
        ("--grpc-port", own.grpc_port, own.data_parallel_size),
        ("--metrics-port", own.metrics_port, own.frontends),
        ("--device-metrics-port", own.device_metrics_port, own.data_parallel_size),
    )
    taken = {
        name: range(first, first + count)
        for name, first, count in given
        if first is not None
    }
    for name, ports in taken.items():
        if ports[-1] > HIGHEST_PORT:
            raise StartupError(f"no {len(ports)} ports from {name} {ports[0]} on")
        if own.port in ports:
            raise StartupError(f"--port {own.port} is one of {_ports(name, ports)}")
    for (name, ports), (other, others) in combinations(taken.items(), 2):
        if max(ports[0], others[0]) <= min(ports[-1], others[-1]):
            raise StartupError(
                f"{_ports(name, ports)} and {_ports(other, others)} share some"
            )


def _ports(name: str, ports: range) -> str:
    if len(ports) == 1:
        return f"{name} {ports[0]}"
    return f"the {len(ports)} ports from {name} {ports[0]} on"


def _the_model(positional: Sequence[str], named: str | None) -> str | None:
    models = [*positional, *([named] if named is not None else [])]
    if len(models) > 1:
        raise StartupError(f"one model at a time, but got: {' '.join(models)}")
    return models[0] if models else None


class _OneLineParser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise StartupError(message)


def _parser() -> argparse.ArgumentParser:
    parser = _OneLineParser(
        prog="tt-serve",
        usage="tt-serve [MODEL] [--frontends N] [--port PORT] [flags for both parts]",
        description=DESCRIPTION,
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version", action="version", version=f"ttserve {ttserve.__version__}"
    )
    parser.add_argument(
        "--model",
        metavar="MODEL",
        help="a local directory or hub id; also the first plain argument "
        "(default: SmolLM2-135M-Instruct, made ready on first use)",
    )
    _add_processes(parser)
    _add_addresses(parser)
    parser.add_argument(
        "--shutdown-timeout",
        metavar="SECONDS",
        type=_seconds,
        default=30.0,
        help="for requests to finish when told to stop; who has not stopped "
        "ten seconds later is killed (default: 30)",
    )
    return parser


def _add_processes(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--data-parallel-size",
        "-dp",
        metavar="N",
        type=_whole_number(1, MOST_DEVICES),
        default=1,
        help="how many replicas of the model: lanes of one mesh for models that run "
        "so, else device services, each with a group of devices (default: 1)",
    )
    parser.add_argument(
        "--frontends",
        metavar="N",
        type=_whole_number(1, MOST_FRONTENDS),
        default=1,
        help="how many frontends share the HTTP port (default: 1)",
    )


def _add_addresses(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--host",
        default="127.0.0.1",
        help="address for HTTP; 0.0.0.0 for other machines (default: 127.0.0.1)",
    )
    parser.add_argument(
        "--port",
        type=_whole_number(0, HIGHEST_PORT),
        default=8000,
        help="for HTTP; 0 takes a free one (default: 8000)",
    )
    parser.add_argument(
        "--grpc-port",
        metavar="PORT",
        type=_whole_number(1, HIGHEST_PORT),
        default=50051,
        help="of the first device service, on 127.0.0.1; the second takes the next, "
        "and so on (default: 50051)",
    )
    parser.add_argument(
        "--metrics-port",
        metavar="PORT",
        type=_whole_number(1, HIGHEST_PORT),
        default=9100,
        help="of the first frontend's own /metrics and /ready; the second takes "
        "the next, and so on (default: 9100)",
    )
    parser.add_argument(
        "--device-metrics-port",
        metavar="PORT",
        type=_whole_number(1, HIGHEST_PORT),
        help="of the first device service's own /metrics; the second takes the next, "
        "and so on (default: none is served)",
    )


def _whole_number(low: int, high: int) -> Callable[[str], int]:
    def convert(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(
                f"{text!r} is not a whole number from {low} to {high}"
            )
        return int(text)

    return convert


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")
    return seconds
