"""Cases O1 to O6 and O12 to O15: what a client reads back."""

from __future__ import annotations

import json
import math
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.cases.conftest import force

MIXED = "x🌶🤣é漢y"
HI: Any = [{"role": "user", "content": "hi"}]


def chat(client: openai.OpenAI, model: str, text: str, **options: Any) -> Any:
    return client.chat.completions.create(
        model=model, messages=HI, extra_body=force(text), **options
    )


def complete(client: openai.OpenAI, model: str, text: str, **options: Any) -> Any:
    return client.completions.create(
        model=model, prompt="hi", extra_body=force(text), **options
    )


def spelled(stream: Any) -> str:
    return "".join(
        chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices
    )


def events(response: httpx.Response) -> list[dict[str, Any]]:
    lines = [x[6:] for x in response.text.splitlines() if x.startswith("data: ")]
    assert lines[-1] == "[DONE]"
    return [json.loads(line) for line in lines[:-1]]


# -- O1: characters of several tokens


def test_o1_streamed_characters_are_whole(client: openai.OpenAI, model: str) -> None:
    streamed = spelled(chat(client, model, MIXED, stream=True, max_tokens=40))
    whole = chat(client, model, MIXED, max_tokens=40).choices[0].message.content
    assert streamed == whole == MIXED


def test_o1_bytes_of_logprobs_spell_the_text(client: openai.OpenAI, model: str) -> None:
    answer = chat(client, model, MIXED, logprobs=True, max_tokens=40).choices[0]
    spelled_bytes = b"".join(bytes(e.bytes or []) for e in answer.logprobs.content)
    assert spelled_bytes.decode() == MIXED


def test_o1_cut_inside_a_character(client: openai.OpenAI, model: str) -> None:
    """Three tokens are "x" and half of the chilli, which is held back."""
    streamed = spelled(chat(client, model, MIXED, stream=True, max_tokens=3))
    assert streamed == "x"


# -- O2: stop strings


@pytest.mark.feature(151)
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("forced", "options", "text", "reason"),
    [
        ("ABCDEFGHIJKLM", {}, "ABC", "DEFG"),
        ("ABCDEF", {}, "ABCDEF", None),
        (
            "ABCDEFGHIJKLM",
            {"include_stop_str_in_output": True},
            "ABCDEFG",
            "DEFG",
        ),
    ],
)
def test_o2_stop_string_over_tokens(
    http: httpx.Client,
    *,
    stream: bool,
    forced: str,
    options: dict[str, Any],
    text: str,
    reason: str | None,
) -> None:
    body = {"prompt": "hi", "stop": ["DEFG"], "max_tokens": 30, "stream": stream}
    response = http.post("/v1/completions", json=body | force(forced) | options)
    assert response.status_code == 200
    if stream:
        choices = [e["choices"][0] for e in events(response) if e["choices"]]
    else:
        choices = response.json()["choices"]
    assert "".join(choice["text"] for choice in choices) == text
    assert choices[-1]["finish_reason"] == "stop"
    if reason is not None:
        assert choices[-1]["stop_reason"] == reason


# -- O3: usage of streams


@pytest.mark.feature(151)
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"include_usage": True}, "last"),
        ({}, "none"),
        (None, "none"),
        ({"include_usage": True, "continuous_usage_stats": True}, "all"),
    ],
)
def test_o3_usage_of_streams(
    http: httpx.Client, options: dict[str, bool] | None, expected: str
) -> None:
    body: dict[str, Any] = {"messages": HI, "stream": True, "max_tokens": 5}
    if options is not None:
        body["stream_options"] = options
    chunks = events(http.post("/v1/chat/completions", json=body))
    with_usage = [chunk for chunk in chunks if chunk.get("usage")]
    if expected == "none":
        assert not with_usage
        return
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["completion_tokens"] == 5
    assert with_usage == (chunks if expected == "all" else chunks[-1:])


def test_o3_stream_options_need_a_stream(http: httpx.Client) -> None:
    body = {"messages": HI, "stream": False, "stream_options": {"include_usage": True}}
    assert http.post("/v1/chat/completions", json=body).status_code == 400


# -- O4: several prompts, several choices


@pytest.mark.parametrize("stream", [False, True])
def test_o4_every_choice_arrives_and_counts(
    http: httpx.Client, *, stream: bool
) -> None:
    body: dict[str, Any] = {
        "prompt": ["a", "b"],
        "n": 2,
        "temperature": 1,
        "seed": 1,
        "max_tokens": 3,
        "stream": stream,
    }
    if stream:
        body["stream_options"] = {"include_usage": True}
        chunks = events(http.post("/v1/completions", json=body))
        choices = [choice for chunk in chunks for choice in chunk["choices"]]
        usage = chunks[-1]["usage"]
    else:
        answer = http.post("/v1/completions", json=body).json()
        choices, usage = answer["choices"], answer["usage"]
    finished = {c["index"]: c["finish_reason"] for c in choices if c["finish_reason"]}
    assert finished == dict.fromkeys(range(4), "length")
    assert usage["completion_tokens"] == 12


# -- O5: streamed tool calls

CALL = '<tool_call>\n{"name": "f", "arguments": {"a": "x}y"}}\n</tool_call>'
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "f",
            "parameters": {"type": "object", "properties": {"a": {"type": "string"}}},
        },
    }
]


def test_o5_streamed_tool_call_equals_the_whole_one(
    client: openai.OpenAI, model: str
) -> None:
    options: dict[str, Any] = {"tools": TOOLS, "max_tokens": 200}
    whole = chat(client, model, CALL, **options).choices[0]
    assert whole.finish_reason == "tool_calls"
    assert not whole.message.content
    [call] = whole.message.tool_calls
    assert call.function.name == "f"
    assert json.loads(call.function.arguments) == {"a": "x}y"}

    chunks = [
        chunk.choices[0]
        for chunk in chat(client, model, CALL, stream=True, **options)
        if chunk.choices
    ]
    deltas = [call for c in chunks for call in c.delta.tool_calls or []]
    assert "".join(d.function.name or "" for d in deltas) == "f"
    arguments = "".join(d.function.arguments or "" for d in deltas)
    assert json.loads(arguments) == {"a": "x}y"}
    assert not "".join(c.delta.content or "" for c in chunks)
    assert chunks[-1].finish_reason == "tool_calls"


def test_o6_tool_choice_none_makes_no_call(client: openai.OpenAI, model: str) -> None:
    answer = chat(client, model, "plain", tools=TOOLS, tool_choice="none")
    assert answer.choices[0].message.content == "plain"
    assert not answer.choices[0].message.tool_calls


# -- O12: how many tokens


def test_o12_max_tokens_is_exact(http: httpx.Client) -> None:
    body = {"prompt": "hi", "max_tokens": 64, "ignore_eos": True}
    answer = http.post("/v1/completions", json=body).json()
    assert answer["usage"]["completion_tokens"] == 64
    assert answer["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("absent", [True, False])
def test_o12_chat_runs_to_its_end_without_max_tokens(
    http: httpx.Client, *, absent: bool
) -> None:
    """The default of 16 tokens must not cut a chat; null means the same."""
    text = "a text that is longer than sixteen tokens are"
    body: dict[str, Any] = {"messages": HI} | force(text)
    if not absent:
        body["max_tokens"] = None
    answer = http.post("/v1/chat/completions", json=body).json()
    assert answer["choices"][0]["message"]["content"] == text
    assert answer["choices"][0]["finish_reason"] == "stop"


def test_o12_max_tokens_beyond_the_context(http: httpx.Client) -> None:
    for most in (1_000_000_000, 10**30):
        response = http.post(
            "/v1/completions", json={"prompt": "a", "max_tokens": most}
        )
        assert response.status_code == 400


def test_o12_echo_of_nothing_says_why_not(http: httpx.Client) -> None:
    """Prompt log probabilities are refused, so this one is, and says so."""
    body = {"prompt": "hi", "max_tokens": 0, "echo": True, "logprobs": 1}
    response = http.post("/v1/completions", json=body)
    assert response.status_code == 400
    assert "logprobs" in response.json()["error"]["message"]


# -- O13: seeds


def test_o13_a_seed_means_the_same_among_others(stack: Any) -> None:
    import asyncio

    async def ask(client: httpx.AsyncClient, **fields: Any) -> str:
        body = {"prompt": "hello", "temperature": 1, "max_tokens": 16} | fields
        answer = await client.post("/v1/completions", json=body)
        text: str = answer.json()["choices"][0]["text"]
        return text

    async def all_at_once() -> tuple[str, list[str], list[str]]:
        async with httpx.AsyncClient(base_url=stack.urls[0], timeout=60) as client:
            alone = await ask(client, seed=7)
            answers = await asyncio.gather(
                *(ask(client, **({"seed": 7} if i % 2 else {})) for i in range(16))
            )
            return alone, answers[1::2], answers[0::2]

    alone, seeded, unseeded = asyncio.run(all_at_once())
    assert set(seeded) == {alone}
    assert len(set(unseeded)) > 1


# -- O14, O15: log probabilities


def test_o14_logprobs_of_every_token_in_both_modes(
    client: openai.OpenAI, model: str
) -> None:
    options: dict[str, Any] = {
        "model": model,
        "messages": HI,
        "logprobs": True,
        "top_logprobs": 3,
        "max_tokens": 5,
        "temperature": 0,
    }
    whole = client.chat.completions.create(**options).choices[0].logprobs.content
    streamed = [
        entry
        for chunk in client.chat.completions.create(stream=True, **options)
        if chunk.choices and chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content
    ]
    assert len(whole) == 5
    assert [(e.token, e.logprob) for e in whole] == [
        (e.token, e.logprob) for e in streamed
    ]
    for entry in whole:
        assert entry.logprob <= 0
        assert len(entry.top_logprobs) == 3
        assert entry.token in [top.token for top in entry.top_logprobs]
        assert sum(math.exp(top.logprob) for top in entry.top_logprobs) <= 1.0001


def test_o15_masked_tokens_are_numbers(http: httpx.Client) -> None:
    body = {"messages": HI, "logprobs": True, "top_logprobs": 5} | force("word")
    response = http.post("/v1/chat/completions", json=body)
    assert response.status_code == 200
    entries = response.json()["choices"][0]["logprobs"]["content"]
    values = [top["logprob"] for e in entries for top in e["top_logprobs"]]
    assert values
    assert all(isinstance(value, float) and value >= -9999.0 for value in values)
