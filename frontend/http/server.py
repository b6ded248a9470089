"""The listening socket and uvicorn on it."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from frontend.config import HttpConfig
from frontend.http.protocol import bounded_http
from ttserve.errors import StartupError

LAST_CONNECTIONS_SECONDS = 1
START_POLL = 0.01


def bind(config: HttpConfig) -> socket.socket:
    """Take the socket before anything else is done; a StartupError if it is taken."""
    if config.inherited_fd is not None:
        try:
            return socket.socket(fileno=config.inherited_fd)
        except OSError as error:
            raise StartupError(
                f"--fd {config.inherited_fd} is not a socket: {error.strerror}"
            ) from error
    if config.uds is not None:
        return _bind(socket.AF_UNIX, config.uds, f"--uds {config.uds}")
    return bind_port(config.host, config.port)


def bind_port(host: str, port: int, flag: str = "--port") -> socket.socket:
    """A TCP socket on an address of this machine; `flag` gave the port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    return _bind(family, (host, port), f"--host {host} {flag} {port}")


def _bind(family: int, address: Any, shown: str) -> socket.socket:
    listener = socket.socket(family, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        # Port 0 aside, a port that somebody listens on is noticed only here.
        listener.listen(2048)
    except (OSError, OverflowError) as error:
        listener.close()
        raise StartupError(f"{shown}: cannot listen: {_reason(error)}") from error
    return listener


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)


def url_of(listener: socket.socket, config: HttpConfig) -> str:
    """Where to reach the server, for people."""
    name = listener.getsockname()
    if isinstance(name, str):
        return f"unix:{name}"
    host = f"[{name[0]}]" if ":" in name[0] else name[0]
    return f"http{'s' if config.tls.certfile else ''}://{host}:{name[1]}"


class HttpServer(uvicorn.Server):
    """uvicorn without signal handlers: those belong to the whole frontend."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Leave signals alone."""
        yield

    def stop_accepting(self) -> None:
        """Leave new connections to whoever shares the socket."""
        for server in self.servers if self.started else ():
            server.close()

    @property
    def has_connections(self) -> bool:
        """Whether any client is connected, with or without a request."""
        return bool(self.server_state.connections)

    def abort_connections(self) -> None:
        """Drop what clients have not read; requests see their client leave."""
        for connection in list(self.server_state.connections):
            connection.transport.abort()


@contextlib.asynccontextmanager
async def serving(
    app: ASGIApp, listener: socket.socket, config: HttpConfig
) -> AsyncIterator[HttpServer]:
    """Serve `app` on `listener` for the time of the context.

    At its end, answers under way have `LAST_CONNECTIONS_SECONDS` to be sent.
    """
    server = HttpServer(_uvicorn_config(app, config))
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        # uvicorn has no event for it.
        while not server.started and not task.done():  # noqa: ASYNC110
            await asyncio.sleep(START_POLL)
        yield server
    finally:
        server.should_exit = True
        await asyncio.gather(task, return_exceptions=True)


@contextlib.asynccontextmanager
async def serving_later(
    app: ASGIApp,
    listener: socket.socket,
    config: HttpConfig,
    due: Callable[[], Awaitable[object]],
) -> AsyncIterator[HttpServer]:
    """As `serving`, but accept nothing until `due` returns.

    Connections wait in the socket's queue, or go to others who share it.
    """
    server = HttpServer(_uvicorn_config(app, config))

    async def serve() -> None:
        await due()
        if not server.should_exit:
            await server.serve(sockets=[listener])

    task = asyncio.create_task(serve())
    try:
        yield server
    finally:
        server.should_exit = True
        if not server.started:
            task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        listener.close()


def _uvicorn_config(app: ASGIApp, http: HttpConfig) -> uvicorn.Config:
    options: dict[str, Any] = {}
    if http.log_config_file is not None:
        options["log_config"] = json.loads(Path(http.log_config_file).read_text())
    elif http.log_format == "json":
        options["log_config"] = None  # its lines go where ours go
    config = uvicorn.Config(
        app,
        http=bounded_http(http.max_connections),
        ws="none",  # no route speaks WebSocket
        lifespan="off",
        log_level=http.log_level,
        access_log=http.access_log,
        timeout_keep_alive=http.keep_alive_seconds,
        timeout_graceful_shutdown=LAST_CONNECTIONS_SECONDS,
        ssl_keyfile=http.tls.keyfile,
        ssl_certfile=http.tls.certfile,
        ssl_ca_certs=http.tls.ca_certs,
        ssl_cert_reqs=http.tls.cert_reqs,
        ssl_ciphers=http.tls.ciphers,
        **options,
    )
    try:
        config.load()
    except (OSError, ssl.SSLError) as error:
        raise StartupError(f"TLS: {_reason(error)}") from error
    _leave_out_of_access_log(http.unlogged_paths)
    return config


def _leave_out_of_access_log(paths: frozenset[str]) -> None:
    """Probes come every second and say nothing that /health does not."""

    def is_wanted(record: logging.LogRecord) -> bool:
        # uvicorn's arguments: client, method, path with query, version, status.
        arguments = record.args
        if not isinstance(arguments, tuple) or len(arguments) != 5:
            return True
        return str(arguments[2]).partition("?")[0] not in paths

    logging.getLogger("uvicorn.access").addFilter(is_wanted)
