"""The block logs of all lanes, and those who follow them.

The engine thread hands vLLM's events over once per step; everything else is the
event loop's. Nothing is queued for a follower: it reads the logs, so one that reads
slowly costs nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Sequence

from vllm.distributed.kv_events import KVCacheEvent

from device_service.gateway.block_log import BlockBatch, BlockLog
from ttserve.errors import TTServeError

logger = logging.getLogger(__name__)


class BlockFeed:
    """The logs of all lanes, and who waits for news. Event loop, but for `post`."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._lanes: dict[int, BlockLog] = {}
        self._news = asyncio.Event()
        self._end: TTServeError | None = None

    def post(self, lane: int, events: Sequence[KVCacheEvent]) -> None:
        """Take what happened in a lane. Engine thread; does not wait."""
        try:
            self._loop.call_soon_threadsafe(self._apply, lane, events)
        except RuntimeError:  # the loop is closed: nobody is left to tell
            logger.debug("block events after the end")

    def end(self, why: TTServeError) -> None:
        """Send those who follow away, with this reason."""
        self._end = why
        self._announce()

    def lane(self, number: int) -> BlockLog:
        """The log of a lane."""
        return self._lanes.setdefault(number, BlockLog())

    def follow(self, lanes: int, start: int) -> FeedReader:
        """Read from batch `start` on; 0, or with several lanes, from what is now."""
        return FeedReader(self, lanes, start if lanes == 1 else 0)

    async def wait(self) -> None:
        """Wait for the next news; raises the reason once the feed has ended."""
        if self._end is not None:
            raise self._end.with_traceback(None)  # all followers share it
        await self._news.wait()

    def _apply(self, lane: int, events: Sequence[KVCacheEvent]) -> None:
        self.lane(lane).apply(events)
        self._announce()

    def _announce(self) -> None:
        """Wake those who wait; who asks from now on waits for the next news."""
        self._news.set()
        self._news = asyncio.Event()


class FeedReader:
    """One follower: how far it has come in each lane."""

    def __init__(self, feed: BlockFeed, lanes: int, start: int) -> None:
        self._feed = feed
        self._next = dict.fromkeys(range(lanes), start)

    async def read(self) -> list[tuple[int, BlockBatch]]:
        """Wait for batches, and the lanes that they are of."""
        while not (news := list(self._take())):
            await self._feed.wait()
        return news

    def _take(self) -> Iterator[tuple[int, BlockBatch]]:
        for lane, number in self._next.items():
            log = self._feed.lane(lane)
            for batch in log.since(number):
                yield lane, batch
            self._next[lane] = log.last_number + 1
