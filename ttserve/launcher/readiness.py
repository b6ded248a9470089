"""Can a request be served? Each frontend says so at /ready on its metrics port.

Not on the shared port: there whoever is free answers, and it may speak TLS.
"""

from __future__ import annotations

import asyncio
import http.client
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

POLL_SECONDS = 0.25
ANSWER_SECONDS = 2.0
REMIND_SECONDS = 10.0


@dataclass(frozen=True)
class ReadyPort:
    """Where one frontend answers for itself."""

    frontend: str
    host: str
    port: int


async def wait_until_ready(
    ports: Sequence[ReadyPort], say: Callable[[str], None]
) -> float:
    """Wait until every frontend is ready and return the seconds it took.

    What it waits for is said every ten seconds.
    """
    started = time.monotonic()
    remind_at = started + REMIND_SECONDS
    for port in ports:
        while (obstacle := await asyncio.to_thread(ask, port)) is not None:
            now = time.monotonic()
            if now >= remind_at:
                remind_at = now + REMIND_SECONDS
                say(f"after {now - started:.0f} s {port.frontend} {obstacle}")
            await asyncio.sleep(POLL_SECONDS)
    return time.monotonic() - started


def ask(port: ReadyPort) -> str | None:
    """None when ready, else what stands in the way, as a clause."""
    connection = http.client.HTTPConnection(
        port.host, port.port, timeout=ANSWER_SECONDS
    )
    try:
        connection.request("GET", "/ready")
        response = connection.getresponse()
        body = response.read()
    except (OSError, http.client.HTTPException):
        return "is still starting"
    finally:
        connection.close()
    if response.status == http.client.OK:
        return None
    return f"is not ready: {_message(body)}"


def _message(body: bytes) -> str:
    """The message of an error in OpenAI's envelope."""
    try:
        return str(json.loads(body)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace").strip() or "no reason given"
