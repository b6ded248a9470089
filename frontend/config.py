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

from frontend import command_line, options
from frontend.address import DeviceAddress, parse_device_addresses
from ttserve.client_security import ChannelSecurity, channel_security, read_tokens
from ttserve.errors import StartupError
from ttserve.tokens import Tokens


@dataclass(frozen=True, slots=True)
class Liveness:
    """When a silent device service counts as lost; seconds."""

    ping_interval: float = command_line.PING_SECONDS
    lost_after: float = command_line.LOST_AFTER_SECONDS


@dataclass(frozen=True, slots=True)
class Tls:
    """Files and settings of HTTPS, as uvicorn takes them."""

    keyfile: str | None
    certfile: str | None
    ca_certs: str | None
    cert_reqs: int
    ciphers: str | None
    refresh: bool


NO_TLS = Tls(None, None, None, 0, None, False)


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """The HTTP side: where to listen and what to accept.

    Of `shutdown_seconds` the first `drain_delay` still bring new requests.
    `accept_when_ready` is how many seconds a frontend that is not ready may
    leave connections in the queue of its socket; 0 is not at all.
    """

    host: str
    port: int
    uds: str | None
    inherited_fd: int | None
    metrics_port: int | None
    inspect_page: bool
    max_body_bytes: int
    shutdown_seconds: float
    drain_delay: float
    accept_when_ready: float
    keep_alive_seconds: int
    max_connections: int
    api_keys: Tokens
    tls: Tls
    log_level: str
    log_format: str
    log_config_file: str | None
    access_log: bool
    unlogged_paths: frozenset[str]


@dataclass(frozen=True, slots=True)
class FrontendConfig:
    """Everything that was decided on the command line.

    `devices` are the device services, in the order given; a single name may
    stand for several. `vllm_arguments` are options of `options.ACCEPTED`, not
    parsed yet. `device_timeout` is how many seconds the frontend waits for a device
    service to describe its model; None waits for ever.
    """

    name: str
    devices: tuple[DeviceAddress, ...]
    device_security: ChannelSecurity
    device_timeout: float | None
    liveness: Liveness
    http: HttpConfig
    vllm_arguments: tuple[str, ...]


def read_command_line(
    arguments: Sequence[str], environ: Mapping[str, str] = os.environ
) -> FrontendConfig:
    """Read what is ours and check that the rest is vLLM's.

    Raises StartupError for what is malformed. Whether every argument left over
    is one of vLLM's is `unaccepted_option`'s to say.
    """
    normalized = [_with_dashes(argument) for argument in arguments]
    own, rest = command_line.parser().parse_known_args(normalized)
    if own.device_service is None:
        raise StartupError("--device-service HOST:PORT is required (see --help)")
    if own.lost_after <= own.ping_interval:
        raise StartupError("--lost-after must be more than --ping-interval")
    if own.drain_delay > own.shutdown_timeout:
        raise StartupError(
            f"--drain-delay {own.drain_delay:g} is a part of --shutdown-timeout, and "
            f"cannot be more than its {own.shutdown_timeout:g} s"
        )
    if own.accept_when_ready and own.fd is None:
        raise StartupError("--accept-when-ready is for a shared socket: give --fd too")
    return FrontendConfig(
        name=own.name or f"{socket.gethostname()[:40]}-{os.getpid()}",
        devices=parse_device_addresses(own.device_service),
        device_security=channel_security(own, environ),
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
    return HttpConfig(
        host=own.host,
        port=own.port,
        uds=own.uds,
        inherited_fd=own.fd,
        metrics_port=own.metrics_port,
        inspect_page=not own.disable_inspect_page,
        max_body_bytes=own.max_body_bytes,
        shutdown_seconds=own.shutdown_timeout,
        drain_delay=own.drain_delay,
        accept_when_ready=own.accept_when_ready,
        keep_alive_seconds=int(environ.get("VLLM_HTTP_TIMEOUT_KEEP_ALIVE", "5")),
        max_connections=own.max_connections,
        api_keys=_api_keys(own, environ),
        tls=Tls(
            keyfile=own.ssl_keyfile,
            certfile=own.ssl_certfile,
            ca_certs=own.ssl_ca_certs,
            cert_reqs=own.ssl_cert_reqs,
            ciphers=own.ssl_ciphers,
            refresh=own.enable_ssl_refresh,
        ),
        log_level=own.uvicorn_log_level,
        log_format=own.log_format,
        log_config_file=own.log_config_file,
        access_log=not own.disable_uvicorn_access_log,
        unlogged_paths=frozenset(own.disable_access_log_for_endpoints.split(",")),
    )


def _api_keys(own: argparse.Namespace, environ: Mapping[str, str]) -> Tokens:
    if own.api_key and own.api_key_file:
        raise StartupError("give --api-key or --api-key-file, not both")
    if own.api_key:
        return Tokens(own.api_key, source="--api-key")
    return read_tokens(("--api-key-file", own.api_key_file), ("VLLM_API_KEY", environ))
