"""The SMG gateway, unmodified, in front of two device services on the cpu mesh."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch
from transformers import AutoTokenizer, PreTrainedModel

from tests.support.frontend_process import wait_for
from tests.support.smg_process import SmgProcess
from tests.support.stack import DeviceProcess
from tests.tiny_models import write_tiny_model

pytest.importorskip("smg", reason="the gateway is not installed")
pytestmark = pytest.mark.timeout(400)

MODEL, BLOCK = "tiny", 16
LETTERS = slice(ord("a"), ord("z") + 1)
LONG = "the same words again and again, so that blocks of them can be shared " * 2


@dataclass
class Served:
    """A gateway, what stands behind it, and the model to compare with."""

    devices: list[DeviceProcess]
    smg: SmgProcess
    model: PreTrainedModel
    tokenizer: Any

    def prompt(self, text: str) -> list[int]:
        """The token ids of a chat of one message."""
        ids: list[int] = self.tokenizer.apply_chat_template(
            [{"role": "user", "content": text}],
            add_generation_prompt=True,
            return_dict=False,
        )
        return ids

    def expected(self, text: str) -> list[int]:
        """The tokens of the best eight small letters in quotes that answer a chat.

        Random weights say what is no text; a grammar makes it letters.
        """
        said = [ord('"')]
        with torch.no_grad():
            for _ in range(8):
                ids = torch.tensor([self.prompt(text) + said])
                logits = self.model(ids).logits[0, -1, LETTERS]
                said.append(LETTERS.start + int(logits.argmax()))
        return [*said, ord('"')]

    def live(self) -> int:
        """Requests of all device services."""
        return sum(device.live_requests() for device in self.devices)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    directory = tmp_path_factory.mktemp("smg")
    model = write_tiny_model("llama", directory / "model")
    devices = [_device(directory, number) for number in range(2)]
    try:
        for device in devices:
            device.start()
        for device in devices:
            device.wait_until_serving()
        addresses = [device.address for device in devices]
        with SmgProcess(addresses, directory / "smg.log") as smg:
            tokenizer = AutoTokenizer.from_pretrained(directory / "model")
            yield Served(devices, smg, model, tokenizer)
    finally:
        for device in devices:
            device.close()


def _device(directory: Path, number: int) -> DeviceProcess:
    return DeviceProcess(
        directory / f"device{number}.log",
        *("--model", str(directory / "model"), "--served-model-name", MODEL),
        *("--dtype", "float32", "--max-num-seqs", "4", "--max-model-len", "512"),
        *("--block-size", str(BLOCK), "--enable-vllm-grpc"),
        mesh="cpu",
    )


def question(text: str, **options: Any) -> dict[str, Any]:
    """What `Served.expected` answers, unless `options` say otherwise."""
    return {
        "model": MODEL,
        "messages": [{"role": "user", "content": text}],
        "temperature": 0,
        "max_tokens": 12,
        "response_format": grammar({"type": "string", "pattern": "^[a-z]{8}$"}),
        **options,
    }


async def chat(served: Served, text: str, **options: Any) -> Any:
    async with openai.AsyncOpenAI(
        base_url=f"{served.smg.url}/v1", api_key="none"
    ) as client:
        return await client.chat.completions.create(**question(text, **options))


def grammar(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}


async def test_text_usage_and_logprobs_are_the_model_s(served: Served) -> None:
    prompt, expected = served.prompt("hello"), served.expected("hello")
    answer = await chat(served, "hello", logprobs=True, top_logprobs=2)
    [choice] = answer.choices
    assert choice.message.content == bytes(expected).decode()
    assert choice.finish_reason == "stop"
    assert answer.usage.prompt_tokens == len(prompt)
    assert answer.usage.completion_tokens == len(expected) + 1  # its end, too
    with torch.no_grad():
        logits = served.model(torch.tensor([prompt + expected])).logits[0]
    # Of what the grammar allows: a quote alone, or the letters.
    rows = torch.log_softmax(logits[len(prompt) : len(prompt) + 8, LETTERS], -1)
    best = [0.0, *rows.max(-1).values.tolist(), 0.0]
    entries = choice.logprobs.content[: len(expected)]
    for entry, logprob in zip(entries, best, strict=True):
        assert math.isclose(entry.logprob, logprob, abs_tol=1e-3)
        assert entry.top_logprobs[0].logprob == entry.logprob
        assert len(entry.top_logprobs) == 2


async def test_a_stream_says_the_same(served: Served) -> None:
    text, reasons, usage = "", [], None
    async with openai.AsyncOpenAI(
        base_url=f"{served.smg.url}/v1", api_key="none"
    ) as client:
        asked = question("hello", stream=True, stream_options={"include_usage": True})
        async for part in await client.chat.completions.create(**asked):
            usage = part.usage or usage
            for choice in part.choices:
                text += choice.delta.content or ""
                reasons += [choice.finish_reason] if choice.finish_reason else []
    expected = served.expected("hello")
    assert text == bytes(expected).decode()
    assert reasons == ["stop"]
    assert usage is not None
    assert usage.completion_tokens == len(expected) + 1


async def test_structured_output_and_stop_string(served: Served) -> None:
    wanted = grammar({"type": "string", "enum": ["one two three"]})
    answer = await chat(served, "say", response_format=wanted, max_tokens=40)
    assert answer.choices[0].message.content == '"one two three"'
    answer = await chat(
        served, "say", response_format=wanted, max_tokens=40, stop=["two"]
    )
    assert answer.choices[0].message.content == '"one '
    assert answer.choices[0].finish_reason == "stop"


async def test_what_is_refused_is_an_error_of_the_client(served: Served) -> None:
    with pytest.raises(openai.BadRequestError, match="a sequence has at most 512"):
        await chat(served, "hello", max_tokens=1000)


async def test_a_client_that_leaves_frees_its_row(served: Served) -> None:
    body = {
        "model": MODEL,
        "messages": [{"role": "user", "content": "go on"}],
        "stream": True,
        "max_tokens": 400,
        "ignore_eos": True,
    }
    url = f"{served.smg.url}/v1/chat/completions"
    async with (
        httpx.AsyncClient(timeout=60) as client,
        client.stream("POST", url, json=body) as answer,
    ):
        await anext(answer.aiter_lines())
        await asyncio.to_thread(wait_for, lambda: served.live() == 1, 20)
    await asyncio.to_thread(wait_for, lambda: served.live() == 0, 20)


async def test_both_device_services_work(served: Served) -> None:
    before = [len(device.steps()) for device in served.devices]
    texts = [f"{number} is a number" for number in range(16)]
    answers = await asyncio.gather(*(chat(served, text) for text in texts))
    for text, answer in zip(texts, answers, strict=True):
        wanted = bytes(served.expected(text)).decode()
        assert answer.choices[0].message.content == wanted
    after = [len(device.steps()) for device in served.devices]
    assert all(new > old for old, new in zip(before, after, strict=True))


async def test_a_prompt_goes_where_its_blocks_are(served: Served) -> None:
    """The gateway knows from block events who has cached what."""
    first = await chat(served, LONG)
    assert first.usage.prompt_tokens_details.cached_tokens == 0
    stored = len(served.prompt(LONG)) // BLOCK
    name = "smg_kv_event_blocks_total"
    await asyncio.to_thread(wait_for, lambda: served.smg.metric(name) >= stored, 20)
    for _ in range(4):
        again = await chat(served, LONG)
        reused = again.usage.prompt_tokens_details.cached_tokens
        assert reused == (len(served.prompt(LONG)) - 1) // BLOCK * BLOCK


async def test_one_that_dies_leaves_its_work_to_the_other(served: Served) -> None:
    """The last test here: one device service is gone after it."""
    served.devices.pop().kill()
    for number in range(4):
        assert (await chat(served, f"still {number}")).choices[0].message.content
    await asyncio.to_thread(wait_for, lambda: served.smg.healthy_workers() == 1, 30)
