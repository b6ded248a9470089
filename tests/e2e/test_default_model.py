"""The default model through the whole split: equal tokens, sensible answers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.support.reference import (
    NEW_TOKENS,
    default_answers,
    default_model,
    default_prompts,
)
from tests.support.stack import Stack, running_stack

pytestmark = [pytest.mark.model, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    default_model()
    with running_stack(
        tmp_path_factory.mktemp("default"),
        frontends=3,
        mesh="cpu",
        device_options=[
            *("--dtype", "float32", "--max-model-len", "1024", "--block-size", "16"),
            *("--max-num-seqs", "8", "--max-num-batched-tokens", "64"),
        ],
        frontend_options=["--enable-auto-tool-choice", "--tool-call-parser", "hermes"],
    ) as made:
        yield made


@pytest.fixture
def client(stack: Stack) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(
        base_url=f"{stack.urls[0]}/v1", api_key="none", max_retries=0, timeout=120
    ) as made:
        yield made


@pytest.fixture(scope="module")
def model(stack: Stack) -> str:
    """The name that clients put into `model`."""
    listed = httpx.get(f"{stack.urls[0]}/v1/models", timeout=60).json()
    name: str = listed["data"][0]["id"]
    return name


@pytest.mark.parametrize("frontends", [1, 3])
async def test_tokens_equal_transformers_through_any_number_of_frontends(
    stack: Stack, frontends: int
) -> None:
    prompts = default_prompts()
    async with httpx.AsyncClient(timeout=120) as client:

        async def ask(number: int, prompt: list[int]) -> list[int]:
            url = stack.urls[number % frontends]
            body = {
                "prompt": prompt,
                "max_tokens": NEW_TOKENS,
                "temperature": 0,
                "return_token_ids": True,
            }
            response = await client.post(f"{url}/v1/completions", json=body)
            assert response.status_code == 200, response.text
            tokens: list[int] = response.json()["choices"][0]["token_ids"]
            return tokens

        answers = await asyncio.gather(*(ask(i, p) for i, p in enumerate(prompts)))
    assert answers == default_answers()


def test_a_chat_is_sensible(client: openai.OpenAI, model: str) -> None:
    question: Any = [{"role": "user", "content": "What is the capital of France?"}]
    answer = client.chat.completions.create(
        model=model, messages=question, temperature=0, max_tokens=24
    )
    text = answer.choices[0].message.content
    assert text is not None
    assert "Paris" in text
    chunks = list(
        client.chat.completions.create(
            model=model,
            messages=question,
            temperature=0,
            max_tokens=24,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    deltas = [c.choices[0].delta.content or "" for c in chunks if c.choices]
    assert "".join(deltas) == text
    assert chunks[-1].usage == answer.usage


def test_json_schema_output_is_json(client: openai.OpenAI, model: str) -> None:
    schema = {
        "type": "object",
        "properties": {
            "city": {"type": "string", "maxLength": 12},
            "big": {"type": "boolean"},
        },
        "required": ["city", "big"],
        "additionalProperties": False,
    }
    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Describe Paris as JSON."}],
        temperature=0,
        max_tokens=60,
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "city", "schema": schema},
        },
    )
    parsed = json.loads(answer.choices[0].message.content or "")
    assert set(parsed) == {"city", "big"}
    assert isinstance(parsed["big"], bool)


def test_a_named_tool_is_called(client: openai.OpenAI, model: str) -> None:
    answer = client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Is it raining in Paris?"}],
        temperature=0,
        max_tokens=60,
        tools=[
            {
                "type": "function",
                "function": {
                    "name": "weather",
                    "parameters": {
                        "type": "object",
                        "properties": {"city": {"enum": ["Paris", "Rome"]}},
                        "required": ["city"],
                        "additionalProperties": False,
                    },
                },
            }
        ],
        tool_choice={"type": "function", "function": {"name": "weather"}},
    )
    [call] = answer.choices[0].message.tool_calls or []
    assert call.type == "function"
    assert call.function.name == "weather"
    assert json.loads(call.function.arguments)["city"] in ("Paris", "Rome")


def test_choices_seeds_stops_and_logprobs(client: openai.OpenAI, model: str) -> None:
    def ask() -> list[str]:
        answer = client.completions.create(
            model=model,
            prompt="The best colour is",
            n=2,
            seed=11,
            temperature=1,
            max_tokens=6,
            stop=["."],
            logprobs=2,
        )
        for choice in answer.choices:
            assert choice.finish_reason in ("stop", "length")
            assert choice.logprobs is not None
            assert choice.logprobs.token_logprobs
            assert all(v is not None and v <= 0 for v in choice.logprobs.token_logprobs)
        return [choice.text for choice in answer.choices]

    first = ask()
    assert first == ask()
    assert not any("." in text for text in first)
