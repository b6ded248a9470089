"""Cases O17 to O20, O25 and extras: load, prefixes, clients that leave."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import httpx
from transformers import AutoTokenizer

from tests.support.frontend_process import wait_for
from tests.support.stack import Stack
from ttserve.sim_model import sim_model_dir


def client_of(stack: Stack) -> httpx.AsyncClient:
    limits = httpx.Limits(max_connections=None)
    return httpx.AsyncClient(base_url=stack.urls[0], timeout=120, limits=limits)


async def ask(client: httpx.AsyncClient, **fields: Any) -> dict[str, Any]:
    body = {"max_tokens": 24, "temperature": 0} | fields
    response = await client.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    answer: dict[str, Any] = response.json()
    return answer


def text(answer: dict[str, Any]) -> str:
    spelled: str = answer["choices"][0]["text"]
    return spelled


async def test_o17_neither_a_hit_nor_load_changes_greedy_text(stack: Stack) -> None:
    prompt = [30 + i % 90 for i in range(200)]
    async with client_of(stack) as client:
        cold = text(await ask(client, prompt=prompt))
        warm = text(await ask(client, prompt=prompt))
        peers = [ask(client, prompt=[40 + i] * 50) for i in range(31)]
        loaded, *_ = await asyncio.gather(ask(client, prompt=prompt), *peers)
    assert cold == warm == text(loaded)


async def test_o18_a_long_prompt_does_not_starve_decoding(stack: Stack) -> None:
    """The gap in steps is what the interleave allows: two prefills, one decode."""
    async with client_of(stack) as client:
        tasks = [
            asyncio.create_task(
                client.post(
                    "/v1/completions",
                    json={
                        "prompt": [60 + i] * 4,
                        "max_tokens": 150,
                        "ignore_eos": True,
                    },
                    headers={"x-request-id": f"o18-{i}"},
                )
            )
            for i in range(4)
        ]
        await asyncio.to_thread(wait_for, lambda: stack.device.live_requests() == 4)
        await ask(client, prompt=[77] * 1900, max_tokens=2)
        assert all(r.status_code == 200 for r in await asyncio.gather(*tasks))
    steps = stack.device.steps()
    for i in range(4):
        mine = [
            step.number
            for step in steps
            for row in step.lanes[0].rows
            if row.external_request_id == f"o18-{i}" and row.produced_tokens
        ]
        assert max(b - a for a, b in zip(mine, mine[1:], strict=False)) <= 3


async def test_o19_two_hundred_of_random_length_under_block_pressure(
    stack: Stack,
) -> None:
    draw = random.Random(19)
    asked = [
        ([draw.randrange(1, 200)] * draw.randrange(1, 900), draw.randrange(1, 60))
        for _ in range(200)
    ]
    async with client_of(stack) as client:
        answers = await asyncio.gather(
            *(
                ask(client, prompt=prompt, max_tokens=new, ignore_eos=True)
                for prompt, new in asked
            )
        )
    for answer, (prompt, new) in zip(answers, asked, strict=True):
        assert answer["usage"]["prompt_tokens"] == len(prompt)
        assert answer["usage"]["completion_tokens"] == new
    stack.assert_nothing_is_held(sessions=1)


async def test_o20_rows_are_free_after_clients_left(stack: Stack) -> None:
    async def leave(client: httpx.AsyncClient, **fields: Any) -> None:
        body = {"prompt": "x", "max_tokens": 2000, "ignore_eos": True} | fields
        async with client.stream("POST", "/v1/completions", json=body) as response:
            async for _ in response.aiter_lines():
                return

    async def give_up(client: httpx.AsyncClient) -> None:
        body = {"prompt": "x", "max_tokens": 2000, "ignore_eos": True}
        try:
            await client.post("/v1/completions", json=body, timeout=0.1)
        except httpx.ReadTimeout:
            return

    async with client_of(stack) as client:
        for leavers in (
            [leave(client, stream=True) for _ in range(32)],
            [leave(client, stream=True, n=2, temperature=1) for _ in range(16)],
            [give_up(client) for _ in range(32)],
        ):
            await asyncio.gather(*leavers)
            await asyncio.to_thread(
                wait_for, lambda: stack.device.live_requests() == 0, 2.0
            )
        answers = await asyncio.gather(
            *(ask(client, prompt=[i + 1]) for i in range(32))
        )
    assert len(answers) == 32
    stack.assert_nothing_is_held(sessions=1)


async def test_o25_template_ids_are_those_of_transformers(stack: Stack) -> None:
    messages = [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "héllo 🌶"},
    ]
    tokenizer = AutoTokenizer.from_pretrained(sim_model_dir())
    expected = tokenizer.apply_chat_template(
        messages, add_generation_prompt=True, tokenize=True, return_dict=False
    )
    async with client_of(stack) as client:
        answer = await client.post("/tokenize", json={"messages": messages})
    assert answer.json()["tokens"] == expected


async def test_o25_stop_token_ids_are_reported(stack: Stack) -> None:
    async with client_of(stack) as client:
        first = ord(text(await ask(client, prompt="hello", max_tokens=1)))
        answer = await ask(client, prompt="hello", stop_token_ids=[first])
    choice = answer["choices"][0]
    assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", first)


async def test_extra_tokenizing_a_megabyte_does_not_stall_streams(
    stack: Stack,
) -> None:
    """vllm#25301: other streams go on while a long text is tokenized."""
    async with client_of(stack) as client:
        stream_ended = asyncio.create_task(
            ask(client, prompt="x", max_tokens=300, ignore_eos=True)
        )
        refused = await client.post(
            "/v1/completions", json={"prompt": "y" * 1_000_000, "max_tokens": 1}
        )
        assert refused.status_code == 400
        answer = await stream_ended
    assert answer["usage"]["completion_tokens"] == 300


async def test_extra_gauges_are_the_devices_own(stack: Stack) -> None:
    """vllm#21954: nothing runs, so every frontend says so."""
    async with client_of(stack) as client:
        await ask(client, prompt="x")
        lines = (await client.get("/metrics")).text.splitlines()
    running = [x for x in lines if x.startswith("vllm:num_requests_running{")]
    assert running
    assert all(float(line.rsplit(" ", 1)[1]) == 0 for line in running)
