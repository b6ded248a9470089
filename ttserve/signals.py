"""SIGTERM and SIGINT: the first asks to stop, the second ends the process."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from types import FrameType

SIGNALS = (signal.SIGTERM, signal.SIGINT)


def leave_at_once() -> None:
    """Until something is open there is nothing to put in order.

    In force while modules are imported, which takes seconds; without it Ctrl-C
    would print a traceback.
    """
    for number in SIGNALS:
        signal.signal(number, _leave)


def _leave(number: int, frame: FrameType | None) -> None:
    os._exit(0)


class StopRequest:
    """Set by the first signal. Event loop only.

    The second ends the process with the status that a shell would report, 128
    and the signal's number: nothing is closed or answered any more.
    """

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in SIGNALS:
            loop.add_signal_handler(number, self._signalled, number)

    def is_set(self) -> bool:
        """Whether a signal has come."""
        return self._asked.is_set()

    async def wait(self) -> None:
        """Wait for the first signal."""
        await self._asked.wait()

    def _signalled(self, number: int) -> None:
        if self._asked.is_set():
            sys.stderr.write("second signal: leaving at once\n")
            sys.stderr.flush()
            os._exit(128 + number)
        self._asked.set()
