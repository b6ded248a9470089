"""What OpenAI's client gets: chat, completions, streams, usage, choices, stops."""

from __future__ import annotations

import json
from typing import Any

import httpx
import openai
import pytest

from tests.support.fake_device import SERVED_NAME, FakeDevice
from tests.support.frontend_process import wait_for
from ttserve.v1 import device_pb2

MIXED = "x🌶🤣é漢y"


def say(text: str) -> Any:
    return [{"role": "user", "content": f"SAY<{text}>"}]


def chat(client: openai.OpenAI, text: str, **options: Any) -> Any:
    return client.chat.completions.create(
        model=SERVED_NAME, messages=say(text), **options
    )


def complete(client: openai.OpenAI, prompt: Any, **options: Any) -> Any:
    return client.completions.create(model=SERVED_NAME, prompt=prompt, **options)


@pytest.mark.feature(151)
def test_chat(client: openai.OpenAI) -> None:
    answer = chat(client, "hello")
    assert answer.choices[0].message.content == "hello"
    assert answer.choices[0].finish_reason == "stop"
    assert answer.model == SERVED_NAME
    assert answer.usage.completion_tokens == len("hello") + 1


@pytest.mark.feature(151)
def test_streamed_chat_spells_the_same(client: openai.OpenAI) -> None:
    deltas = [
        c.choices[0].delta.content or "" for c in chat(client, MIXED, stream=True)
    ]
    assert "".join(deltas) == MIXED
    assert "\ufffd" not in "".join(deltas)


@pytest.mark.feature(151)
def test_completion_of_token_ids(client: openai.OpenAI) -> None:
    answer = complete(client, [1, 2, 3], max_tokens=4)
    assert answer.choices[0].text == "abcd"
    assert answer.choices[0].finish_reason == "length"
    assert answer.usage.prompt_tokens == 3


@pytest.mark.feature(154)
def test_generation_defaults_come_from_the_device(
    client: openai.OpenAI, device: FakeDevice
) -> None:
    complete(client, "x", max_tokens=1)
    complete(client, "x", max_tokens=1, temperature=0.5)
    temperatures = [s.sampling.temperature for s in device.seen.submissions]
    assert temperatures == [0.0, 0.5]


@pytest.mark.feature(151)
@pytest.mark.parametrize(
    ("options", "with_usage"),
    [
        ({"include_usage": True}, "last"),
        ({}, "none"),
        (None, "none"),
        ({"include_usage": True, "continuous_usage_stats": True}, "all"),
    ],
)
def test_usage_of_streams(
    http: httpx.Client, options: dict[str, bool] | None, with_usage: str
) -> None:
    body = {"model": SERVED_NAME, "prompt": "SAY<abc>", "stream": True}
    if options is not None:
        body["stream_options"] = options
    *chunks, done = events(http.post("/v1/completions", json=body).text)
    assert done == "[DONE]"
    usages = [json.loads(chunk).get("usage") for chunk in chunks]
    match with_usage:
        case "none":
            assert not any(usages)
        case "last":
            assert [bool(usage) for usage in usages].count(True) == 1
            assert json.loads(chunks[-1])["choices"] == []
        case "all":
            assert all(usages)
    if with_usage != "none":
        assert usages[-1]["completion_tokens"] == 4


def test_several_prompts_and_choices(client: openai.OpenAI, device: FakeDevice) -> None:
    chunks = list(
        complete(
            client,
            ["a", "b"],
            n=2,
            temperature=1,
            seed=1,
            max_tokens=3,
            stream=True,
            stream_options={"include_usage": True},
        )
    )
    finished = {
        choice.index: choice.finish_reason
        for chunk in chunks
        for choice in chunk.choices
        if choice.finish_reason
    }
    assert finished == dict.fromkeys(range(4), "length")
    assert chunks[-1].usage.completion_tokens == 12
    groups = [s.group for s in device.seen.submissions]
    assert sorted(group.count for group in groups) == [2, 2, 2, 2]
    assert len({group.group_id for group in groups}) == 2


def test_seeds(client: openai.OpenAI, device: FakeDevice) -> None:
    def text(seed: int) -> str:
        answer = complete(client, "x", seed=seed, temperature=1, max_tokens=16)
        return str(answer.choices[0].text)

    assert text(7) == text(7) != text(8)
    complete(client, "x", temperature=1, max_tokens=1)
    assert not device.seen.submissions[-1].sampling.HasField("seed")


def test_children_of_the_largest_seed(
    client: openai.OpenAI, device: FakeDevice
) -> None:
    complete(client, "x", n=2, temperature=1, seed=2**63 - 1, max_tokens=1)
    seeds = [s.sampling.seed for s in device.seen.submissions]
    assert seeds == [2**63 - 1, -(2**63)]


def test_logprobs_of_a_chat(client: openai.OpenAI) -> None:
    answer = chat(client, "abc", logprobs=True, top_logprobs=4)
    entries = answer.choices[0].logprobs.content
    assert [entry.token for entry in entries] == ["a", "b", "c", "<|im_end|>"]
    assert entries[0].logprob == -0.5
    # The third and fourth alternative are impossible, and JSON has no infinity.
    assert [top.logprob for top in entries[0].top_logprobs] == [-0.5, -1, -2, -9999]


@pytest.mark.parametrize("text", [MIXED, "é\u0301a", "🤣"])
def test_bytes_of_logprobs_spell_the_text(client: openai.OpenAI, text: str) -> None:
    whole = chat(client, text, logprobs=True).choices[0].logprobs.content
    streamed = [
        entry
        for chunk in chat(client, text, logprobs=True, stream=True)
        if chunk.choices[0].logprobs
        for entry in chunk.choices[0].logprobs.content
    ]
    for entries in (whole, streamed):
        spelled = b"".join(bytes(entry.bytes or []) for entry in entries)
        assert spelled.decode() == text
        assert len(entries) == len(text.encode()) + 1


def test_cut_inside_a_character(client: openai.OpenAI) -> None:
    answer = chat(client, "a🌶", max_tokens=3, logprobs=True)
    assert answer.choices[0].message.content == "a"
    spelled = [bytes(e.bytes or []) for e in answer.choices[0].logprobs.content]
    assert spelled == [b"a", b"", b""]


def test_logprobs_of_a_completion(client: openai.OpenAI) -> None:
    answer = complete(client, [1], max_tokens=3, logprobs=2)
    logprobs = answer.choices[0].logprobs
    assert logprobs.tokens == ["a", "b", "c"]
    assert logprobs.top_logprobs[0] == {"a": -0.5, "b": -1.0}
    assert logprobs.text_offset == [0, 1, 2]


@pytest.mark.feature(151)
@pytest.mark.parametrize("tokens_per_message", [1, 50])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("text", "included", "expected", "tokens"),
    [
        ("ABCDEFGHIJKLM", False, "ABC", 7),
        ("ABCDEFGHIJKLM", True, "ABCDEFG", 7),
        ("ABCDEF", False, "ABCDEF", 7),
    ],
)
def test_stop_strings(
    client: openai.OpenAI,
    device: FakeDevice,
    *,
    tokens_per_message: int,
    stream: bool,
    text: str,
    included: bool,
    expected: str,
    tokens: int,
) -> None:
    """The same for a reader that keeps up and one that lags behind."""
    device.behaviour.tokens_per_message = tokens_per_message
    device.behaviour.step_seconds = 0.02
    options: dict[str, Any] = {
        "stop": ["DEFG"],
        "extra_body": {"include_stop_str_in_output": included},
    }
    if stream:
        chunks = list(
            chat(
                client,
                text,
                stream=True,
                stream_options={"include_usage": True},
                **options,
            )
        )
        said = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
        usage, last = chunks[-1].usage, chunks[-2].choices[0]
    else:
        answer = chat(client, text, **options)
        said, usage = answer.choices[0].message.content, answer.usage
        last = answer.choices[0]
    matched = "DEFG" in text
    assert said == expected
    assert usage.completion_tokens == tokens
    assert last.finish_reason == "stop"
    assert last.stop_reason == ("DEFG" if matched else None)
    if matched and tokens_per_message == 1:
        wait_for(lambda: len(device.seen.aborts) == 1)
        ((_, cause),) = device.seen.aborts
        assert cause == device_pb2.ABORT_CAUSE_STOP_STRING


def test_stop_token_is_reported(client: openai.OpenAI) -> None:
    answer = complete(client, "x", extra_body={"stop_token_ids": [ord("c")]})
    assert answer.choices[0].finish_reason == "stop"
    assert answer.choices[0].stop_reason == ord("c")
    assert answer.choices[0].text == "ab"


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


@pytest.mark.feature(152)
def test_tool_call(client: openai.OpenAI) -> None:
    choice = chat(client, CALL, tools=TOOLS).choices[0]
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert call.function.name == "f"
    assert json.loads(call.function.arguments) == {"a": "x}y"}


@pytest.mark.feature(152)
def test_streamed_tool_call(client: openai.OpenAI) -> None:
    chunks = list(chat(client, CALL, tools=TOOLS, stream=True))
    calls = [c for k in chunks for c in k.choices[0].delta.tool_calls or []]
    arguments = "".join(call.function.arguments or "" for call in calls)
    assert json.loads(arguments) == {"a": "x}y"}
    assert not any(k.choices[0].delta.content for k in chunks)
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


@pytest.mark.parametrize("stream", [False, True])
def test_no_tool_is_called_against_the_clients_will(
    client: openai.OpenAI, *, stream: bool
) -> None:
    answer = chat(client, CALL, tools=TOOLS, tool_choice="none", stream=stream)
    if not stream:
        assert answer.choices[0].message.content == CALL
        assert not answer.choices[0].message.tool_calls
        return
    deltas = [chunk.choices[0].delta for chunk in answer]
    assert "".join(delta.content or "" for delta in deltas) == CALL
    assert not any(delta.tool_calls for delta in deltas)


def test_structured_outputs_travel(client: openai.OpenAI, device: FakeDevice) -> None:
    schema = {"type": "object", "properties": {"b": {}, "a": {}}}
    chat(
        client,
        "{}",
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "n", "schema": schema},
        },
    )
    complete(client, "x", max_tokens=1, extra_body={"structured_outputs": CHOICE})
    by_schema, by_choice = device.seen.submissions
    # The order of properties is the order of the output.
    assert by_schema.structured_output.json_schema == json.dumps(schema)
    assert "yes" in by_choice.structured_output.grammar


CHOICE = {"choice": ["yes", "no"]}


def test_responses(client: openai.OpenAI) -> None:
    answer = client.responses.create(model=SERVED_NAME, input="SAY<hi>")
    assert answer.output_text == "hi"
    events_seen = [
        event.type
        for event in client.responses.create(
            model=SERVED_NAME, input="SAY<hi>", stream=True
        )
    ]
    assert events_seen[0] == "response.created"
    assert events_seen[-1] == "response.completed"


def test_messages(http: httpx.Client) -> None:
    body = {"model": SERVED_NAME, "max_tokens": 20, "messages": say("hi")}
    answer = http.post("/v1/messages", json=body).json()
    assert answer["content"] == [{"type": "text", "text": "hi"}]
    assert answer["stop_reason"] == "end_turn"
    counted = http.post("/v1/messages/count_tokens", json=body).json()
    assert counted["input_tokens"] == answer["usage"]["input_tokens"]


def test_models_and_names(client: openai.OpenAI) -> None:
    listed = list(client.models.list())
    assert [card.id for card in listed] == [SERVED_NAME, "alias"]
    assert {card.root for card in listed} == {SERVED_NAME}  # type: ignore[attr-defined]
    answer = client.completions.create(model="alias", prompt="x", max_tokens=1)
    assert answer.model == SERVED_NAME


def test_tokenize_and_back(http: httpx.Client) -> None:
    tokens = http.post("/tokenize", json={"prompt": "aé"}).json()["tokens"]
    assert tokens == list("aé".encode())
    text = http.post("/detokenize", json={"tokens": tokens}).json()["prompt"]
    assert text == "aé"


def events(stream: str) -> list[str]:
    """The data of every event of a stream."""
    return [
        line.removeprefix("data: ")
        for line in stream.splitlines()
        if line.startswith("data: ")
    ]
