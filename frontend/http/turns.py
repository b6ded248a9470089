"""Requests that come at once are begun one after the other."""

from __future__ import annotations

import asyncio

from starlette.types import ASGIApp, Receive, Scope, Send


class OneATurn:
    """Lets one POST begin in each turn of the event loop.

    To read, check and tokenize a request keeps the loop for some milliseconds. A
    thousand that arrive together would all be begun in one turn, and until it ends
    no heartbeat is sent and no stream goes on: a device service would count this
    frontend as dead.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        # In the order in which they came: whoever waits is woken in a later turn.
        self._turn = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["method"] == "POST":
            async with self._turn:
                await asyncio.sleep(0)
        await self._app(scope, receive, send)
