"""A wall clock that jumps."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from email.utils import parsedate_to_datetime
from pathlib import Path

import httpx

from bench.progress import say
from bench.registry import CannotRun
from bench.results import Result, result
from tests.chaos.registry import Setting, case
from tests.chaos.streams import End, Tally, all_right, ask
from tests.chaos.system import Frontend, System, running

# libfaketime fails sleeps of the monotonic clock once the wall clock has moved.
SOURCE = Path(__file__).with_name("wall_clock.c")
HOUR, MONTH = 3600, 30 * 24 * 3600
JUMPS = (HOUR, -HOUR, MONTH, -MONTH, 0)
BETWEEN_SECONDS = 4.0
# The server writes its date once a second, in whole ones.
DATE_SECONDS = 5.0
STREAMS = 8
SMALL = ("--max-num-seqs", "16", "--max-model-len", "2048")


@case("clock", shows="the wall clock jumps by an hour and a month, both ways")
def clock(setting: Setting) -> Iterator[Result]:
    """No stream ends, no session is lost, ready never flips."""
    with (
        _wall_clock(setting.directory) as set_wrong,
        running(setting.directory, decode_ms=10, device_options=SMALL) as system,
    ):
        [device] = system.devices
        asyncio.run(all_right(system.ports, 8))
        before = system.holdings()
        sessions = [each.session_number for each in device.state().sessions]
        tally, unready, unmoved = asyncio.run(_under_jumps(system, set_wrong))
        say(f"  {tally}")
        wrong = len(tally.ends) - tally.count(End.RIGHT)
        yield result("clock.streams", len(tally.ends), "streams")
        yield result("clock.not_right", wrong, "streams", "<= 0")
        yield result("clock.not_ready", unready, "times", "<= 0")
        yield result("clock.not_moved", unmoved, "times", "<= 0")
        kept = [each.session_number for each in device.state().sessions] == sessions
        yield result("clock.sessions_lost", int(not kept), "times", "<= 0")
        yield system.settle("clock", before)


@contextlib.contextmanager
def _wall_clock(directory: Path) -> Iterator[Callable[[int], None]]:
    """Sets by how many seconds the clocks of processes started meanwhile are wrong."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise CannotRun("there is no C compiler (on Debian: apt install gcc)")
    library, offset = directory / "wall_clock.so", directory / "wall_clock"
    flags = ("-shared", "-fPIC", "-O2", "-Wall", "-Wextra", "-Werror")
    built = (compiler, *flags, "-o", str(library), str(SOURCE), "-ldl")
    subprocess.run(built, check=True)

    def set_wrong(seconds: int) -> None:
        with offset.open("r+b", buffering=0) as file:
            file.write(struct.pack("=q", seconds * 10**9))

    offset.write_bytes(bytes(8))
    ours = {"LD_PRELOAD": str(library), "WALL_CLOCK_FILE": str(offset)}
    os.environ.update(ours)
    try:
        yield set_wrong
    finally:
        for name in ours:
            del os.environ[name]


async def _under_jumps(
    system: System, set_wrong: Callable[[int], None]
) -> tuple[Tally, int, int]:
    """Streams until all jumps are done; how often not ready, and how often no jump."""
    tally, over, unready, unmoved = Tally(), asyncio.Event(), 0, 0

    async def client(number: int) -> None:
        while not over.is_set():
            tally.ends.append(await ask(system.ports[0], [65 + number], 200))

    clients = [asyncio.create_task(client(number)) for number in range(STREAMS)]
    for jump in JUMPS:
        await asyncio.sleep(BETWEEN_SECONDS)
        set_wrong(jump)
        for _ in range(10):
            ready = await asyncio.to_thread(system.frontends[0].ready)
            unready += not ready
            await asyncio.sleep(0.2)
        wrong = await asyncio.to_thread(_wrong_by, system.frontends[0])
        unmoved += abs(wrong - jump) > DATE_SECONDS
    over.set()
    await asyncio.gather(*clients)
    return tally, unready, unmoved


def _wrong_by(frontend: Frontend) -> float:
    """Seconds between the moment that a frontend tells and ours."""
    told = httpx.get(f"{frontend.url}/live", timeout=10).headers["date"]
    return parsedate_to_datetime(told).timestamp() - time.time()
