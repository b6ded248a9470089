"""The command line of `tt-frontend`: its options and what `--help` says."""

from __future__ import annotations

import argparse
from importlib.metadata import version
from typing import Any, NoReturn

import ttserve
from frontend import options
from ttserve.client_security import add_channel_options
from ttserve.errors import StartupError
from ttserve.logs import FORMATS

PING_SECONDS = 0.5
LOST_AFTER_SECONDS = 1.5
MAX_BODY_BYTES = 32 << 20
MAX_CONNECTIONS = 4096
SHUTDOWN_SECONDS = 30.0


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise StartupError(message)


_DESCRIPTION = """\
Serves the OpenAI API over HTTP for a model that runs in a device service.

It needs no model files: name, limits, defaults and tokenizer come from the
device service. Start as many as you like, on any machine that reaches it.

  tt-frontend --device-service 127.0.0.1:50051
  curl http://127.0.0.1:8000/v1/models
"""

_EPILOG = """\
The port answers at once: GET /live says that the process runs, GET /ready
(also /health) whether a request can be served, and if not, why.

vLLM's options for its server keep their names and are accepted here:
{accepted}

What decides how the model runs or what a grammar means (--model, --dtype,
--max-model-len, --reasoning-parser, ...) is given to tt-device-service.
"""


def parser() -> argparse.ArgumentParser:
    """Reads what is ours; vLLM's options are left over."""
    accepted = "\n".join(
        f"  {options.flag(name):34} {text}" for name, text in options.ACCEPTED.items()
    )
    built = _Parser(
        prog="tt-frontend",
        description=_DESCRIPTION,
        epilog=_EPILOG.format(accepted=accepted),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    built.add_argument(
        "--version",
        action="version",
        version=f"ttserve {ttserve.__version__} (vLLM {version('vllm')})",
    )
    _add_device_options(built)
    _add_http_options(built)
    _add_server_options(built)
    return built


def _add_device_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("device services")
    group.add_argument(
        "--device-service",
        action="append",
        metavar="HOST:PORT",
        help="required; HOST:PORT,HOST:PORT,... for several (or repeat the option), "
        "or one DNS name with several addresses, which is looked up again and again",
    )
    group.add_argument(
        "--device-timeout",
        type=_positive,
        metavar="S",
        help="give up when none has described its model after S seconds "
        "(default: wait for ever, with a line every 10 s)",
    )
    group.add_argument(
        "--ping-interval",
        type=_positive,
        default=PING_SECONDS,
        metavar="S",
        help="seconds between heartbeats (%(default)s)",
    )
    group.add_argument(
        "--lost-after",
        type=_positive,
        default=LOST_AFTER_SECONDS,
        metavar="S",
        help="seconds of silence after which one counts as lost (%(default)s)",
    )
    group.add_argument(
        "--name", type=_short_name, help="this frontend's name in its logs and metrics"
    )
    add_channel_options(group)


def _add_http_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("HTTP")
    group.add_argument("--host", default="127.0.0.1", help="(%(default)s)")
    group.add_argument("--port", type=_port, default=8000, help="(%(default)s)")
    group.add_argument("--uds", metavar="PATH", help="listen on a Unix socket instead")
    group.add_argument(
        "--fd",
        type=int,
        metavar="N",
        help="listen on an inherited socket instead",
    )
    group.add_argument(
        "--metrics-port",
        type=_port,
        metavar="PORT",
        help="serve /metrics, /live and /ready on a port of their own as well",
    )
    _add_http_bounds(group)
    group.add_argument(
        "--shutdown-timeout",
        type=_not_negative,
        default=SHUTDOWN_SECONDS,
        metavar="S",
        help="seconds that requests have to finish after SIGTERM (%(default)s); "
        "a second SIGTERM ends at once",
    )
    group.add_argument(
        "--accept-when-ready",
        type=_not_negative,
        default=0.0,
        metavar="S",
        help="with --fd: leave connections to those who share the socket until this "
        "frontend is ready, but no longer than S seconds (%(default)s)",
    )
    group.add_argument(
        "--drain-delay",
        type=_not_negative,
        default=0.0,
        metavar="S",
        help="seconds of these in which new requests are still taken, so that a "
        "proxy sees in /ready that it must choose another frontend (%(default)s)",
    )


def _add_http_bounds(group: Any) -> None:
    """Who may ask, and how much."""
    group.add_argument(
        "--api-key",
        nargs="+",
        metavar="KEY",
        help="require one of these keys everywhere but at /live, /ready and /health "
        "(also: VLLM_API_KEY); other users of this machine see a command line",
    )
    group.add_argument(
        "--api-key-file",
        metavar="FILE",
        help="the keys, one a line, of a file that is read again when it changes",
    )
    group.add_argument(
        "--max-connections",
        type=_at_least_one,
        default=MAX_CONNECTIONS,
        metavar="N",
        help="open connections, beyond which 503 (%(default)s)",
    )
    group.add_argument(
        "--disable-inspect-page",
        action="store_true",
        help="do not serve /inspect, the page that shows what the device service does",
    )
    group.add_argument(
        "--max-body-bytes",
        type=_size,
        default=MAX_BODY_BYTES,
        metavar="N",
        help="largest request body, beyond it 413 (%(default)s)",
    )


def _add_server_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("TLS and logs")
    toggle = argparse.BooleanOptionalAction
    group.add_argument("--ssl-keyfile", metavar="FILE", help="serve HTTPS: the key")
    group.add_argument("--ssl-certfile", metavar="FILE", help="and the certificate")
    group.add_argument("--ssl-ca-certs", metavar="FILE", help="for client certificates")
    group.add_argument(
        "--ssl-cert-reqs",
        type=int,
        default=0,
        metavar="N",
        help="client certificates: 0 are not asked for, 1 are checked if there is one, "
        "2 must be there (%(default)s)",
    )
    group.add_argument("--ssl-ciphers", metavar="LIST", help="in OpenSSL's words")
    group.add_argument(
        "--enable-ssl-refresh",
        action=toggle,
        default=False,
        help="reload the certificate when its files change",
    )
    group.add_argument(
        "--uvicorn-log-level",
        choices=("critical", "error", "warning", "info", "debug", "trace"),
        default="info",
        help="how much the HTTP server says (%(default)s)",
    )
    group.add_argument(
        "--disable-uvicorn-access-log",
        action=toggle,
        default=False,
        help="no log line per request",
    )
    group.add_argument(
        "--disable-access-log-for-endpoints",
        metavar="PATHS",
        default="/live,/ready,/health,/metrics",
        help="no log line for these paths, comma-separated (%(default)s)",
    )
    group.add_argument(
        "--log-format",
        choices=FORMATS,
        default="text",
        help="lines for people, or one JSON object each (%(default)s)",
    )
    group.add_argument("--log-config-file", metavar="FILE", help="JSON for logging")


def _port(text: str) -> int:
    port = int(text)
    if not 0 <= port < 65536:
        raise argparse.ArgumentTypeError(f"{text} is not a port")
    return port


def _size(text: str) -> int:
    size = int(text)
    if size < 1024:
        raise argparse.ArgumentTypeError(f"{text} is less than 1024")
    return size


def _at_least_one(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


def _positive(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text} is not a positive number")
    return value


def _not_negative(text: str) -> float:
    return 0.0 if float(text) == 0 else _positive(text)


def _short_name(text: str) -> str:
    if not 0 < len(text) <= 63:
        raise argparse.ArgumentTypeError("a name has 1 to 63 characters")
    return text
