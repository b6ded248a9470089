"""A wall clock that jumps."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from bench.progress import say
from bench.registry import CannotRun
from bench.results import Result, result
from tests.chaos.registry import Setting, case
from tests.chaos.streams import End, Tally, all_right, ask
from tests.chaos.system import System, running

LIBRARIES = (
    *Path("/usr/lib").glob("*/faketime/libfaketimeMT.so.1"),
    *Path("/usr/lib").glob("faketime/libfaketimeMT.so.1"),
)
JUMPS = ("+1h", "-1h", "+30d", "-30d", "+0")
BETWEEN_SECONDS = 4.0
STREAMS = 8
SMALL = ("--max-num-seqs", "16", "--max-model-len", "2048")


@case("clock", shows="the wall clock jumps by an hour and a month, both ways")
def clock(setting: Setting) -> Iterator[Result]:
    """No stream ends, no session is lost, ready never flips."""
    with (
        _wall_clock(setting.directory) as jump,
        running(setting.directory, decode_ms=10, device_options=SMALL) as system,
    ):
        [device] = system.devices
        asyncio.run(all_right(system.ports, 8))
        before = system.holdings()
        sessions = [each.session_number for each in device.state().sessions]
        tally, unready = asyncio.run(_under_jumps(system, jump))
        say(f"  {tally}")
        wrong = len(tally.ends) - tally.count(End.RIGHT)
        yield result("clock.streams", len(tally.ends), "streams")
        yield result("clock.not_right", wrong, "streams", "<= 0")
        yield result("clock.not_ready", unready, "times", "<= 0")
        kept = [each.session_number for each in device.state().sessions] == sessions
        yield result("clock.sessions_lost", int(not kept), "times", "<= 0")
        yield system.settle("clock", before)


@contextlib.contextmanager
def _wall_clock(directory: Path) -> Iterator[Path]:
    """Processes started meanwhile read this file to know how wrong their clock is."""
    if not LIBRARIES:
        raise CannotRun("there is no libfaketime (on Debian: apt install libfaketime)")
    offset = directory / "offset"
    offset.write_text("+0\n")
    ours = {
        "LD_PRELOAD": str(LIBRARIES[0]),
        "FAKETIME_TIMESTAMP_FILE": str(offset),
        # Read once a second: at every look it costs more than all else.
        "FAKETIME_CACHE_DURATION": "1",
        # The monotonic clock is the one that may not jump.
        "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        "NO_FAKE_STAT": "1",
    }
    os.environ.update(ours)
    try:
        yield offset
    finally:
        for name in ours:
            del os.environ[name]


async def _under_jumps(system: System, offset: Path) -> tuple[Tally, int]:
    """Streams one after the other until all jumps are done; and how often not ready."""
    tally, over, unready = Tally(), asyncio.Event(), 0

    async def client(number: int) -> None:
        while not over.is_set():
            tally.ends.append(await ask(system.ports[0], [65 + number], 200))

    clients = [asyncio.create_task(client(number)) for number in range(STREAMS)]
    for jump in JUMPS:
        await asyncio.sleep(BETWEEN_SECONDS)
        await asyncio.to_thread(offset.write_text, f"{jump}\n")
        for _ in range(10):
            ready = await asyncio.to_thread(system.frontends[0].ready)
            unready += not ready
            await asyncio.sleep(0.2)
    over.set()
    await asyncio.gather(*clients)
    return tally, unready
