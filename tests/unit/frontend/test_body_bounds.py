"""Bodies that would hold up the event loop are refused, others pass."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import TypeAdapter, ValidationError
from vllm.exceptions import VLLMValidationError

from frontend.http.errors import BadField
from frontend.http.first_error import REQUESTS, FirstError
from frontend.http.sizes import check_sizes

USER = {"role": "user", "content": "hi"}
RESPONSES = FirstError(REQUESTS["/v1/responses"])
CHAT = FirstError(REQUESTS["/v1/chat/completions"])


def size_refusal(max_model_len: int = 2048, **fields: Any) -> str:
    try:
        check_sizes(fields, max_model_len)
    except BadField as bad:
        assert bad.message.startswith(bad.field)
        return bad.message
    return ""


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"messages": [USER] * 4097}, "messages holds 4097 items; at most 4096"),
        ({"input": [USER] * 4097}, "input holds 4097 items"),
        ({"bad_words": ["a"] * 1025}, "bad_words holds 1025 words"),
        ({"bad_words": ["a" * 65_537]}, "bad_words holds 65537 characters"),
        ({"prompt": [1] * 1_048_577}, "prompt holds 1048577 numbers"),
        ({"tokens": [True] * 1_048_577}, "tokens holds 1048577 numbers"),
        ({"prompt": [[1] * 524_288] * 3}, "prompt holds 1572864 numbers"),
        ({"prompt": "a" * 1_048_577}, "prompt holds 1048577 characters"),
        ({"prompt": ["a" * 600_000] * 2}, "prompt holds 1200000 characters"),
        ({"tools": [{"a": [{}] * 40_000}] * 2}, "tools holds 80004 values"),
        ({"logit_bias": {str(i): 1 for i in range(65_537)}}, "logit_bias holds 65537"),
        (
            {"messages": [{"role": "user", "content": [{"text": "a" * 1_048_577}]}]},
            "messages holds 10485",
        ),
    ],
)
def test_too_much(fields: dict[str, Any], said: str) -> None:
    assert size_refusal(**fields).startswith(said)


@pytest.mark.parametrize(
    "fields",
    [
        {"messages": [USER] * 4096, "bad_words": ["a"] * 1024},
        {"prompt": [1] * 1_048_576, "bad_words": None, "messages": "a"},
        {"messages": [{"image_url": {"url": "data:image/png;base64," + "a" * 9**7}}]},
        {"messages": [{"source": {"type": "base64", "data": "a" * 9**7}}]},
    ],
)
def test_not_too_much(fields: dict[str, Any]) -> None:
    assert size_refusal(**fields) == ""


def test_longer_models_take_longer_texts() -> None:
    assert size_refusal(262_144, prompt="a" * 2_097_152) == ""
    assert size_refusal(262_144, prompt="a" * 2_097_153)


@pytest.mark.parametrize(
    ("check", "fields", "said"),
    [
        (RESPONSES, {"input": [{"foo": "x"}] * 3000}, "input[0] has no form"),
        (
            RESPONSES,
            {"input": [USER] * 40 + [{"foo": "x"}] * 3000},
            "input[40] has no form",
        ),
        (
            RESPONSES,
            {"input": [{"role": "user", "content": [{"type": "zzz"}] * 2000}]},
            "input[0] has no form",
        ),
        (CHAT, {"messages": [USER] * 20 + [5] * 4000}, "messages[20] has no form"),
        (CHAT, {"messages": [USER], "logit_bias": dict.fromkeys("abc" * 20, "x")}, ""),
        (
            CHAT,
            {"messages": [USER], "logit_bias": {str(i): "x" for i in range(9000)}},
            "logit_bias is wrong: Input should be a valid number",
        ),
        (
            FirstError(REQUESTS["/tokenize"]),
            {"messages": [USER] * 20 + [5] * 4000},
            "messages[20] has no form",
        ),
    ],
)
def test_the_first_bad_item_is_the_last_one_read(
    check: FirstError, fields: dict[str, Any], said: str
) -> None:
    try:
        check.check({"model": "m"} | fields)
    except BadField as bad:
        assert said
        assert bad.message.startswith(said)
        assert isinstance(bad.__cause__, ValidationError)
        assert bad.__cause__.error_count() < 300
    else:
        assert not said


@pytest.mark.parametrize("path", sorted(REQUESTS))
def test_what_vllm_reads_is_read(path: str) -> None:
    """Of bodies of every form; pydantic itself is the judge."""
    long = {"model": "m", "ignored": [""] * 40}
    bodies: list[dict[str, Any]] = [
        {"messages": [USER] * 40, "max_tokens": 1},
        {"prompt": ["a"] * 40},
        {"prompt": [5] * 40},
        {"input": [USER, {"type": "function_call_output"}] * 20},
        {"input": [{"type": "message", **USER}] * 40},
        {"tokens": [1] * 40},
        {"tokens": ["a"] * 40},
    ]
    read = 0
    for body in bodies:
        try:
            TypeAdapter(REQUESTS[path]).validate_python(long | body)
        except ValidationError:
            with pytest.raises(BadField):
                FirstError(REQUESTS[path]).check(long | body)
        except VLLMValidationError:
            FirstError(REQUESTS[path]).check(long | body)
        else:
            FirstError(REQUESTS[path]).check(long | body)
            read += 1
    assert read
