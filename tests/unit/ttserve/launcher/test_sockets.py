"""The HTTP socket: bound once, or one line that says why not."""

from __future__ import annotations

import socket

import pytest

from ttserve.errors import StartupError
from ttserve.launcher.sockets import check_free, listen


def test_it_listens_and_another_launcher_is_refused() -> None:
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        socket.create_connection(("127.0.0.1", port), timeout=5).close()
        with pytest.raises(StartupError, match=f"port {port} on 127.0.0.1 is taken"):
            listen("127.0.0.1", port)


@pytest.mark.parametrize("host", ["no.such.host.invalid", "192.0.2.1"])
def test_a_host_that_is_not_here(host: str) -> None:
    with pytest.raises(StartupError, match=f"--host {host} is no address of this"):
        listen(host, 0)


def test_a_port_of_a_part_that_is_taken_is_said_with_its_flag() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        said = f"port {port} on 127.0.0.1 is taken; choose another with --metrics-port"
        with pytest.raises(StartupError, match=said):
            check_free("127.0.0.1", port - 1, 2, "--metrics-port")
    check_free("127.0.0.1", port, 1, "--metrics-port")
    listen("127.0.0.1", port).close()  # it was left free
