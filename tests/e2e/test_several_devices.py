"""One frontend over two device services, of which one is killed under load."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.e2e.test_deaths import Streamed, begun, stream
from tests.support.frontend_process import FrontendProcess, wait_for
from tests.support.stack import DeviceProcess

pytestmark = pytest.mark.timeout(500)

ROWS = 2
DECODE_MS = 10


@dataclass
class Pair:
    """Two device services and a frontend over both."""

    devices: list[DeviceProcess]
    frontend: FrontendProcess

    def health(self) -> dict[str, Any]:
        """What GET /health says, by address of the device service."""
        answer = httpx.get(f"{self.frontend.url}/health", timeout=5)
        assert answer.status_code == 200
        return {device["address"]: device for device in answer.json()["devices"]}

    def state(self, device: DeviceProcess) -> str:
        return str(self.health()[device.address]["state"])

    def metric(self, line: str) -> bool:
        return line in httpx.get(f"{self.frontend.url}/metrics", timeout=5).text


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    directory: Path = tmp_path_factory.mktemp("pair")
    sim = json.dumps({"tt": {"sim": {"decode_ms": DECODE_MS}}})
    options = ("--max-num-seqs", str(ROWS), "--additional-config", sim)
    with contextlib.ExitStack() as cleanup:
        devices = []
        for name in ("first", "second"):
            device = DeviceProcess(directory / f"{name}.log", *options)
            cleanup.callback(device.close)
            device.start()
            devices.append(device)
        addresses = ",".join(device.address for device in devices)
        log = directory / "frontend.log"
        frontend = cleanup.enter_context(FrontendProcess(addresses, log))
        for device in devices:
            device.wait_until_serving()
        frontend.wait_until_ready()
        made = Pair(devices, frontend)
        wait_for(lambda: all(made.state(d) == "ready" for d in devices), 10)
        yield made


async def test_one_of_two_is_killed_under_load(pair: Pair) -> None:
    """Past the first token: an error. Before it: answered by the other one. The
    killed one is out at once and works again within 2 s of its return.
    """
    doomed, other = pair.devices
    url = pair.frontend.url
    running = [Streamed() for _ in range(2 * ROWS)]
    waiting = [Streamed() for _ in range(2 * ROWS)]
    readers = [
        asyncio.create_task(stream(url, seen, max_tokens=1000)) for seen in running
    ]
    await begun(*running)
    readers += [
        asyncio.create_task(stream(url, seen, max_tokens=5)) for seen in waiting
    ]
    both_full = [2 * ROWS, 2 * ROWS]
    await asyncio.to_thread(
        wait_for, lambda: [d.live_requests() for d in pair.devices] == both_full, 5.0
    )
    doomed.signal(signal.SIGKILL)
    await asyncio.to_thread(wait_for, lambda: pair.state(doomed) == "no_device", 2.0)
    assert pair.health()[other.address]["state"] == "ready"
    gone = f'ttserve_device_state{{device="{doomed.address}",state="no_device"}} 1.0'
    assert pair.metric(gone)
    await asyncio.gather(*readers)
    assert sum(bool(seen.errors) for seen in running) == ROWS
    assert [seen.finish_reasons for seen in running if not seen.errors] == [
        {"length"}
    ] * ROWS
    assert [seen.finish_reasons for seen in waiting] == [{"length"}] * (2 * ROWS)
    retries = 'ttserve_request_retries_total{device="%s",reason="DEVICE_LOST"} %.1f'
    assert pair.metric(retries % (doomed.address, ROWS))
    assert other.live_requests() == 0

    await asyncio.to_thread(doomed.process.wait, 10)
    doomed.start()
    await asyncio.to_thread(doomed.wait_until_serving)
    returned = time.monotonic()
    await asyncio.to_thread(wait_for, lambda: pair.state(doomed) == "ready", 2.0)
    assert time.monotonic() - returned < 2.0
    await asyncio.gather(
        *(stream(url, Streamed(), max_tokens=50) for _ in range(2 * ROWS))
    )
    assert doomed.steps()
    assert [device.live_requests() for device in pair.devices] == [0, 0]


async def test_a_drain_moves_new_work_to_the_other(pair: Pair) -> None:
    """SIGTERM: what runs finishes there; what comes goes to the other one."""
    leaving, other = pair.devices
    url = pair.frontend.url
    running = [Streamed() for _ in range(2)]
    readers = [
        asyncio.create_task(stream(url, seen, max_tokens=200)) for seen in running
    ]
    await begun(*running)
    leaving.signal(signal.SIGTERM)
    await asyncio.to_thread(wait_for, lambda: pair.state(leaving) != "ready", 5.0)
    late = [Streamed() for _ in range(3)]
    readers += [asyncio.create_task(stream(url, seen, max_tokens=5)) for seen in late]
    await asyncio.gather(*readers)
    for seen in (*running, *late):
        assert seen.finish_reasons == {"length"}
        assert not seen.errors
    assert await asyncio.to_thread(leaving.process.wait, 30) == 0
    assert pair.health()[other.address]["state"] == "ready"


async def test_one_that_returns_with_other_limits_is_refused(pair: Pair) -> None:
    """The one that has left. Said once, counted, and the other one serves."""
    returned, other = pair.devices
    returned.start("--max-model-len", "1000")
    await asyncio.to_thread(
        wait_for, lambda: pair.state(returned) == "wrong_model", 200
    )
    reason = str(pair.health()[returned.address]["reason"])
    assert "max_sequence_tokens is 1000 there and " in reason
    counted = 'ttserve_device_models_refused_total{device="%s"} %.1f'
    assert pair.metric(counted % (returned.address, 1))
    assert pair.metric(counted % (other.address, 0))
    seen = [Streamed() for _ in range(4)]
    url = pair.frontend.url
    await asyncio.gather(*(stream(url, each, max_tokens=5) for each in seen))
    assert [each.finish_reasons for each in seen] == [{"length"}] * 4
    assert not returned.steps()
    said = f"device service {returned.address} is not used: {reason}"
    assert pair.frontend.log.count(said) == 1
