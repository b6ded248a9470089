"""Beyond the queue bound: 429, for streams too; those admitted do not notice."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import grpc
import httpx
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from tests.support.frontend_process import wait_for
from tests.support.stack import Stack, running_stack
from ttserve.v1 import device_pb2, generation_pb2

pytestmark = pytest.mark.timeout(300)

ROWS, QUEUE = 2, 3
TOKENS = 120


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    with running_stack(
        tmp_path_factory.mktemp("overload"),
        sim={"decode_ms": 20},
        device_options=[
            *("--max-num-seqs", str(ROWS), "--max-queued-requests", str(QUEUE)),
        ],
    ) as made:
        yield made


async def ask(url: str, **fields: Any) -> httpx.Response:
    body = {"prompt": [1, 2], "max_tokens": TOKENS, "temperature": 0} | fields
    async with httpx.AsyncClient(timeout=120) as client:
        return await client.post(f"{url}/v1/completions", json=body)


async def test_o22_the_surplus_is_refused_and_the_rest_is_served(stack: Stack) -> None:
    [url] = stack.urls
    answers = await asyncio.gather(
        *(ask(url, stream=i % 2 == 0) for i in range(ROWS + QUEUE + 10))
    )
    served = [a for a in answers if a.status_code == 200]
    refused = [a for a in answers if a.status_code == 429]
    assert (len(served), len(refused)) == (ROWS + QUEUE, 10)
    for answer in served:
        if answer.headers["content-type"].startswith("application/json"):
            assert answer.json()["usage"]["completion_tokens"] == TOKENS
        else:
            assert answer.text.rstrip().endswith("data: [DONE]")
            assert '"error"' not in answer.text
    for answer in refused:
        assert int(answer.headers["retry-after"]) >= 1
        assert set(answer.json()["error"]) >= {"message", "type", "param", "code"}
    stack.assert_nothing_is_held(sessions=1)


async def test_children_are_admitted_together_or_not_at_all(stack: Stack) -> None:
    [url] = stack.urls
    never = await ask(url, n=ROWS + QUEUE + 1, temperature=1)
    assert never.status_code == 400
    busy = asyncio.create_task(ask(url))
    await asyncio.to_thread(wait_for, lambda: stack.device.live_requests() == 1)
    answer = await ask(url, n=ROWS + QUEUE, temperature=1)
    assert answer.status_code == 429
    fitting = await ask(url, n=ROWS + QUEUE - 1, temperature=1)
    assert fitting.status_code == 200
    assert len(fitting.json()["choices"]) == ROWS + QUEUE - 1
    assert (await busy).status_code == 200


async def test_grpc_says_when_to_come_back(stack: Stack) -> None:
    [url] = stack.urls
    fillers = [asyncio.create_task(ask(url)) for _ in range(ROWS + QUEUE)]
    await asyncio.to_thread(
        wait_for, lambda: stack.device.live_requests() == ROWS + QUEUE
    )
    request = device_pb2.GenerateRequest(
        prompt_token_ids=[1], stop=generation_pb2.StopRules(max_output_tokens=1)
    )
    with pytest.raises(grpc.RpcError) as refusal:
        list(stack.device.device.Generate(request, timeout=10))
    error = refusal.value
    assert isinstance(error, grpc.Call)
    assert error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    status = rpc_status.from_call(error)
    assert status is not None
    info, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    unpacked = [
        detail.Unpack(info) or detail.Unpack(retry) for detail in status.details
    ]
    assert all(unpacked)
    assert (info.domain, info.reason) == ("ttserve", "QUEUE_FULL")
    assert retry.retry_delay.ToTimedelta().total_seconds() > 0
    assert all(answer.status_code == 200 for answer in await asyncio.gather(*fillers))
