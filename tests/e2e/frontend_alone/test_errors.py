"""Every refusal: its status, its envelope, the parameter it names; and bounds."""

from __future__ import annotations

import json
import time
from typing import Any

import httpx
import pytest

from tests.e2e.frontend_alone.conftest import MAX_BODY_BYTES
from tests.support.byte_model import VOCAB_SIZE
from tests.support.fake_device import (
    MAX_SEQUENCE_TOKENS,
    SERVED_NAME,
    FakeDevice,
)
from tests.support.schemas import slow_schema

FILE_AS_OUTPUT = {
    "type": "function_call_output",
    "id": "",
    "call_id": None,
    "status": "completed",
    "output": [{"type": "input_file", "detail": None}],
}
EMPTY_ANSWER = {
    "type": "message",
    "id": "",
    "role": "assistant",
    "status": "completed",
    "content": [],
}
JSON = {"content-type": "application/json"}


def envelope(response: httpx.Response, status: int) -> dict[str, Any]:
    """Check the envelope of an error answer and return what is in it."""
    assert response.status_code == status, response.text
    error: dict[str, Any] = response.json()["error"]
    assert error.keys() == {"message", "type", "param", "code"}
    assert error["code"] == status
    assert error["message"]
    assert error["type"]
    assert len(error["message"]) <= 1000
    assert response.headers["x-request-id"]
    return error


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("temperature", -1),
        ("temperature", 2.1),
        ("top_p", 0),
        ("top_p", 1.1),
        ("top_k", -2),
        ("min_p", 2),
        ("n", 0),
        ("n", 5_000_000),
        ("repetition_penalty", 0),
        ("presence_penalty", 3),
        ("frequency_penalty", -2.5),
        ("logprobs", -1),
        ("logprobs", 100),
        ("seed", 2**63),
        ("max_tokens", 0),
        ("max_tokens", 10**9),
        ("min_tokens", 17),
        ("stop", ["a"] * 5),
        ("stop", ["a", ""]),
        ("stop_token_ids", [VOCAB_SIZE]),
        ("logit_bias", {str(VOCAB_SIZE): 5}),
        ("allowed_token_ids", []),
        ("allowed_token_ids", [VOCAB_SIZE]),
        ("bad_words", [""]),
        ("prompt", ""),
        ("prompt", []),
        ("prompt", [[]]),
        ("prompt", [""]),
        ("prompt", None),
        ("prompt", [-1]),
        ("prompt", [1 << 40]),
        ("prompt", [VOCAB_SIZE]),
        ("prompt", ["x"] * 161),
        ("best_of", 3),
        ("priority", 5),
        ("suffix", "x"),
        ("prompt_logprobs", 1),
        ("prompt_embeds", "AAAA"),
        ("use_beam_search", True),
        ("vllm_xargs", {"a": 1}),
        ("kv_transfer_params", {"a": 1}),
        ("guided_json", {}),
        ("request_id", "r" * 129),
        ("temperature", "hot"),
        ("stream_options", {"include_usage": True}),
    ],
)
def test_refused_with_the_parameter(
    http: httpx.Client, device: FakeDevice, field: str, value: object
) -> None:
    body = {"model": SERVED_NAME, "prompt": "x", "max_tokens": 16, field: value}
    error = envelope(http.post("/v1/completions", json=body), 400)
    if field not in {"bad_words"}:
        assert error["param"] == field
    assert not device.seen.submissions


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("messages", []),
        ("top_logprobs", 21),
        ("functions", [{"name": "f"}]),
        ("temperature", 3),
        ("n", 129),
    ],
)
def test_refused_chat(http: httpx.Client, field: str, value: object) -> None:
    messages = [{"role": "user", "content": "x"}]
    body = {"model": SERVED_NAME, "messages": messages, "logprobs": True, field: value}
    assert envelope(http.post("/v1/chat/completions", json=body), 400)["param"] == field


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        (
            "/v1/responses",
            {"input": [FILE_AS_OUTPUT]},
            "wrong type",
        ),
        ("/v1/responses", {"input": [EMPTY_ANSWER]}, "wrong type"),
        ("/v1/chat/completions", {"messages": [{"role": "user"}, 1]}, "messages"),
        ("/tokenize", {"messages": None}, "messages"),
    ],
)
def test_what_vllm_trips_over_is_the_clients_error(
    http: httpx.Client, path: str, body: dict[str, Any], words: str
) -> None:
    assert words in envelope(http.post(path, json=body), 400)["message"]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "1e400"])
def test_numbers_that_json_does_not_have(http: httpx.Client, number: str) -> None:
    body = f'{{"prompt": "x", "temperature": {number}}}'
    response = http.post("/v1/completions", content=body, headers=JSON)
    assert envelope(response, 400)["param"] == "temperature"


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"null",
        b'"x"',
        b"1",
        b'{"model":',
        b"\xff\xfe",
        b'{"prompt": "\xff"}',
        b'{"prompt": "\\ud800"}',
        b"[" * 50_000,
    ],
)
@pytest.mark.parametrize(
    "path", ["/v1/completions", "/v1/chat/completions", "/v1/responses", "/tokenize"]
)
def test_bodies_that_are_no_object(http: httpx.Client, path: str, body: bytes) -> None:
    envelope(http.post(path, content=body, headers=JSON), 400)


def test_other_content_types(http: httpx.Client) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        response = http.post(
            "/v1/completions", content=b"{}", headers={"content-type": kind}
        )
        envelope(response, 415)


def test_paths_and_methods(http: httpx.Client) -> None:
    envelope(http.get("/v1/nope"), 404)
    response = http.get("/v1/completions")
    envelope(response, 405)
    assert response.headers["allow"] == "POST"


def test_unknown_model(http: httpx.Client) -> None:
    body = {"model": "nope", "prompt": "x"}
    assert envelope(http.post("/v1/completions", json=body), 404)["param"] == "model"


def test_message_errors_have_anthropics_shape_too(http: httpx.Client) -> None:
    body = {"model": SERVED_NAME, "max_tokens": 5, "messages": []}
    response = http.post("/v1/messages", json=body)
    assert envelope(response, 400)["type"] == "invalid_request_error"
    assert response.json()["type"] == "error"


@pytest.mark.feature(50)
def test_context_length_with_true_numbers(
    http: httpx.Client, device: FakeDevice
) -> None:
    def ask(prompt: int, output: int) -> httpx.Response:
        body = {"prompt": [1] * prompt, "max_tokens": output, "ignore_eos": True}
        return http.post("/v1/completions", json=body)

    limit = MAX_SEQUENCE_TOKENS
    envelope(ask(limit + 1, 1), 400)
    message = envelope(ask(limit - 12, 13), 400)["message"]
    for number in (limit, limit - 12, 13):
        assert str(number) in message
    fitting = ask(limit - 1, 1)
    assert fitting.json()["usage"]["completion_tokens"] == 1
    assert len(device.seen.submissions) == 1


def test_echoes_are_short(http: httpx.Client) -> None:
    for value in ("y" * 500_000, [{"a": "b" * 1000}] * 100):
        body = {"prompt": "x", "max_tokens": value}
        envelope(http.post("/v1/completions", json=body), 400)


def test_bounded_work_on_absurd_requests(http: httpx.Client) -> None:
    started = time.monotonic()
    stops = {"prompt": "x", "stop": ["a"] * 100_000}
    envelope(http.post("/v1/completions", json=stops), 400)
    envelope(http.post("/v1/completions", json={"prompt": "x", "n": 10**7}), 400)
    assert time.monotonic() - started < 2


@pytest.mark.parametrize(
    ("path", "body", "words"),
    [
        ("/v1/responses", {"input": [{"foo": "x"}] * 3000}, "input[0] has no form"),
        ("/v1/chat/completions", {"messages": [5] * 4097}, "messages holds 4097 items"),
        ("/tokenize", {"prompt": ["a"] * 66_000}, "prompt holds 66000 values"),
        ("/detokenize", {"tokens": [True, 99_999]}, "outside the vocabulary"),
        (
            "/v1/completions",
            {"prompt": "x", "bad_words": ["a" * 66_000]},
            "bad_words holds 66000 characters",
        ),
    ],
)
def test_what_would_hold_up_the_event_loop_is_refused_before_vllm_reads_it(
    http: httpx.Client, path: str, body: dict[str, Any], words: str
) -> None:
    assert words in envelope(http.post(path, json=body), 400)["message"]


def test_body_limit(http: httpx.Client) -> None:
    body = json.dumps({"prompt": "x" * MAX_BODY_BYTES})
    envelope(http.post("/v1/completions", content=body, headers=JSON), 413)

    def pieces() -> Any:
        yield body[:100].encode()
        yield body[100:].encode()

    # Without a length that could be refused at once.
    envelope(http.post("/v1/completions", content=pieces(), headers=JSON), 413)


def test_images_are_refused(http: httpx.Client) -> None:
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
    messages = [{"role": "user", "content": [image]}]
    body = {"model": SERVED_NAME, "messages": messages}
    envelope(http.post("/v1/chat/completions", json=body), 400)


def test_grammars_too_large_for_the_device_service(
    http: httpx.Client, device: FakeDevice
) -> None:
    huge = {"enum": ["v" * 1000 + str(i) for i in range(70)]}
    body = {"prompt": "x", "structured_outputs": {"json": huge}}
    error = envelope(http.post("/v1/completions", json=body), 400)
    assert error["param"] == "structured_outputs"
    assert not device.seen.submissions


def test_no_grammar_is_compiled_here(http: httpx.Client, device: FakeDevice) -> None:
    """It would hold up everybody: this one for half a minute, or for an hour."""
    hostile = slow_schema(2000)
    structured = {"json": hostile}
    body = {"prompt": "x", "max_tokens": 1, "structured_outputs": structured}
    began = time.monotonic()
    assert http.post("/v1/completions", json=body).status_code == 200
    assert time.monotonic() - began < 5
    assert device.seen.submissions[-1].structured_output.json_schema == hostile


def test_nothing_is_kept_for_later(http: httpx.Client) -> None:
    body: dict[str, Any] = {"model": SERVED_NAME, "input": "x"}
    envelope(http.post("/v1/responses", json=body | {"background": True}), 400)
    previous = body | {"previous_response_id": "resp_1"}
    envelope(http.post("/v1/responses", json=previous), 404)
