"""A device service over a scripted engine, on a port of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from tests.support.wire import Service, serving


@pytest_asyncio.fixture
async def service() -> AsyncIterator[Service]:
    """A device service that serves."""
    async with serving() as running:
        yield running
