"""The HTTP socket, which the launcher holds for as long as it lives.

One listening socket is shared by all frontends: each accepts from the same
queue. The alternative, a socket per frontend with SO_REUSEPORT, spreads by a
hash of the addresses. That ties a connection to one frontend, which may be
starting, stopping or busy, and the queue of one that dies is lost or waits for
its successor. From a shared queue only a frontend that runs and has time takes
a connection, so none is refused while one restarts. Measured, three servers and
96 connections at once were shared about as evenly either way; one after the
other the counts are uneven (6, 13, 5 of 24), but then nobody has to wait.
"""

from __future__ import annotations

import errno
import socket

from ttserve.errors import StartupError

BACKLOG = 2048


def listen(host: str, port: int, flag: str = "--port") -> socket.socket:
    """Bind and listen; the caller owns the socket. `flag` is what gave the port."""
    try:
        family, *_, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        raise StartupError(_reason(host, port, flag, error)) from error


def check_free(host: str, first: int, count: int, flag: str) -> None:
    """Refuse ports that the parts could not take. Raises StartupError."""
    for port in range(first, first + count):
        listen(host, port, flag).close()


def _reason(host: str, port: int, flag: str, error: OSError) -> str:
    if isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL:
        return f"--host {host} is no address of this machine"
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is taken; choose another with {flag}"
    if error.errno == errno.EACCES:
        return f"port {port} needs more rights; choose one above 1023 with {flag}"
    return f"cannot listen on {host}:{port}: {error.strerror}"
