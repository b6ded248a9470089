"""Keeps device services and their frontends running, and stops them in order."""

from __future__ import annotations

import asyncio
import enum
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ttserve.launcher.child import Child
from ttserve.launcher.output import Console
from ttserve.launcher.rolling import RollingRestart

# What our commands exit with when a flag or its value is wrong. Trying again
# would end the same way.
USAGE_ERROR = 2
STARTS_BEFORE_GIVING_UP = 5
STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
# SIGHUP is what a terminal sends that closes.
RESTART_SIGNAL = signal.SIGUSR2
# The device services know it, and take it themselves, too.
RECORD_SIGNAL = signal.SIGUSR1


@dataclass(frozen=True)
class Timing:
    """All in seconds."""

    first_delay: float = 0.5
    longest_delay: float = 10.0
    # A child that ran this long starts over with the first delay.
    forgiven_after: float = 30.0
    # What frontends, and after them the device services, get for stopping.
    grace: float = 30.0

    def delay(self, failures: int) -> float:
        """The pause after the given number of failures in a row, from one."""
        doublings = min(failures - 1, 16)
        return min(self.first_delay * 2.0**doublings, self.longest_delay)


class Verdict(enum.Enum):
    RESTART = enum.auto()
    GIVE_UP = enum.auto()


def judge(exit_code: int, *, has_served: bool, failures: int) -> Verdict:
    """What to do about a child that ended unasked.

    Flags that were once good enough to serve cannot be the reason later, and
    someone may depend on the service: then it is always started again.
    """
    if has_served:
        return Verdict.RESTART
    if exit_code == USAGE_ERROR or failures >= STARTS_BEFORE_GIVING_UP:
        return Verdict.GIVE_UP
    return Verdict.RESTART


class Supervisor:
    """Owns the children. `run` returns when none of them is left.

    `wait_until_ready` returns once a request can be served; it runs beside the
    children and is cancelled when they stop earlier.
    """

    def __init__(
        self,
        devices: Sequence[Child],
        frontends: Sequence[Child],
        wait_until_ready: Callable[[], Awaitable[None]],
        console: Console,
        timing: Timing,
        rolling: RollingRestart,
    ) -> None:
        self._devices = tuple(devices)
        self._frontends = tuple(frontends)
        self._wait_until_ready = wait_until_ready
        self._console = console
        self._timing = timing
        self._rolling = rolling
        self._keepers: dict[Child, asyncio.Task[None]] = {}
        self._stop = asyncio.Event()
        self._kill = asyncio.Event()
        self._has_served = False
        self._exit_code = 0

    async def run(self) -> int:
        """Run until a signal, or until a child cannot be kept running.

        Returns the exit code: 0 after an orderly stop, else the child's.
        """
        loop = asyncio.get_running_loop()
        for signum in STOP_SIGNALS:
            loop.add_signal_handler(signum, self._on_signal, signum)
        loop.add_signal_handler(RESTART_SIGNAL, self._on_restart)
        loop.add_signal_handler(RECORD_SIGNAL, self._on_record)
        children = (*self._devices, *self._frontends)
        self._keepers = {c: asyncio.create_task(self._keep(c)) for c in children}
        readiness = asyncio.create_task(self._watch_readiness())
        tasks = (readiness, *self._keepers.values())
        stop = asyncio.create_task(self._stop.wait())
        try:
            await asyncio.wait(
                [stop, *self._keepers.values()], return_when=asyncio.FIRST_COMPLETED
            )
            self._stop.set()
            self._rolling.stop()
            await self._end(self._frontends)
            await self._end(self._devices)
        finally:
            for task in (stop, *tasks):
                task.cancel()
        for task in tasks:
            if task.done():
                task.result()
        return self._exit_code

    async def _keep(self, child: Child) -> None:
        failures = 0
        while not self._stop.is_set():
            started = time.monotonic()
            code = await child.run()
            if self._stop.is_set():
                return
            if self._rolling.is_part(child):
                failures = 0
                continue
            if time.monotonic() - started >= self._timing.forgiven_after:
                failures = 0
            failures += 1
            ending = f"{child.name} {describe(code)}"
            verdict = judge(code, has_served=self._has_served, failures=failures)
            if verdict is Verdict.GIVE_UP:
                self._console.say(f"{ending}; giving up")
                self._exit_code = as_shell_code(code) or 1
                self._stop.set()
                return
            delay = self._timing.delay(failures)
            self._console.say(f"{ending}; starting it again in {delay:g} s")
            await _wait_for(self._stop, delay)

    async def _watch_readiness(self) -> None:
        await self._wait_until_ready()
        self._has_served = True

    async def _end(self, children: Sequence[Child]) -> None:
        """Stop these children and wait until they are gone."""
        for child in children:
            child.terminate()
        keepers = [self._keepers[child] for child in children]
        gone = asyncio.gather(*keepers, return_exceptions=True)
        hurry = asyncio.create_task(self._kill.wait())
        waited_for: list[asyncio.Future[Any]] = [gone, hurry]
        await asyncio.wait(
            waited_for,
            timeout=self._timing.grace,
            return_when=asyncio.FIRST_COMPLETED,
        )
        hurry.cancel()
        for child in children:
            if not self._keepers[child].done():
                self._console.say(f"{child.name} has not stopped; killing it")
                child.kill()
        await gone

    def _on_restart(self) -> None:
        if self._has_served and not self._stop.is_set():
            self._rolling.begin()
        else:
            self._console.say("not ready: nothing is restarted")

    def _on_record(self) -> None:
        if not self._has_served:
            # One that is only being started would be ended by it.
            self._console.say("not ready: there is nothing to record")
            return
        for device in self._devices:
            device.send_signal(RECORD_SIGNAL)

    def _on_signal(self, signum: signal.Signals) -> None:
        if not self._stop.is_set():
            self._console.say(
                f"{signum.name}: stopping the frontends, then the device services "
                "(once more to kill them)"
            )
            self._stop.set()
            return
        self._exit_code = 128 + signum
        self._kill.set()


def describe(exit_code: int) -> str:
    """`exit_code` as a clause, for a reader."""
    if exit_code >= 0:
        return f"exited with code {exit_code}"
    try:
        return f"was killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"was killed by signal {-exit_code}"


def as_shell_code(exit_code: int) -> int:
    """The code with which a shell would report that a signal killed the child."""
    return exit_code if exit_code >= 0 else 128 - exit_code


async def _wait_for(event: asyncio.Event, seconds: float) -> None:
    """Until the event is set, but no longer than `seconds`."""
    try:
        await asyncio.wait_for(event.wait(), seconds)
    except asyncio.TimeoutError:
        return
