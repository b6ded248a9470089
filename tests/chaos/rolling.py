"""A rolling restart under load, and how many requests it failed.

    python -m tests.chaos.rolling tt-serve    # frontends on one socket, SIGUSR2
    python -m tests.chaos.rolling balanced    # frontends behind a balancer
    python -m tests.chaos.rolling devices     # two device services, one after the other

Requests come at a steady rate, whether or not earlier ones are answered, from
OpenAI's client with the retries that it has by default. Every second one streams.
A request has failed when the client raises, or when its text is not complete.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import httpx
import openai

from tests.chaos.balancer import Balancer
from tests.support.frontend_process import FrontendProcess, free_port
from tests.support.stack import DeviceProcess

FRONTENDS = 3
REQUESTS_PER_SECOND = 50.0
TOKENS = 16
BEFORE_SECONDS = 3.0
AFTER_SECONDS = 3.0
READY_SECONDS = 900.0
SIM = ("--additional-config.tt.sim.decode_ms", "5")
# Longer than the balancer needs to notice.
DRAIN_DELAY = "4"


@dataclass
class Outcome:
    """What became of the requests."""

    requests: int = 0
    failures: Counter[str] = field(default_factory=Counter)
    slowest_seconds: float = 0.0
    restart_seconds: float = 0.0
    rate: float = 0.0
    """Requests per second that were sent: fewer than asked for where cores lack."""

    @property
    def failed(self) -> int:
        return self.failures.total()

    def __str__(self) -> str:
        how = f" {dict(self.failures)}" if self.failures else ""
        return (
            f"{self.requests} requests, {self.rate:.0f} a second, {self.failed} failed"
            f"{how}, slowest {self.slowest_seconds:.2f} s, "
            f"restart took {self.restart_seconds:.1f} s"
        )


async def under_load(
    url: str, restart: Callable[[], Awaitable[None]], *, rate: float
) -> Outcome:
    """Send requests before, during and after `restart`."""
    outcome = Outcome()
    over = asyncio.Event()
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none") as client:
        load = asyncio.create_task(_send(client, outcome, over, rate))
        await asyncio.sleep(BEFORE_SECONDS)
        began = time.monotonic()
        await restart()
        outcome.restart_seconds = time.monotonic() - began
        await asyncio.sleep(AFTER_SECONDS)
        over.set()
        await load
    return outcome


async def _send(
    client: openai.AsyncOpenAI, outcome: Outcome, over: asyncio.Event, rate: float
) -> None:
    loop = asyncio.get_running_loop()
    began = loop.time()
    async with contextlib.AsyncExitStack() as stack:
        asking: list[asyncio.Task[None]] = []
        stack.push_async_callback(_all_of, asking)
        while not over.is_set():
            asking.append(asyncio.create_task(_ask(client, outcome)))
            outcome.requests += 1
            due = began + outcome.requests / rate
            await asyncio.sleep(max(0.0, due - loop.time()))
        outcome.rate = outcome.requests / (loop.time() - began)


async def _all_of(tasks: list[asyncio.Task[None]]) -> None:
    await asyncio.gather(*tasks)


async def _ask(client: openai.AsyncOpenAI, outcome: Outcome) -> None:
    streams = outcome.requests % 2 == 0
    began = time.monotonic()
    try:
        reason = await (_streamed(client) if streams else _whole(client))
    except openai.OpenAIError as error:
        reason = f"{type(error).__name__}: {error}"
    if reason != "length":
        outcome.failures[str(reason)] += 1
    outcome.slowest_seconds = max(outcome.slowest_seconds, time.monotonic() - began)


async def _streamed(client: openai.AsyncOpenAI) -> str | None:
    reason = None
    stream = await client.completions.create(
        model="ttserve-sim", prompt=[1, 2, 3], max_tokens=TOKENS, stream=True
    )
    async for chunk in stream:
        reason = chunk.choices[0].finish_reason or reason
    return reason


async def _whole(client: openai.AsyncOpenAI) -> str | None:
    answer = await client.completions.create(
        model="ttserve-sim", prompt=[1, 2, 3], max_tokens=TOKENS
    )
    return answer.choices[0].finish_reason


async def roll_tt_serve(
    directory: Path, *, frontends: int = FRONTENDS, rate: float = REQUESTS_PER_SECOND
) -> Outcome:
    """All frontends share one socket; tt-serve restarts them on SIGUSR2."""
    async with _tt_serve(directory, frontends) as (process, log, url):

        async def restart() -> None:
            process.send_signal(signal.SIGUSR2)
            await _until(lambda: "rolling restart: done" in log.read_text())

        return await under_load(url, restart, rate=rate)


async def roll_balanced(
    directory: Path, *, frontends: int = FRONTENDS, rate: float = REQUESTS_PER_SECOND
) -> Outcome:
    """A port each behind a balancer; a new one is ready before an old one is told."""
    device = DeviceProcess(directory / "device.log", *SIM)
    with contextlib.ExitStack() as stack:
        stack.callback(device.close)
        device.start()
        # Twice as many: the second half comes to replace the first.
        old, new = (
            [_frontend(device, directory / f"{age}{i}.log") for i in range(frontends)]
            for age in ("old", "new")
        )
        for frontend in old:
            stack.enter_context(frontend)
        balancer = Balancer([frontend.port for frontend in (*old, *new)])
        async with balancer.running():
            for frontend in old:
                await _until(partial(balancer.is_up, frontend.port))

            async def restart() -> None:
                for leaving, coming in zip(old, new, strict=True):
                    stack.enter_context(coming)
                    await _until(partial(balancer.is_up, coming.port))
                    leaving.terminate()
                    status = await asyncio.to_thread(leaving.exit_status)
                    assert status == 0, leaving.log

            url = f"http://127.0.0.1:{balancer.port}"
            return await under_load(url, restart, rate=rate)


async def roll_devices(
    directory: Path, *, rate: float = REQUESTS_PER_SECOND
) -> Outcome:
    """Two device services behind a frontend: one drains, the other takes all."""
    devices = [DeviceProcess(directory / f"device{i}.log", *SIM) for i in range(2)]
    addresses = ",".join(device.address for device in devices)
    with contextlib.ExitStack() as stack:
        for device in devices:
            stack.callback(device.close)
            device.start()
        quiet = "--disable-uvicorn-access-log"
        log = directory / "frontend.log"
        frontend = stack.enter_context(FrontendProcess(addresses, log, quiet))

        def all_are_ready() -> bool:
            if not frontend.ready():
                return False
            states = httpx.get(f"{frontend.url}/ready", timeout=5).json()["devices"]
            return [state["state"] for state in states] == ["ready", "ready"]

        async def restart() -> None:
            for device in devices:
                device.signal(signal.SIGTERM)
                assert await asyncio.to_thread(device.process.wait, 60) == 0
                device.start()
                await _until(all_are_ready)

        await _until(all_are_ready)
        return await under_load(frontend.url, restart, rate=rate)


def _frontend(device: DeviceProcess, log: Path) -> FrontendProcess:
    options = ("--drain-delay", DRAIN_DELAY, "--disable-uvicorn-access-log")
    return FrontendProcess(device.address, log, *options)


@contextlib.asynccontextmanager
async def _tt_serve(
    directory: Path, frontends: int
) -> AsyncIterator[tuple[subprocess.Popen[bytes], Path, str]]:
    port, log = free_port(), directory / "tt-serve.log"
    command = [
        *(sys.executable, "-m", "ttserve.launcher", "--mesh", "sim", *SIM),
        *("--frontends", str(frontends), "--port", str(port)),
        *("--grpc-port", str(free_port()), "--metrics-port", str(free_port())),
        "--disable-uvicorn-access-log",
    ]
    process = _spawn(command, log)
    try:
        await _until(
            lambda: "| ready in" in log.read_text() or process.poll() is not None
        )
        assert process.poll() is None, log.read_text()
        yield process, log, f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        await asyncio.to_thread(process.wait, 60)


def _spawn(command: list[str], log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as output:
        return subprocess.Popen(command, stdout=output, stderr=output)


async def _until(condition: Callable[[], bool]) -> None:
    """Other processes make it true. Asks in a thread: this one has requests to send."""
    async with asyncio.timeout(READY_SECONDS):
        while not await asyncio.to_thread(condition):  # noqa: ASYNC110 - as above
            await asyncio.sleep(0.05)


HOW = {"tt-serve": roll_tt_serve, "balanced": roll_balanced, "devices": roll_devices}


def main() -> int:
    """Print the outcome; 1 if a request failed."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.rolling")
    parser.add_argument("how", choices=HOW)
    parser.add_argument("--rate", type=float, default=REQUESTS_PER_SECOND)
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        roll = HOW[chosen.how](Path(directory), rate=chosen.rate)
        outcome = asyncio.run(roll)
    print(outcome)
    return 1 if outcome.failed else 0


if __name__ == "__main__":
    sys.exit(main())
