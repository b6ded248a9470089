"""The end of a frontend: what is taken still, what may finish, what is cut off.

    SIGTERM ── delay ──▶ refused ── idle, or the timeout ──▶ failed ─▶ cut off
    /ready: 503         503, Retry-After                     < 1 s     < 0.5 s

From the signal on every answer closes its connection, so that clients and
proxies which keep connections come back to another frontend.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from frontend.config import HttpConfig
from frontend.http.context import InFlight
from frontend.http.errors import from_failure
from frontend.http.server import HttpServer
from ttserve.errors import Reason, TTServeError

if TYPE_CHECKING:
    from frontend.engine.client import GrpcEngineClient

logger = logging.getLogger(__name__)

LAST_WORDS_SECONDS = 0.7
"""How long answers that end early may take to be sent."""

LAST_ANSWERS_SECONDS = 0.3
"""The same for requests that had no answer yet."""

CONNECTIONS_POLL = 0.02


async def drain(
    server: HttpServer,
    in_flight: InFlight,
    client: GrpcEngineClient | None,
    http: HttpConfig,
) -> None:
    """Refuse what is new, let what runs finish, end what does not.

    Returns within `http.shutdown_seconds` and a second, whether or not clients
    read. No `client` means that the frontend has not served yet.
    """
    loop = asyncio.get_running_loop()
    deadline = loop.time() + http.shutdown_seconds
    error = TTServeError(
        Reason.DRAINING, "this frontend is shutting down", retry_after=1.0
    )
    in_flight.close_connections()
    if client is None:
        return
    await _let_others_notice(server, http)
    client.refuse(error)
    if len(in_flight):
        left = max(0.0, deadline - loop.time())
        logger.info("%d requests have %.0f s to finish", len(in_flight), left)
        await in_flight.drained(left)
    if len(in_flight):
        logger.warning("ending %d unfinished requests", len(in_flight))
        client.fail_everything(error)
        await in_flight.drained(LAST_WORDS_SECONDS)
        in_flight.end_unanswered(from_failure(error))
        await in_flight.drained(LAST_ANSWERS_SECONDS)
        server.abort_connections()


async def _let_others_notice(server: HttpServer, http: HttpConfig) -> None:
    """Go on taking requests until nobody sends them here any more.

    On a shared socket only connections that are open bring requests.
    """
    shared = http.inherited_fd is not None
    if shared:
        server.stop_accepting()
    loop = asyncio.get_running_loop()
    end = loop.time() + min(http.drain_delay, http.shutdown_seconds)
    # uvicorn has no event for the last connection's end.
    while loop.time() < end and (server.has_connections or not shared):  # noqa: ASYNC110
        await asyncio.sleep(CONNECTIONS_POLL)
