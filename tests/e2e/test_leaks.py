"""Nothing leaks: a thousand requests, many of which go away half way."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import pytest

from tests.support.stack import Stack, running_stack
from ttserve.v1 import device_pb2, generation_pb2

pytestmark = pytest.mark.timeout(500)

REQUESTS = 1000
AT_ONCE = 48
SCHEMA = {
    "type": "object",
    "properties": {"ok": {"type": "boolean"}},
    "required": ["ok"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running_stack(
        tmp_path_factory.mktemp("leaks"),
        frontends=2,
        sim={"decode_ms": 2, "prefill_us_per_token": 20},
        device_options=[
            *("--max-num-seqs", "16", "--max-queued-requests", "256"),
            # Few blocks and small chunks, so that there are preemptions and
            # requests that leave in the middle of a prompt.
            *("--max-model-len", "1024", "--num-gpu-blocks-override", "129"),
            *("--max-num-batched-tokens", "128", "--block-size", "16"),
        ],
    ) as made:
        yield made


def body(draw: random.Random) -> dict[str, Any]:
    """A completion of some kind."""
    made: dict[str, Any] = {
        "prompt": [draw.randrange(1, 200)] * draw.choice([1, 20, 300, 700]),
        "max_tokens": draw.choice([1, 8, 40, 200]),
        "temperature": draw.choice([0, 1]),
        "stream": draw.random() < 0.6,
    }
    match draw.randrange(6):
        case 0:
            made["structured_outputs"] = {"json": SCHEMA}
        case 1:
            made["logprobs"] = 3
        case 2:
            made |= {"n": 3, "temperature": 1}
        case 3:
            made |= {"presence_penalty": 1.0, "seed": draw.randrange(1 << 40)}
        case 4:
            made["stop"] = ["a", "b"]
    return made


async def over_http(client: httpx.AsyncClient, url: str, draw: random.Random) -> str:
    """One request; it may be left at once, after some chunks, or never."""
    asked = body(draw)
    patience = draw.choice([0.001, 0.02, 0.1, 60, 60])
    try:
        async with (
            asyncio.timeout(patience),
            client.stream("POST", f"{url}/v1/completions", json=asked) as response,
        ):
            chunks = draw.choice([1, 3, 10_000])
            async for _ in response.aiter_lines():
                chunks -= 1
                if chunks == 0:
                    return "left"
            return str(response.status_code)
    except TimeoutError:
        return "left"


async def over_grpc(stack: Stack, draw: random.Random) -> str:
    """A Generate call, cancelled or read to its end."""
    request = device_pb2.GenerateRequest(
        prompt_token_ids=[draw.randrange(1, 200)] * draw.choice([1, 300]),
        stop=generation_pb2.StopRules(max_output_tokens=draw.choice([4, 300])),
    )
    call = stack.device.device.Generate(request, timeout=120)

    def read() -> str:
        for number, _ in enumerate(call):
            if number == 5:
                call.cancel()
                break
        return "left" if call.cancelled() else "200"

    try:
        return await asyncio.to_thread(read)
    except grpc.RpcError as error:
        return "left" if error.code() is grpc.StatusCode.CANCELLED else "failed"


async def test_a_thousand_requests_leave_nothing(stack: Stack) -> None:
    gate = asyncio.Semaphore(AT_ONCE)
    outcomes: Counter[str] = Counter()
    limits = httpx.Limits(max_connections=AT_ONCE, max_keepalive_connections=0)

    async with httpx.AsyncClient(timeout=90, limits=limits) as client:

        async def one(number: int) -> None:
            draw = random.Random(number)
            async with gate:
                if number % 10 == 9:
                    outcomes[await over_grpc(stack, draw)] += 1
                else:
                    url = stack.urls[number % 2]
                    outcomes[await over_http(client, url, draw)] += 1

        await asyncio.gather(*(one(number) for number in range(REQUESTS)))

    assert set(outcomes) == {"200", "left"}, outcomes
    assert min(outcomes.values()) > REQUESTS // 10, outcomes
    stack.assert_nothing_is_held(sessions=2)

    async with httpx.AsyncClient(timeout=90) as client:
        answers = await asyncio.gather(
            *(
                client.post(
                    f"{stack.urls[i % 2]}/v1/completions",
                    json={"prompt": [i + 1], "max_tokens": 5, "temperature": 0},
                )
                for i in range(32)
            )
        )
    for answer in answers:
        assert answer.status_code == 200
        assert answer.json()["usage"]["completion_tokens"] == 5
    stack.assert_nothing_is_held(sessions=2)
