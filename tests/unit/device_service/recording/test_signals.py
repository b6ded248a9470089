"""SIGUSR1 asks for a recording: once or many times at once."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from device_service.recording_files import RecordingFiles


class Asked:
    """Stands for an engine that has nothing to record, and counts who asks."""

    def __init__(self) -> None:
        self.times = 0
        self.asked = asyncio.Event()
        self.died: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def recording(self, reason: str) -> None:
        self.times += 1
        self.asked.set()


async def test_signals_that_come_while_one_is_served_ask_for_nothing_more(
    tmp_path: Path,
) -> None:
    files = RecordingFiles(tmp_path)
    engine = Asked()
    files.follow(engine)  # type: ignore[arg-type]
    try:
        for _ in range(100):
            os.kill(os.getpid(), signal.SIGUSR1)
        await asyncio.wait_for(engine.asked.wait(), 10)
        await files.written()
        assert engine.times == 1
        engine.asked.clear()
        os.kill(os.getpid(), signal.SIGUSR1)
        await asyncio.wait_for(engine.asked.wait(), 10)
    finally:
        asyncio.get_running_loop().remove_signal_handler(signal.SIGUSR1)
