"""Cases O7 to O11, O16, O23, O24 and extras: what a client may not ask for."""

from __future__ import annotations

import time
from typing import Any

import grpc
import httpx
import pytest

from tests.e2e.cases.conftest import MAX_MODEL_LEN
from tests.support.schemas import nested
from tests.support.stack import Stack
from ttserve.v1 import device_pb2, generation_pb2

HI: Any = [{"role": "user", "content": "hi"}]


def assert_refused(response: httpx.Response, *, mentions: str = "") -> None:
    assert response.status_code == 400, response.text
    error = response.json()["error"]
    assert set(error) >= {"message", "type", "param", "code"}
    assert len(error["message"]) <= 1100
    assert mentions in error["message"]


@pytest.fixture(autouse=True)
def the_next_request_is_served(http: httpx.Client) -> Any:
    """Whatever was refused, the service goes on."""
    yield
    answer = http.post("/v1/completions", json={"prompt": "a", "max_tokens": 1})
    assert answer.status_code == 200


# -- O7: the context limit


def test_o7_limits_are_exact_and_named(http: httpx.Client) -> None:
    def ask(prompt: int, new: int) -> httpx.Response:
        body = {"prompt": [5] * prompt, "max_tokens": new}
        return http.post("/v1/completions", json=body)

    assert_refused(ask(MAX_MODEL_LEN + 1, 1), mentions=str(MAX_MODEL_LEN))
    over = ask(MAX_MODEL_LEN - 9, 10)
    assert_refused(over, mentions=str(MAX_MODEL_LEN))
    assert str(MAX_MODEL_LEN - 9) in over.json()["error"]["message"]
    fits = ask(MAX_MODEL_LEN - 1, 1)
    assert fits.status_code == 200
    assert fits.json()["usage"]["prompt_tokens"] == MAX_MODEL_LEN - 1


# -- O8: sampling parameters


@pytest.mark.parametrize(
    "field",
    [
        '"temperature": -1',
        '"temperature": NaN',
        '"temperature": 1e400',
        '"top_p": 0',
        '"top_p": 1.1',
        '"top_k": -2',
        '"min_p": 2',
        '"n": 0',
        '"repetition_penalty": 0',
        '"presence_penalty": 3',
        '"frequency_penalty": -3',
        '"logprobs": -1',
        '"logprobs": 100',
    ],
)
def test_o8_sampling_out_of_range(http: httpx.Client, field: str) -> None:
    content = f'{{"prompt": "a", "max_tokens": 1, {field}}}'
    response = http.post(
        "/v1/completions",
        content=content,
        headers={"content-type": "application/json"},
    )
    assert_refused(response)


# -- O9: empty prompts


@pytest.mark.parametrize("prompt", ["", [], [[]], [""], None])
def test_o9_empty_prompts(http: httpx.Client, prompt: Any) -> None:
    body = {"prompt": prompt, "max_tokens": 1}
    assert_refused(http.post("/v1/completions", json=body))


def test_o9_no_messages(http: httpx.Client) -> None:
    assert_refused(http.post("/v1/chat/completions", json={"messages": []}))


def test_o9_no_token_over_grpc(stack: Stack) -> None:
    with pytest.raises(grpc.RpcError) as refusal:
        list(stack.device.device.Generate(device_pb2.GenerateRequest(), timeout=10))
    assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT


# -- O10: ids outside the vocabulary


@pytest.mark.parametrize(
    "fields",
    [
        {"stop_token_ids": [99999999]},
        {"logit_bias": {"99999999": 5}},
        {"allowed_token_ids": []},
        {"allowed_token_ids": [99999999]},
        {"prompt": [-1]},
        {"prompt": [1099511627776]},
    ],
)
def test_o10_ids_outside_the_vocabulary(
    http: httpx.Client, fields: dict[str, Any]
) -> None:
    body = {"prompt": "a", "max_tokens": 1} | fields
    assert_refused(http.post("/v1/completions", json=body))


# -- O11: bodies


@pytest.mark.parametrize("content", [b"[]", b"null", b'"x"', b'{"model":', b"\xff\xfe"])
def test_o11_bodies_that_are_no_object(http: httpx.Client, content: bytes) -> None:
    headers = {"content-type": "application/json"}
    for path in ("/v1/completions", "/v1/chat/completions"):
        assert_refused(http.post(path, content=content, headers=headers))


def test_o11_envelope_everywhere(http: httpx.Client) -> None:
    big = {"prompt": "a", "max_tokens": "x" * 5_000_000}
    wrong = [
        (http.get("/v1/completions"), {405}),
        (http.get("/v1/nope"), {404}),
        (
            http.post(
                "/v1/completions", content="a", headers={"content-type": "text/plain"}
            ),
            {400, 415},
        ),
        (http.post("/v1/completions", json=big), {400}),
    ]
    for response, statuses in wrong:
        assert response.status_code in statuses
        error = response.json()["error"]
        assert set(error) >= {"message", "type", "param", "code"}
        assert len(error["message"]) <= 1100


# -- O16: nothing is ignored silently


def complete(http: httpx.Client, **fields: Any) -> dict[str, Any]:
    body = {"prompt": "hello", "max_tokens": 12, "temperature": 0} | fields
    response = http.post("/v1/completions", json=body)
    assert response.status_code == 200, response.text
    choice: dict[str, Any] = response.json()["choices"][0]
    return choice


@pytest.mark.feature(124)
def test_o16_allowed_ids_are_all_that_comes(http: httpx.Client) -> None:
    text = complete(http, allowed_token_ids=[ord("a"), ord("b")])["text"]
    assert set(text) <= {"a", "b"}
    assert len(text) == 12


@pytest.mark.feature(124)
def test_o16_min_tokens_hold_off_a_stop(http: httpx.Client) -> None:
    plain = complete(http)["text"]
    stop = [ord(plain[0])]
    early = complete(http, stop_token_ids=stop)
    assert early["finish_reason"] == "stop"
    held = complete(http, stop_token_ids=stop, min_tokens=10, return_token_ids=True)
    assert len(held["token_ids"]) >= 10


@pytest.mark.feature(123)
def test_o16_penalties_change_greedy_text(http: httpx.Client) -> None:
    """Letters that lead are overtaken as they are repeated."""
    letters = list(range(ord("a"), ord("z") + 1))
    allowed = {"allowed_token_ids": letters, "max_tokens": 60}
    plain = complete(http, **allowed)["text"]
    assert plain != complete(http, **allowed, frequency_penalty=2)["text"]
    assert plain != complete(http, **allowed, repetition_penalty=9)["text"]


@pytest.mark.feature(124)
def test_o16_bad_words_do_not_come(http: httpx.Client) -> None:
    plain = complete(http)["text"]
    assert plain[:2] not in complete(http, bad_words=[plain[:2]])["text"]


@pytest.mark.parametrize("fields", [{"best_of": 3}, {"priority": 5}])
def test_o16_what_cannot_be_honoured_is_refused(
    http: httpx.Client, fields: dict[str, Any]
) -> None:
    body = {"prompt": "a", "max_tokens": 1} | fields
    assert_refused(http.post("/v1/completions", json=body), mentions=next(iter(fields)))


# -- O23: large messages


def test_o23_a_request_beyond_the_limits_is_an_invalid_argument(stack: Stack) -> None:
    """12 MB of ids: refused for what it is, not for the size of a message."""
    request = device_pb2.GenerateRequest(
        prompt_token_ids=[100] * 3_000_000,
        stop=generation_pb2.StopRules(max_output_tokens=1),
    )
    with pytest.raises(grpc.RpcError) as refusal:
        list(stack.device.device.Generate(request, timeout=30))
    assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_o23_the_longest_prompt_with_most_logprobs(http: httpx.Client) -> None:
    body = {
        "prompt": [7] * (MAX_MODEL_LEN - 100),
        "max_tokens": 100,
        "logprobs": 20,
        "ignore_eos": True,
    }
    answer = http.post("/v1/completions", json=body)
    assert answer.status_code == 200
    assert len(answer.json()["choices"][0]["logprobs"]["tokens"]) == 100


# -- O24: refusals are not failures


def test_o24_twenty_refusals_trip_nothing(http: httpx.Client) -> None:
    body = {"prompt": "a", "max_tokens": 1, "logit_bias": {"99999999": 1}}
    for _ in range(20):
        assert_refused(http.post("/v1/completions", json=body))
    assert http.get("/ready").status_code == 200


# -- extras


@pytest.mark.parametrize(
    "fields",
    [
        {"n": 5_000_000},
        {"stop": ["x"] * 500_000},
        {"logit_bias": {str(i): 1 for i in range(100_000)}},
    ],
)
def test_extra_absurd_sizes_are_refused_fast(
    http: httpx.Client, fields: dict[str, Any]
) -> None:
    """vllm#51447: bounded work, whatever is asked for."""
    body = {"prompt": "a", "max_tokens": 1} | fields
    began = time.monotonic()
    assert_refused(http.post("/v1/completions", json=body))
    assert time.monotonic() - began < 5


def test_extra_more_than_four_stops_are_refused_not_cut(http: httpx.Client) -> None:
    """TGI#2584."""
    body = {"prompt": "a", "max_tokens": 1, "stop": list("vwxyz")}
    assert_refused(http.post("/v1/completions", json=body), mentions="stop")


def test_extra_broken_template_is_the_clients_fault(http: httpx.Client) -> None:
    """vllm#54017."""
    body = {"messages": HI, "chat_template": "{{ nothing.at.all() }}"}
    response = http.post("/v1/chat/completions", json=body)
    assert_refused(response)


# -- grammars: the device service alone knows what compiles


@pytest.mark.parametrize("fields", [{}, {"stream": True}, {"n": 3, "temperature": 1}])
@pytest.mark.parametrize(
    "grammar",
    [
        {"regex": "["},
        {"json": {"type": "objec"}},
        {"json": '{"type": 5'},
        {"json": nested("items", 101)},
        {"json_object": False},
        {"choice": []},
        {"grammar": "root ::="},
        {"structural_tag": "{}"},
    ],
    ids=str,
)
def test_extra_grammars_that_cannot_be(
    http: httpx.Client, grammar: dict[str, Any], fields: dict[str, Any]
) -> None:
    body = {"messages": HI, "max_tokens": 2, "structured_outputs": grammar, **fields}
    response = http.post("/v1/chat/completions", json=body)
    assert_refused(response)
    assert response.json()["error"]["param"] == "structured_outputs"
