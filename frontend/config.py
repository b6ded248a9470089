"""The command line of `tt-frontend`, as far as it is needed before vLLM is loaded.

The port answers within a fraction of a second, vLLM takes several seconds to
import: so options of the socket, of TLS and of the device service are read
here, and the rest is only checked by name and handed to vLLM's parser later
(`vllm_options.py`). This is the only module of the frontend that reads the
environment.
"""

from __future__ import annotations

import argparse
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import NoReturn

import ttserve
from frontend import options
from frontend.address import DeviceAddress, parse_device_address
from ttserve.errors import StartupError

PING_SECONDS = 0.5
LOST_AFTER_SECONDS = 1.5
MAX_BODY_BYTES = 32 << 20
SHUTDOWN_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Liveness:
    """When a silent device service counts as lost; seconds."""

    ping_interval: float = PING_SECONDS
    lost_after: float = LOST_AFTER_SECONDS


@dataclass(frozen=True, slots=True)
class Tls:
    """Files and settings of HTTPS, as uvicorn takes them."""

    keyfile: str | None
    certfile: str | None
    ca_certs: str | None
    cert_reqs: int
    ciphers: str | None
    refresh: bool


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """The HTTP side: where to listen and what to accept."""

    host: str
    port: int
    uds: str | None
    inherited_fd: int | None
    metrics_port: int | None
    max_body_bytes: int
    shutdown_seconds: float
    keep_alive_seconds: int
    api_keys: tuple[str, ...]
    tls: Tls
    log_level: str
    log_config_file: str | None
    access_log: bool
    h11_max_incomplete_event_size: int | None
    h11_max_header_count: int | None


@dataclass(frozen=True, slots=True)
class FrontendConfig:
    """Everything that was decided on the command line.

    `vllm_arguments` are options of `options.ACCEPTED`, not parsed yet.
    `device_timeout` is how many seconds the frontend waits for the device
    service to describe its model; None waits for ever.
    """

    name: str
    device: DeviceAddress
    device_timeout: float | None
    liveness: Liveness
    http: HttpConfig
    vllm_arguments: tuple[str, ...]


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise StartupError(message)


def read_command_line(
    arguments: Sequence[str], environ: Mapping[str, str] = os.environ
) -> FrontendConfig:
    """Read what is ours and check that the rest is vLLM's.

    Raises StartupError for what is malformed. Whether every argument left over
    is one of vLLM's is `unaccepted_option`'s to say.
    """
    normalized = [_with_dashes(argument) for argument in arguments]
    own, rest = _parser().parse_known_args(normalized)
    if own.device_service is None:
        raise StartupError("--device-service HOST:PORT is required (see --help)")
    if own.lost_after <= own.ping_interval:
        raise StartupError("--lost-after must be more than --ping-interval")
    return FrontendConfig(
        name=own.name or f"{socket.gethostname()[:40]}-{os.getpid()}",
        device=parse_device_address(own.device_service),
        device_timeout=own.device_timeout,
        liveness=Liveness(own.ping_interval, own.lost_after),
        http=_http_config(own, environ),
        vllm_arguments=tuple(rest),
    )


def unaccepted_option(arguments: Sequence[str]) -> str | None:
    """The first argument that is no accepted option of vLLM, as it was written."""
    if arguments and not arguments[0].startswith("-"):
        return arguments[0]
    for argument in arguments:
        if argument.startswith("--"):
            name = options.option_name(argument)
            if not {name, name.removeprefix("no_")} & options.ACCEPTED.keys():
                return argument
        elif argument.startswith("-") and argument[1:2].isalpha():
            return argument
    return None


def _with_dashes(argument: str) -> str:
    """vLLM takes `--api_key` for `--api-key`; so do we."""
    if not argument.startswith("--"):
        return argument
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value


def _http_config(own: argparse.Namespace, environ: Mapping[str, str]) -> HttpConfig:
    keys = own.api_key or [environ.get("VLLM_API_KEY", "")]
    return HttpConfig(
        host=own.host,
        port=own.port,
        uds=own.uds,
        inherited_fd=own.fd,
        metrics_port=own.metrics_port,
        max_body_bytes=own.max_body_bytes,
        shutdown_seconds=own.shutdown_timeout,
        keep_alive_seconds=int(environ.get("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "5")),
        api_keys=tuple(key for key in keys if key),
        tls=Tls(
            keyfile=own.ssl_keyfile,
            certfile=own.ssl_certfile,
            ca_certs=own.ssl_ca_certs,
            cert_reqs=own.ssl_cert_reqs,
            ciphers=own.ssl_ciphers,
            refresh=own.enable_ssl_refresh,
        ),
        log_level=own.uvicorn_log_level,
        log_config_file=own.log_config_file,
        access_log=not own.disable_uvicorn_access_log,
        h11_max_incomplete_event_size=own.h11_max_incomplete_event_size,
        h11_max_header_count=own.h11_max_header_count,
    )


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


def _parser() -> argparse.ArgumentParser:
    accepted = "\n".join(
        f"  {options.flag(name):34} {text}" for name, text in options.ACCEPTED.items()
    )
    parser = _Parser(
        prog="tt-frontend",
        description=_DESCRIPTION,
        epilog=_EPILOG.format(accepted=accepted),
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument(
        "--version",
        action="version",
        version=f"ttserve {ttserve.__version__} (vLLM {version('vllm')})",
    )
    _add_device_options(parser)
    _add_http_options(parser)
    _add_server_options(parser)
    return parser


def _add_device_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("device service")
    group.add_argument("--device-service", metavar="HOST:PORT", help="required")
    group.add_argument(
        "--device-timeout",
        type=_positive,
        metavar="S",
        help="give up when it has not described its model after S seconds "
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
        help="seconds of silence after which it counts as lost (%(default)s)",
    )
    group.add_argument(
        "--name", type=_short_name, help="this frontend's name in its logs and metrics"
    )


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
    group.add_argument(
        "--api-key",
        nargs="+",
        metavar="KEY",
        help="require one of these keys everywhere but at /live, /ready and /health "
        "(also: VLLM_API_KEY)",
    )
    group.add_argument(
        "--max-body-bytes",
        type=_size,
        default=MAX_BODY_BYTES,
        metavar="N",
        help="largest request body, beyond it 413 (%(default)s)",
    )
    group.add_argument(
        "--shutdown-timeout",
        type=_not_negative,
        default=SHUTDOWN_SECONDS,
        metavar="S",
        help="seconds that requests have to finish after SIGTERM (%(default)s); "
        "a second SIGTERM ends at once",
    )


def _add_server_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("TLS and logs")
    toggle = argparse.BooleanOptionalAction
    group.add_argument("--ssl-keyfile", metavar="FILE", help="serve HTTPS: the key")
    group.add_argument("--ssl-certfile", metavar="FILE", help="and the certificate")
    group.add_argument("--ssl-ca-certs", metavar="FILE", help="for client certificates")
    group.add_argument("--ssl-cert-reqs", type=int, default=0, metavar="N")
    group.add_argument("--ssl-ciphers", metavar="LIST")
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
    )
    group.add_argument(
        "--disable-uvicorn-access-log",
        action=toggle,
        default=False,
        help="no log line per request",
    )
    group.add_argument("--log-config-file", metavar="FILE", help="JSON for logging")
    group.add_argument("--h11-max-incomplete-event-size", type=int, metavar="N")
    group.add_argument("--h11-max-header-count", type=int, metavar="N")


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
