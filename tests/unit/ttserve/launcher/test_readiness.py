"""What the launcher makes of an answer to GET /ready."""

from __future__ import annotations

import asyncio
import http.server
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from ttserve.launcher.readiness import ReadyPort, ask, wait_until_ready


@contextmanager
def answering(*answers: tuple[int, bytes]) -> Iterator[ReadyPort]:
    """A frontend that gives these answers in turn, then the last one for ever."""
    left = list(answers)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = left.pop(0) if len(left) > 1 else left[0]
            self.send_response(status if self.path == "/ready" else 404)
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield ReadyPort("frontend0", "127.0.0.1", server.server_port)
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("status", "body", "obstacle"),
    [
        (200, b"", None),
        (503, b'{"error": {"message": "warming up"}}', "is not ready: warming up"),
        (503, b"warming up\n", "is not ready: warming up"),
        (503, b'{"error": []}', 'is not ready: {"error": []}'),
        (500, b"", "is not ready: no reason given"),
    ],
)
def test_an_answer(status: int, body: bytes, obstacle: str | None) -> None:
    with answering((status, body)) as port:
        assert ask(port) == obstacle


def test_nobody_listens() -> None:
    with answering((200, b"")) as port:
        pass
    assert ask(port) == "is still starting"


def test_it_waits_for_all_of_them() -> None:
    with (
        answering((503, b"loading"), (503, b"loading"), (200, b"")) as first,
        answering((503, b"loading"), (200, b"")) as second,
    ):
        assert asyncio.run(wait_until_ready([first, second], lambda _: None)) > 0
        assert ask(first) is ask(second) is None
