"""When the device service refuses, fails or is left: statuses, headers, clean-up."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest

from tests.e2e.frontend_alone.test_errors import envelope
from tests.e2e.frontend_alone.test_openai import events, say
from tests.support.fake_device import SERVED_NAME, FakeDevice
from tests.support.frontend_process import FrontendProcess, wait_for
from ttserve.errors import CONSEQUENCES, Reason, TTServeError
from ttserve.v1 import device_pb2

LONG = {"max_tokens": 500, "ignore_eos": True}

BODIES: list[tuple[str, dict[str, Any]]] = [
    ("/v1/completions", {"prompt": "x"}),
    ("/v1/chat/completions", {"messages": say("abc")}),
    ("/v1/responses", {"input": "x"}),
    ("/v1/messages", {"messages": say("abc"), "max_tokens": 9}),
]


@pytest.mark.parametrize("reason", list(CONSEQUENCES))
def test_status_of_a_rejection(
    http: httpx.Client, device: FakeDevice, reason: Reason
) -> None:
    device.behaviour.refusal = TTServeError(reason, "no", retry_after=2.5)
    expected = CONSEQUENCES[reason].http_status
    for stream in (False, True):
        body = {"prompt": "x", "stream": stream}
        response = http.post("/v1/completions", json=body)
        assert envelope(response, expected)["message"] == "no"
        retry = "3" if expected in (429, 503) else None
        assert response.headers.get("retry-after") == retry


@pytest.mark.parametrize(("path", "body"), BODIES)
@pytest.mark.parametrize("stream", [False, True])
def test_full_queue_on_every_api(
    http: httpx.Client,
    device: FakeDevice,
    path: str,
    body: dict[str, Any],
    *,
    stream: bool,
) -> None:
    device.behaviour.admit_at_most = 0
    response = http.post(path, json={"model": SERVED_NAME, "stream": stream, **body})
    if path == "/v1/responses" and stream:
        # Its first event is sent before anything is submitted.
        assert response.status_code == 200
        assert last_event(response.text)["type"] == "response.failed"
        return
    assert envelope(response, 429)["message"] == "the queue is full"
    assert response.headers["retry-after"] == "3"


def test_children_are_admitted_together(
    client: openai.OpenAI, device: FakeDevice
) -> None:
    device.behaviour.admit_at_most = 2
    with pytest.raises(openai.RateLimitError):
        client.completions.create(model=SERVED_NAME, prompt="x", n=3, temperature=1)
    answer = client.completions.create(
        model=SERVED_NAME, prompt="x", n=2, temperature=1, max_tokens=2
    )
    assert len(answer.choices) == 2


def test_field_that_only_the_device_refuses(
    http: httpx.Client, device: FakeDevice
) -> None:
    device.behaviour.refusal = TTServeError(
        Reason.INVALID_FIELD, "no", metadata={"field": "stop.max_output_tokens"}
    )
    response = http.post("/v1/completions", json={"prompt": "x"})
    assert envelope(response, 400)["param"] == "max_tokens"


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_failure_before_the_first_token(
    http: httpx.Client, device: FakeDevice, path: str, body: dict[str, Any]
) -> None:
    error = TTServeError(Reason.STEP_FAILED, "step 7 failed")
    device.behaviour.fail_after = (1, error)
    response = http.post(path, json={"model": SERVED_NAME, **body})
    assert envelope(response, 500)["message"] == "step 7 failed"


def test_failure_before_the_first_chunk_of_a_stream(
    http: httpx.Client, device: FakeDevice
) -> None:
    lost = TTServeError(Reason.MESH_POISONED, "the mesh is gone")
    device.behaviour.fail_after = (1, lost)
    response = http.post("/v1/completions", json={"prompt": "x", "stream": True})
    assert envelope(response, 503)["message"] == "the mesh is gone"
    assert response.headers["retry-after"] == "1"


@pytest.mark.parametrize(("path", "body"), BODIES)
def test_failure_in_mid_stream(
    http: httpx.Client, device: FakeDevice, path: str, body: dict[str, Any]
) -> None:
    device.behaviour.step_seconds = 0.02
    error = TTServeError(Reason.STEP_FAILED, "step 7 failed")
    device.behaviour.fail_after = (3, error)
    response = http.post(path, json={"model": SERVED_NAME, "stream": True, **body})
    assert response.status_code == 200
    assert "abc"[0] in response.text
    last = last_event(response.text)
    message = (
        last["response"]["error"]["message"]
        if path == "/v1/responses"
        else last["error"]["message"]
    )
    assert message == "step 7 failed"
    for end in ('"finish_reason":"stop"', "response.completed", "message_stop"):
        assert end not in response.text


def test_siblings_of_a_failed_child_are_stopped(
    http: httpx.Client, device: FakeDevice
) -> None:
    device.behaviour.step_seconds = 0.02
    device.behaviour.fail_after = (2, TTServeError(Reason.STEP_FAILED, "failed"))
    body = {"prompt": "x", "n": 3, "temperature": 1, **LONG}
    envelope(http.post("/v1/completions", json=body), 500)
    wait_for(lambda: device.live_requests == 0)


def test_other_requests_do_not_notice(
    client: openai.OpenAI, device: FakeDevice
) -> None:
    device.behaviour.admit_at_most = 4

    def ask(number: int) -> str:
        try:
            answer = client.completions.create(
                model=SERVED_NAME, prompt="x", max_tokens=200
            )
        except openai.RateLimitError:
            return "refused"
        return str(answer.choices[0].text)

    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(ask, range(12)))
    whole = ("abcdefghijklmnopqrstuvwxyz" * 8)[:200]
    assert set(answers) <= {"refused", whole}
    assert answers.count(whole) >= 4


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 2])
def test_clients_that_leave(
    http: httpx.Client, device: FakeDevice, n: int, *, stream: bool
) -> None:
    device.behaviour.step_seconds = 0.02
    body = {"prompt": "x", "stream": stream, "n": n, "temperature": 1, **LONG}
    request = http.build_request("POST", "/v1/completions", json=body)
    send_and_leave(http, request)
    wait_for(lambda: device.live_requests == 0, 2)
    assert {cause for _, cause in device.seen.aborts} == {device_pb2.ABORT_CAUSE_CLIENT}


def send_and_leave(http: httpx.Client, request: httpx.Request) -> None:
    """Close the connection while the answer, or its first half, is on its way."""
    timeouts = {"connect": 5.0, "read": 0.5, "write": 5.0, "pool": 5.0}
    request.extensions["timeout"] = timeouts
    try:
        response = http.send(request, stream=True)
    except httpx.ReadTimeout:
        return
    next(response.iter_bytes())
    response.close()


def test_clients_that_leave_before_admission(
    http: httpx.Client, device: FakeDevice, frontend: FrontendProcess
) -> None:
    device.behaviour.stalled = True
    request = http.build_request(
        "POST", "/v1/completions", json={"prompt": "x", **LONG}
    )
    send_and_leave(http, request)
    device.behaviour.stalled = False
    wait_for(frontend.ready)
    wait_for(lambda: device.live_requests == 0)


def test_long_prompts_travel_in_frames(
    http: httpx.Client, device: FakeDevice, frontend: FrontendProcess
) -> None:
    words = {"prompt": "x", "max_tokens": 1, "structured_outputs": None}
    http.post("/v1/completions", json=words).raise_for_status()
    assert device.seen.frames == 0
    many = {str(token): 1.0 for token in range(200)}
    schema = {"enum": ["v" * 100 + str(i) for i in range(400)]}
    body = {
        "prompt": "x",
        "max_tokens": 1,
        "logit_bias": many,
        "structured_outputs": {"json": json.dumps(schema)},
    }
    http.post("/v1/completions", json=body).raise_for_status()
    assert device.seen.frames == 1
    assert device.seen.submissions[-1].structured_output.json_schema


def last_event(stream: str) -> dict[str, Any]:
    """The last event of a stream that is JSON."""
    found = [event for event in events(stream) if event != "[DONE]"]
    last: dict[str, Any] = json.loads(found[-1])
    return last
