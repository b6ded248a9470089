"""The command line of `tt-device-service`: our options, then vLLM's.

Our options are few and printed in full by `--help`; vLLM's engine options keep
their names and are listed by group, as vLLM's own `--help` does.
"""

from __future__ import annotations

import argparse
import difflib
import textwrap
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.utils.argparse_utils import FlexibleArgumentParser

import ttserve
from device_service.engine_flags import SERVED, flag
from device_service.observing_options import add_observing_options
from device_service.options import MESH_KINDS, catalogue, defaults
from device_service.security import add_security_options

PROGRAM = "tt-device-service"
DEFAULT_ROWS = 32
DEFAULT_BLOCK_SIZE = 64
OWN_OPTIONS = "ttserve options"

_DESCRIPTION = """\
Runs one model on one Tenstorrent mesh, or on a stand-in for one, and serves it
to frontends over gRPC. Without --model it serves a small chat model that needs
no download from a hub."""

_EXAMPLES = """\
examples:
  tt-device-service                                # the default model on this machine
  tt-device-service --model /models/Qwen3-0.6B --max-model-len 8192
  tt-device-service --mesh sim --additional-config.tt.sim.decode_ms 12.5
  MESH_DEVICE=T3K tt-device-service --mesh ttnn --model meta-llama/Llama-3.1-8B \\
      --additional-config '{"tt": {"trace_region_size": 50000000}}'"""

_ENGINE_OPTIONS = """\
vLLM engine options:
  Every engine option of vLLM 0.30 keeps its name and meaning. One that the mesh
  cannot honour is an error that says what to do instead. --help=NAME explains
  an option, --help=GROUP a group, --help=all everything. JSON options can be
  given key by key: --structured-outputs-config.reasoning_parser qwen3"""


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Where the gRPC server listens. Port 0 lets the system choose one."""

    host: str
    port: int

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.port}"


def listen_address(text: str) -> ListenAddress:
    """Read HOST:PORT; an IPv6 host stands in brackets."""
    host, colon, port = text.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    host = host[1:-1] if bracketed else host
    plain = port.isascii() and port.isdigit() and len(port) <= 5 and int(port) <= 65535
    if not colon or not host or not plain or ((":" in host) is not bracketed):
        raise argparse.ArgumentTypeError(
            f"{text!r} is not HOST:PORT, for example 127.0.0.1:50051 or [::1]:50051"
        )
    return ListenAddress(host, int(port))


def _count(text: str) -> int:
    if text.isascii() and text.isdigit() and int(text) >= 1:
        return int(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a whole number, at least 1")


def _seconds(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if 0.0 <= value < float("inf"):
        return value
    raise argparse.ArgumentTypeError(f"{text!r} is not a number of seconds")


def _fraction(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if 0.0 < value <= 1.0:
        return value
    raise argparse.ArgumentTypeError(f"{text!r} is not above 0.0 and up to 1.0")


class _OwnFormatter(argparse.RawDescriptionHelpFormatter):
    """Defaults behind the help, where there is one."""

    def _get_help_string(self, action: argparse.Action) -> str:
        telling = action.default not in (None, False, argparse.SUPPRESS)
        return (action.help or "") + (" Default: %(default)s." if telling else "")


class _Parser(FlexibleArgumentParser):
    """vLLM's parser with errors of one line and a help that starts with ours."""

    def error(self, message: str) -> NoReturn:
        self.exit(2, f"{self.prog}: error: {self._with_hint(message)}\n")

    def _with_hint(self, message: str) -> str:
        line = " ".join(message.split())
        unknown = line.removeprefix("unrecognized arguments: ")
        if unknown == line:
            return line
        word = unknown.split()[0].partition("=")[0]
        near = difflib.get_close_matches(word, self._option_string_actions, n=1)
        hint = f"did you mean {near[0]}?" if near else "see --help"
        return f"unknown option {word}; {hint}"

    def format_help(self) -> str:
        if self._search_keyword is not None:
            return str(super().format_help())  # type: ignore[no-untyped-call]
        formatter = _OwnFormatter(self.prog, max_help_position=30)
        formatter.add_usage("%(prog)s [options] [vLLM engine options]", (), ())
        formatter.add_text(self.description)
        formatter.add_text(_EXAMPLES)
        formatter.start_section(OWN_OPTIONS)
        formatter.add_arguments(own_options(self))
        formatter.end_section()
        formatter.add_text(_tt_help())
        formatter.add_text(_engine_help(self))
        return str(formatter.format_help())


def _engine_help(parser: argparse.ArgumentParser) -> str:
    lines = [_ENGINE_OPTIONS]
    for title, fields in engine_groups(parser):
        names = [flag(field) for field in sorted(fields & SERVED)]
        if names:
            lines += [f"  {title}", *_indented(" ".join(names))]
    return "\n".join(lines)


def _indented(text: str) -> list[str]:
    margin = " " * 6
    return textwrap.wrap(
        text,
        80,
        initial_indent=margin,
        subsequent_indent=margin,
        break_on_hyphens=False,
    )


def _tt_help() -> str:
    lines = ["tt options (--additional-config.tt.NAME VALUE):"]
    preset = defaults()
    for name, option in catalogue().items():
        where = " Hardware only." if option.hardware_only else ""
        value = preset[name]
        spoken = str(value).lower() if isinstance(value, bool) else str(value)
        default = "" if value is None else f" Default: {spoken}."
        text = f"{option.help} Takes {option.expected}.{default}{where}"
        lines += [f"  {name}", *_indented(text)]
    return "\n".join(lines)


def make_parser() -> argparse.ArgumentParser:
    """The parser for the whole command line."""
    parser = _Parser(  # type: ignore[no-untyped-call]
        prog=PROGRAM, description=_DESCRIPTION, allow_abbrev=False, add_help=False
    )
    own: Any = parser.add_argument_group(OWN_OPTIONS)  # type: ignore[no-untyped-call]
    own.add_argument("-h", "--help", action="help", help="Print this text.")
    own.add_argument("--version", action="version", version=ttserve.__version__)
    _add_serving_options(own)
    add_observing_options(own)
    add_security_options(own)
    _add_resource_options(own)
    AsyncEngineArgs.add_cli_args(parser)
    parser.set_defaults(
        model=None, max_num_seqs=DEFAULT_ROWS, block_size=DEFAULT_BLOCK_SIZE
    )
    return parser


def _add_serving_options(own: Any) -> None:
    own.add_argument(
        "--listen",
        metavar="HOST:PORT",
        type=listen_address,
        default=ListenAddress("127.0.0.1", 50051),
        help="Address of the gRPC server. Port 0 takes a free one.",
    )
    own.add_argument(
        "--max-queued-requests",
        metavar="N",
        type=_count,
        help="Requests that may wait, all frontends together; beyond it a request "
        "is refused. Unset means four per row.",
    )
    own.add_argument(
        "--heartbeat-timeout",
        metavar="SECONDS",
        type=_seconds,
        default=5.0,
        help="Silence after which a frontend counts as dead.",
    )
    own.add_argument(
        "--shutdown-grace",
        metavar="SECONDS",
        type=_seconds,
        default=30.0,
        help="Time that running requests have to finish after SIGTERM or SIGINT.",
    )
    own.add_argument(
        "--enable-step-control",
        action="store_true",
        help="Let Inspector callers pause the engine, run single steps and empty "
        "the prefix cache.",
    )
    own.add_argument(
        "--enable-vllm-grpc",
        action="store_true",
        help="Also serve vllm.grpc.engine.VllmEngine, on the same port, for other "
        "gateways such as SMG; see docs/GATEWAYS.md.",
    )
    own.add_argument(
        "--step-ring",
        metavar="N",
        type=_count,
        default=4096,
        help="Step records kept, for Inspector.ListSteps and for recordings.",
    )


def _add_resource_options(own: Any) -> None:
    own.add_argument(
        "--mesh",
        choices=MESH_KINDS,
        help="Where the model runs: `ttnn` on Tenstorrent hardware, `cpu` on this "
        "machine, `sim` without a model, for protocol and load work. Unset means "
        "ttnn where it can be imported, else cpu.",
    )
    own.add_argument(
        "--kv-cache-fraction",
        metavar="F",
        type=_fraction,
        help="Share of free memory that the KV pool of the cpu mesh may take. "
        "Unset means 0.25; --kv-cache-memory-bytes states bytes instead.",
    )
    own.add_argument(
        "--threads",
        metavar="N",
        type=_count,
        help="Threads for tensor work. Unset means all cores but one, at least 2.",
    )
    own.add_argument(
        "--check",
        action="store_true",
        help="Open the mesh, say what it is, close it and leave; loads no model.",
    )
    own.add_argument(
        "--plan",
        metavar="FILE",
        type=Path,
        help="Write how many device services --data-parallel-size takes, and what each "
        "is given, as JSON, and leave; loads no model.",
    )
    own.add_argument(
        "--config",
        metavar="FILE",
        help="YAML file of options, `name: value`. The command line wins.",
    )


def own_options(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """Our own options, without `--help` and `--version`."""
    (own,) = (g for g in parser._action_groups if g.title == OWN_OPTIONS)  # noqa: SLF001
    actions = own._group_actions  # noqa: SLF001
    return [a for a in actions if a.dest not in ("help", "version")]


def engine_groups(parser: argparse.ArgumentParser) -> list[tuple[str, set[str]]]:
    """vLLM's groups of options: title, and the fields of its engine arguments."""
    return [
        (group.title or "", {action.dest for action in group._group_actions})  # noqa: SLF001
        for group in parser._action_groups  # noqa: SLF001 - argparse has no reader
        if group.title != OWN_OPTIONS
    ]
