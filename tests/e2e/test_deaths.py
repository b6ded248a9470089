"""Either side dies or stands still; the other side says so and lives.

The deadlines are those that operators are promised; see DESIGN.md.
"""

from __future__ import annotations

import asyncio
import json
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx
import pytest

from tests.support.frontend_process import wait_for
from tests.support.stack import Stack, running_stack

pytestmark = pytest.mark.timeout(400)

LONG = 30_000


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running_stack(
        tmp_path_factory.mktemp("deaths"),
        frontends=2,
        sim={"decode_ms": 5},
        device_options=["--max-num-seqs", "8"],
    ) as made:
        yield made


@dataclass
class Streamed:
    """What a client saw of one stream."""

    chunks: list[dict[str, Any]] = field(default_factory=list)
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    done: bool = False

    @property
    def errors(self) -> list[dict[str, Any]]:
        return [chunk["error"] for chunk in self.chunks if "error" in chunk]

    @property
    def finish_reasons(self) -> set[str]:
        return {
            choice["finish_reason"]
            for chunk in self.chunks
            for choice in chunk.get("choices", [])
            if choice.get("finish_reason")
        }


async def stream(
    url: str, seen: Streamed, *, max_tokens: int = LONG, request_id: str = ""
) -> None:
    """Read a stream to its end; a broken connection is the test's failure."""
    body = {"prompt": [1, 2, 3], "max_tokens": max_tokens, "stream": True}
    headers = {"x-request-id": request_id} if request_id else {}
    async with (
        httpx.AsyncClient(timeout=60) as client,
        client.stream(
            "POST", f"{url}/v1/completions", json=body, headers=headers
        ) as response,
    ):
        assert response.status_code == 200
        async for line in response.aiter_lines():
            if not line.startswith("data: "):
                continue
            if line == "data: [DONE]":
                seen.done = True
                return
            seen.chunks.append(json.loads(line.removeprefix("data: ")))
            seen.begun.set()


async def begun(*streams: Streamed) -> None:
    """Until each has its first chunk."""
    async with asyncio.timeout(30):
        await asyncio.gather(*(seen.begun.wait() for seen in streams))


def health(url: str) -> int:
    return httpx.get(f"{url}/health", timeout=5).status_code


async def test_a_frontend_is_killed(stack: Stack) -> None:
    """Its requests are gone within 1 s; the other's streams miss no step."""
    doomed, other = stack.frontends
    lost = [Streamed() for _ in range(3)]
    kept = [Streamed() for _ in range(2)]
    readers = [asyncio.create_task(stream(doomed.url, seen)) for seen in lost]
    keepers = [
        asyncio.create_task(
            stream(other.url, seen, max_tokens=400, request_id=f"kept-{i}")
        )
        for i, seen in enumerate(kept)
    ]
    await begun(*lost, *kept)
    doomed.kill()
    await asyncio.to_thread(wait_for, lambda: stack.device.live_requests() == 2, 1.0)
    await asyncio.gather(*keepers)
    await asyncio.gather(*readers, return_exceptions=True)
    for seen in kept:
        assert seen.finish_reasons == {"length"}
        assert not seen.errors
    for i in range(2):
        mine = [
            step.number
            for step in stack.device.steps()
            for lane in step.lanes
            for row in lane.rows
            if row.external_request_id == f"kept-{i}"
        ]
        assert len(mine) == 400
        # Neither a step that left it out nor a gap in the step numbers, but for
        # the steps that prefilled one of the others.
        assert mine[-1] - mine[0] <= 400 + 5
    stack.assert_nothing_is_held(sessions=1)
    doomed.__enter__()
    doomed.wait_until_ready()


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
async def test_o21_the_device_service_dies_or_stands_still(
    stack: Stack, how: signal.Signals
) -> None:
    """Streams end with an error, others get 5xx, /health says 503 within 2 s;
    the first request after the return is served within 2 s of it.
    """
    device, url = stack.device, stack.frontends[1].url
    seen = Streamed()
    reader = asyncio.create_task(stream(url, seen))
    async with httpx.AsyncClient(timeout=60) as client:
        body = {"prompt": [4, 5, 6], "max_tokens": LONG}
        whole = asyncio.create_task(client.post(f"{url}/v1/completions", json=body))
        await begun(seen)
        device.signal(how)
        await asyncio.to_thread(wait_for, lambda: health(url) == 503, 2.0)
        await reader
        response = await whole
        refused = await client.post(f"{url}/v1/completions", json=body)
    assert len(seen.errors) == 1
    assert not seen.finish_reasons
    for answer in (response, refused):
        assert answer.status_code in (500, 503)
        assert set(answer.json()["error"]) >= {"message", "type", "param", "code"}
    assert stack.frontends[1].process.poll() is None

    if how is signal.SIGSTOP:
        device.signal(signal.SIGCONT)
    else:
        device.process.wait(10)
        device.start()
    await asyncio.to_thread(device.wait_until_serving)
    returned = time.monotonic()
    await asyncio.to_thread(wait_for, lambda: health(url) == 200, 2.0)
    async with httpx.AsyncClient(timeout=60) as client:
        answer = await client.post(
            f"{url}/v1/completions", json={"prompt": [7], "max_tokens": 3}
        )
    assert answer.status_code == 200
    assert time.monotonic() - returned < 2.0
    assert answer.json()["usage"]["completion_tokens"] == 3
    await asyncio.to_thread(wait_for, lambda: health(stack.urls[0]) == 200, 2.0)
    stack.assert_nothing_is_held(sessions=2)
