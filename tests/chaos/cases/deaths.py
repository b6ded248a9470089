"""Processes that are killed or stopped."""

from __future__ import annotations

import asyncio
import contextlib
import random
import signal
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from itertools import count

from bench.progress import say
from bench.results import Result, result
from tests.chaos.registry import Setting, case
from tests.chaos.streams import End, Ended, Tally, all_right, ask
from tests.chaos.system import Frontend, System, running
from tests.support.frontend_process import wait_for
from tests.support.stack import DeviceProcess
from ttserve.sim_model import PRINTABLE

ROUNDS = 3
DEADLINE = "<= 2"
FAULTS = 16
CLIENTS = 24
PAUSE_SECONDS = (1.0, 4.0)
STOP_SECONDS = (0.3, 8.0)
SMALL = ("--max-num-seqs", "16", "--max-model-len", "2048")

Victim = DeviceProcess | Frontend


@case("detection", shows="ready flips within 2 s of a dead or stopped device service")
def detection(setting: Setting) -> Iterator[Result]:
    """The slowest of some rounds: to not ready, and back to a served request."""
    with running(setting.directory, device_options=SMALL) as system:
        [device], [frontend] = system.devices, system.frontends
        before = system.holdings()
        for how in (signal.SIGKILL, signal.SIGSTOP):
            lost, back = [], []
            for _ in range(ROUNDS):
                device.signal(how)
                lost.append(_seconds_until(lambda: not frontend.ready()))
                if how is signal.SIGSTOP:
                    device.signal(signal.SIGCONT)
                else:
                    device.process.wait(20)
                    device.start()
                    wait_for(device.serving, 200)
                back.append(_seconds_until(frontend.ready))
                tally = asyncio.run(all_right(system.ports, 1))
                assert tally.count(End.RIGHT) == 1, tally
            name = how.name.lower().removeprefix("sig")
            yield result(f"detection.{name}_not_ready", max(lost), "s", DEADLINE)
            yield result(f"detection.{name}_ready_again", max(back), "s", DEADLINE)
        yield system.settle("detection", before)


def _seconds_until(condition: Callable[[], bool]) -> float:
    began = time.monotonic()
    wait_for(condition, 60)
    return time.monotonic() - began


@case("faults", shows="either side is killed and stopped at random, under load")
def faults(setting: Setting) -> Iterator[Result]:
    """Two device services, two frontends; every answer is right so far, or says why."""
    draw = random.Random(setting.seed)
    with running(
        setting.directory, devices=2, frontends=2, device_options=SMALL
    ) as system:
        asyncio.run(all_right(system.ports, 32))
        before = system.holdings()
        harm = Harm(system, draw)
        tally = asyncio.run(harm.run())
        system.wait_until_ready()
        say(f"  {dict(harm.done)}; {tally}")
        # A frontend takes along its own streams, and only those.
        unexplained = [each for each in tally.broken if not harm.explains(*each)]
        for each in (*unexplained, *(e for e in tally.ends if e.end in NEVER)):
            say(f"  {each}")
        yield result("faults.requests", len(tally.ends), "requests")
        yield result("faults.right", tally.count(End.RIGHT), "requests")
        yield result("faults.wrong", tally.count(End.WRONG), "requests", "<= 0")
        yield result("faults.hung", tally.count(End.HUNG), "requests", "<= 0")
        yield result("faults.traces", tally.count(End.TRACE), "requests", "<= 0")
        yield result("faults.unexplained", len(unexplained), "requests", "<= 0")
        after = asyncio.run(all_right(system.ports, 64))
        yield result(
            "faults.not_right_after", 64 - after.count(End.RIGHT), "requests", "<= 0"
        )
        yield system.settle("faults", before)


NEVER = (End.WRONG, End.HUNG, End.TRACE)


@dataclass
class _Load(Tally):
    """Broken ones are kept with the port that they were asked at."""

    broken: list[tuple[int, Ended]] = field(default_factory=list)

    def add(self, port: int, ended: Ended) -> None:
        self.ends.append(ended)
        if ended.end is End.BROKEN:
            self.broken.append((port, ended))


@dataclass
class Harm:
    """Does so many faults while clients ask, one at a time for each process."""

    system: System
    draw: random.Random
    done: Counter[str] = field(default_factory=Counter)
    # When frontends were away, by port: from, to.
    _away: list[tuple[int, float, float]] = field(default_factory=list)
    _busy: set[int] = field(default_factory=set)

    async def run(self) -> _Load:
        """Until all faults are done and mended."""
        load = _Load()
        numbers = count()
        async with _asking(self.system.ports, load, numbers, self.draw.random()):
            mending: list[asyncio.Task[None]] = []
            for _ in range(FAULTS):
                await asyncio.sleep(self.draw.uniform(*PAUSE_SECONDS))
                while not (free := self._free()):  # noqa: ASYNC110 - processes
                    await asyncio.sleep(0.1)
                victim = self.draw.choice(free)
                self._busy.add(victim.port)
                mending.append(asyncio.create_task(self._one(victim)))
            await asyncio.gather(*mending)
            await asyncio.sleep(2)
        return load

    def explains(self, port: int, ended: Ended) -> bool:
        """Whether the frontend was away while the request was under way."""
        return any(
            port == away and since <= ended.ended and ended.began <= until
            for away, since, until in self._away
        )

    def _free(self) -> list[Victim]:
        victims: list[Victim] = [*self.system.devices, *self.system.frontends]
        return [victim for victim in victims if victim.port not in self._busy]

    async def _one(self, victim: Victim) -> None:
        kills = self.draw.random() < 0.5
        pause = self.draw.uniform(*STOP_SECONDS)
        kind = "frontend" if isinstance(victim, Frontend) else "device"
        since = time.monotonic()
        if kills:
            self.done[f"{kind} killed"] += 1
            await asyncio.to_thread(victim.kill)
            victim.start()
            up = victim.ready if isinstance(victim, Frontend) else victim.serving
            while not await asyncio.to_thread(up):  # noqa: ASYNC110 - a process
                await asyncio.sleep(0.2)
            if kind == "frontend":
                self._away.append((victim.port, since, time.monotonic()))
        else:
            self.done[f"{kind} stopped"] += 1
            victim.signal(signal.SIGSTOP)
            await asyncio.sleep(pause)
            victim.signal(signal.SIGCONT)
        self._busy.discard(victim.port)


@contextlib.asynccontextmanager
async def _asking(
    ports: list[int], load: _Load, numbers: count[int], seed: float
) -> AsyncIterator[None]:
    """Clients ask one request after the other, until the context ends."""
    over = asyncio.Event()

    async def client() -> None:
        while not over.is_set():
            number = next(numbers)
            mine = random.Random(f"{seed} {number}")
            prompt = [mine.randrange(*PRINTABLE) for _ in range(mine.randrange(1, 90))]
            port = mine.choice(ports)
            load.add(port, await ask(port, prompt, mine.choice([1, 8, 64, 400])))
            if load.ends[-1].end is not End.RIGHT:
                await asyncio.sleep(0.5)

    clients = [asyncio.create_task(client()) for _ in range(CLIENTS)]
    try:
        yield
    finally:
        over.set()
        await asyncio.gather(*clients)
