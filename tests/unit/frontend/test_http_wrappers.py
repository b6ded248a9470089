"""Each ASGI wrapper by itself, around a small app."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from pydantic import BaseModel, model_validator
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.types import ASGIApp
from starlette.websockets import WebSocket

from frontend.http.auth import ApiKeys
from frontend.http.body import JsonBody
from frontend.http.context import InFlight, RequestContext
from frontend.http.envelope import ErrorEnvelope
from frontend.http.errors import BadField, HttpError
from frontend.http.front_door import FrontDoor
from frontend.http.keep_alive import KeepAlive
from frontend.http.notes import current_notes, note_failure
from frontend.http.streams import HeldStreams
from frontend.http.turns import OneATurn
from ttserve.errors import Reason, TTServeError
from ttserve.tokens import Tokens

FULL = TTServeError(Reason.QUEUE_FULL, "the queue is full", retry_after=4.2)


class Careless(BaseModel):
    """Its validator takes a type for granted, as some of vLLM's do."""

    @model_validator(mode="before")
    @classmethod
    def trip(cls, data: Any) -> Any:
        return data["kind"].get("secret")


def client(app: ASGIApp) -> httpx.AsyncClient:
    transport = httpx.ASGITransport(app=app)
    return httpx.AsyncClient(transport=transport, base_url="http://test")


def app(path: str, endpoint: Callable[[Request], Any]) -> Starlette:
    return Starlette(routes=[Route(path, endpoint, methods=["GET", "POST"])])


def in_context(inner: ASGIApp) -> ASGIApp:
    return RequestContext(inner, InFlight())


# -- errors


@pytest.mark.parametrize(
    ("answer", "message", "param"),
    [
        (PlainTextResponse("Internal Server Error", 400), "Bad Request", None),
        (JSONResponse({"detail": "why"}, 400), "why", None),
        (JSONResponse({"error": "Unauthorized"}, 400), "Unauthorized", None),
        (
            JSONResponse({"error": {"message": "m", "param": "body.a.b"}}, 400),
            "m",
            "a.b",
        ),
        (
            JSONResponse({"error": {"message": "m (parameter=a, value=[1])"}}, 400),
            "m",
            None,
        ),
        (
            JSONResponse({"error": {"message": "m (parameter=a)"}}, 400),
            "m",
            None,
        ),
        (
            JSONResponse({"error": {"message": "m (parameter=a, value=\n (x"}}, 400),
            "m (parameter=a, value=\n (x",
            None,
        ),
        (JSONResponse([1], 400), "Bad Request", None),
    ],
)
async def test_every_error_gets_the_envelope(
    answer: Any, message: str, param: str | None
) -> None:
    async def endpoint(request: Request) -> Any:
        return answer

    async with client(in_context(ErrorEnvelope(app("/x", endpoint)))) as http:
        response = await http.get("/x")
    error = response.json()["error"]
    assert (error["message"], error["param"]) == (message, param)
    assert error["code"] == response.status_code == 400
    assert error["type"]


async def test_a_crash_is_an_error_too() -> None:
    async def crash(scope: Any, receive: Any, send: Any) -> None:
        raise KeyError("secret")

    async with client(in_context(ErrorEnvelope(crash))) as http:
        response = await http.get("/x")
    assert response.status_code == 500
    assert "secret" not in response.text


async def test_a_validator_that_trips_over_the_body_is_the_clients_error() -> None:
    api = FastAPI()

    @api.post("/x")
    async def endpoint(body: Careless) -> None:
        raise AssertionError

    api.add_middleware(ErrorEnvelope)
    async with client(in_context(api)) as http:
        response = await http.post("/x", json={"kind": []})
    assert response.status_code == 400
    assert "a wrong type" in response.json()["error"]["message"]


async def test_retry_after_comes_from_the_failure() -> None:
    async def endpoint(request: Request) -> Any:
        note_failure(FULL)
        return JSONResponse({"error": {"message": "m"}}, 429)

    async with client(in_context(ErrorEnvelope(app("/x", endpoint)))) as http:
        response = await http.get("/x")
    assert response.headers["retry-after"] == "5"


async def test_a_message_that_repeats_the_request_is_read_once() -> None:
    """As of a model's name. Reading it again from each note takes half a minute."""
    echoed = " (parameter=a, value=" * 10_000

    async def endpoint(request: Request) -> Any:
        return JSONResponse({"error": {"message": f"`{echoed}` is no model."}}, 404)

    began = time.process_time()
    async with client(in_context(ErrorEnvelope(app("/x", endpoint)))) as http:
        assert (await http.get("/x")).status_code == 404
    assert time.process_time() - began < 5


async def test_long_messages_are_cut() -> None:
    async def endpoint(request: Request) -> Any:
        return JSONResponse({"error": {"message": "é" * 5000}}, 400)

    async with client(in_context(ErrorEnvelope(app("/x", endpoint)))) as http:
        response = await http.get("/x")
    assert len(response.json()["error"]["message"]) == 1000


async def test_what_is_no_error_passes_through() -> None:
    async def endpoint(request: Request) -> Any:
        return PlainTextResponse("fine")

    async with client(in_context(ErrorEnvelope(app("/x", endpoint)))) as http:
        response = await http.get("/x")
    assert response.text == "fine"


def test_anthropics_error_types() -> None:
    assert HttpError(429, "m").body("/v1/messages")["type"] == "error"
    body = HttpError(429, "m", type="Other").body("/v1/messages/count_tokens")
    assert body["error"]["type"] == "rate_limit_error"


# -- streams


def stream_app(
    path: str, *chunks: str | Exception, failure: TTServeError | None = None
) -> ASGIApp:
    async def generate() -> AsyncIterator[str]:
        for chunk in chunks:
            if isinstance(chunk, Exception):
                raise chunk
            if "error" in chunk and failure is not None:
                note_failure(failure)
            yield chunk

    async def endpoint(request: Request) -> Any:
        return StreamingResponse(generate(), media_type="text/event-stream")

    return in_context(HeldStreams(app(path, endpoint)))


ERROR = 'data: {"error": {"message": "m", "type": "T", "param": "p", "code": 429}}\n\n'


async def test_an_error_first_is_an_answer() -> None:
    async with client(stream_app("/x", ERROR, "data: [DONE]\n\n")) as http:
        response = await http.get("/x")
    assert response.status_code == 429
    assert response.headers["content-type"] == "application/json"
    assert response.headers["retry-after"] == "1"
    assert response.json()["error"] == {
        "message": "m",
        "type": "T",
        "param": "p",
        "code": 429,
    }


async def test_the_failure_knows_more_than_the_event() -> None:
    event = 'data: {"error": {"message": "Internal", "code": 500}}\n\n'
    async with client(stream_app("/x", event, failure=FULL)) as http:
        response = await http.get("/x")
    assert response.status_code == 429
    assert response.headers["retry-after"] == "5"


async def test_a_comment_opens_the_stream() -> None:
    async with client(stream_app("/x", ": keep-alive\n\n", ERROR)) as http:
        response = await http.get("/x")
    assert response.status_code == 200
    assert response.text == f": keep-alive\n\n{ERROR}"


async def test_a_good_stream_passes_through() -> None:
    chunks = ('data: {"a": 1}\n\n', ERROR, "data: [DONE]\n\n")
    async with client(stream_app("/x", *chunks)) as http:
        response = await http.get("/x")
    assert response.text == "".join(chunks)


@pytest.mark.parametrize(
    ("path", "last"),
    [
        ("/v1/responses", "response.failed"),
        ("/v1/messages", "error"),
        ("/v1/completions", None),
    ],
)
async def test_a_stream_that_breaks_off_ends_with_an_error(
    path: str, last: str | None
) -> None:
    first = (
        "event: response.created\n"
        'data: {"response": {"id": "r", "status": "in_progress"}}\n\n'
    )
    async with client(stream_app(path, first, RuntimeError("secret"))) as http:
        response = await http.get(path)
    assert response.status_code == 200
    assert "secret" not in response.text
    rest = response.text.removeprefix(first)
    if last is not None:
        assert rest.startswith(f"event: {last}\n")
    event = json.loads(rest.partition("data: ")[2].splitlines()[0])
    if path == "/v1/responses":
        assert event["response"]["id"] == "r"
        assert event["response"]["status"] == "failed"
        assert event["sequence_number"] == 1
    else:
        assert event["error"]["code"] == 500


async def test_messages_say_why_in_mid_stream() -> None:
    junk = 'event: error\ndata: {"type": "error", "error": {"message": "9 errors"}}\n\n'
    first = "event: message_start\ndata: {}\n\n"
    path = "/v1/messages"
    async with client(stream_app(path, first, junk, failure=FULL)) as http:
        response = await http.get(path)
    assert "9 errors" not in response.text
    assert "the queue is full" in response.text


async def test_other_answers_are_not_held() -> None:
    async def endpoint(request: Request) -> Any:
        return JSONResponse({"a": 1})

    async with client(HeldStreams(app("/x", endpoint))) as http:
        assert (await http.get("/x")).json() == {"a": 1}


# -- silent streams


def slow_app(path: str, silence: float, *chunks: str) -> ASGIApp:
    async def generate() -> AsyncIterator[str]:
        for chunk in chunks:
            await asyncio.sleep(silence)
            yield chunk

    async def endpoint(request: Request) -> Any:
        return StreamingResponse(generate(), media_type="text/event-stream")

    return app(path, endpoint)


@pytest.mark.parametrize(("silence", "comments"), [(0.16, True), (0.0, False)])
async def test_silent_streams_get_comments(silence: float, *, comments: bool) -> None:
    inner = slow_app("/x", silence, "data: 1\n\n", "data: 2\n\n")
    async with client(in_context(HeldStreams(KeepAlive(inner, 0.05)))) as http:
        response = await http.get("/x")
    assert response.text.replace(": keep-alive\n\n", "") == "data: 1\n\ndata: 2\n\n"
    assert response.text.startswith(": keep-alive") is comments


async def test_no_comments_where_none_are_wanted() -> None:
    inner = slow_app("/x", 0.1, "data: 1\n\n")
    async with client(KeepAlive(inner, 0)) as http:
        assert (await http.get("/x")).text == "data: 1\n\n"


# -- bodies


async def body_endpoint(request: Request) -> Any:
    return PlainTextResponse(await request.body())


def checked(fields: dict[str, Any]) -> None:
    if "bad" in fields:
        raise BadField("bad", "is bad")


JSON = {"content-type": "application/json; charset=utf-8"}


def body_app(limit: int = 100) -> ASGIApp:
    return in_context(JsonBody(app("/x", body_endpoint), limit, {"/x": checked}))


async def test_bodies_arrive_whole() -> None:
    async with client(body_app()) as http:
        response = await http.post("/x", json={"a": "é"})
    assert response.json() == {"a": "é"}


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-16-be", "utf-32"])
async def test_bodies_in_other_encodings(encoding: str) -> None:
    content = '{"a": "é"}'.encode(encoding)
    async with client(body_app()) as http:
        response = await http.post("/x", content=content, headers=JSON)
    assert response.content == '{"a": "é"}'.encode()


async def test_a_packed_body_is_said_to_be_one() -> None:
    content, headers = gzip.compress(b"{}"), JSON | {"content-encoding": "gzip"}
    async with client(body_app()) as http:
        response = await http.post("/x", content=content, headers=headers)
    assert response.status_code == 415
    assert "gzip" in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("content", "status", "param"),
    [
        (b'{"bad": 1}', 400, "bad"),
        (b"[1]", 400, None),
        (b"{", 400, None),
        (b'{"a": NaN}', 400, "a"),
        (b"\xff\xfe{", 400, None),  # half of a character of UTF-16
        (b'{"a": "' + b"x" * 200 + b'"}', 413, None),
    ],
)
async def test_refused_bodies(content: bytes, status: int, param: str | None) -> None:
    async with client(body_app()) as http:
        response = await http.post("/x", content=content, headers=JSON)
    assert response.status_code == status
    assert response.json()["error"]["param"] == param


async def test_a_disconnect_is_heard_behind_the_body() -> None:
    """The handler listens for it while it works."""
    heard = asyncio.Event()

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        assert (await receive())["body"] == b"{}"
        assert (await receive())["type"] == "http.disconnect"
        heard.set()

    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": b"{", "more_body": True},
        {"type": "http.request", "body": b"}", "more_body": False},
        {"type": "http.disconnect"},
    ]

    async def receive() -> dict[str, Any]:
        return messages.pop(0)

    async def send(message: Any) -> None:
        raise AssertionError(message)

    scope = {"type": "http", "method": "POST", "path": "/other", "headers": []}
    await JsonBody(inner, 100, {})(scope, receive, send)
    assert heard.is_set()


async def test_a_body_that_stands_still() -> None:
    messages: list[dict[str, Any]] = [
        {"type": "http.request", "body": b"{", "more_body": True}
    ]
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        if messages:
            return messages.pop()
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Any) -> None:
        sent.append(message)

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("not reached")

    scope = {"type": "http", "method": "POST", "path": "/x", "headers": []}
    await JsonBody(inner, 100, {}, patience=0.01)(scope, receive, send)
    assert sent[0]["status"] == 408
    assert (b"connection", b"close") in sent[0]["headers"]
    assert "0.01 s" in json.loads(sent[1]["body"])["error"]["message"]


async def test_a_client_that_leaves_while_it_sends() -> None:
    async def inner(scope: Any, receive: Any, send: Any) -> None:
        raise AssertionError("not reached")

    async def receive() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        raise AssertionError("nobody is there to be answered")

    scope = {"type": "http", "method": "POST", "path": "/x", "headers": []}
    await JsonBody(inner, 100, {})(scope, receive, send)


# -- keys, ids, the door


async def test_no_key_no_entry() -> None:
    async def endpoint(request: Request) -> Any:
        return PlainTextResponse("in")

    guarded = ApiKeys(app("/x", endpoint), Tokens(["k1", "k2"]))
    async with client(guarded) as http:
        for headers in ({}, {"authorization": "Basic k1"}, {"x-api-key": "k3"}):
            response = await http.get("/x", headers=headers)
            assert response.status_code == 401
            assert response.headers["www-authenticate"] == "Bearer"
        for headers in ({"authorization": "Bearer k2"}, {"x-api-key": "k1"}):
            assert (await http.get("/x", headers=headers)).text == "in"


async def test_open_without_keys() -> None:
    async def endpoint(request: Request) -> Any:
        return PlainTextResponse("in")

    async with client(ApiKeys(app("/x", endpoint), Tokens())) as http:
        assert (await http.get("/x")).text == "in"


async def test_requests_are_counted_and_named() -> None:
    in_flight = InFlight()
    seen: list[tuple[str, int, str | None]] = []

    async def endpoint(request: Request) -> Any:
        given = request.headers.get("x-request-id")
        seen.append((current_notes().request_id, len(in_flight), given))
        return PlainTextResponse("")

    inner = Starlette(routes=[Route("/x", endpoint), Route("/live", endpoint)])
    async with client(RequestContext(inner, in_flight)) as http:
        first = await http.get("/x", headers={"x-request-id": "mine"})
        second = await http.get("/live", headers={"x-request-id": "with space"})
    assert first.headers["x-request-id"] == "mine"
    assert seen[0] == ("mine", 1, "mine")
    assert seen[1] == (second.headers["x-request-id"], 0, None)
    assert len(in_flight) == 0
    async with asyncio.timeout(1):
        await in_flight.drained(60)


@asynccontextmanager
async def unanswered(
    in_flight: InFlight,
) -> AsyncIterator[asyncio.Task[httpx.Response]]:
    """A request that reached an endpoint that never answers."""
    reached = asyncio.Event()

    async def never(request: Request) -> Any:
        reached.set()
        await asyncio.Event().wait()

    async with client(RequestContext(app("/x", never), in_flight)) as http:
        asking = asyncio.create_task(http.get("/x"))
        await reached.wait()
        yield asking


async def test_a_drain_closes_connections_and_answers_the_unanswered() -> None:
    in_flight = InFlight()
    async with unanswered(in_flight) as asking:
        in_flight.close_connections()
        in_flight.end_unanswered(HttpError(503, "bye", retry_after=2.0))
        answer = await asking
    assert answer.status_code == 503
    assert answer.json()["error"]["message"] == "bye"
    assert answer.headers["retry-after"] == "2"
    assert answer.headers["connection"] == "close"
    assert len(in_flight) == 0


async def test_a_client_that_leaves_is_not_answered() -> None:
    in_flight = InFlight()
    async with unanswered(in_flight) as asking:
        asking.cancel()
        with pytest.raises(asyncio.CancelledError):
            await asking
    assert len(in_flight) == 0


class Waiting:
    """A readiness that is not."""

    def reasons(self) -> list[tuple[str, str]]:
        return [("no_device", "cannot connect")]

    def details(self) -> dict[str, Any]:
        return {"device_instance": None}


async def test_the_door_before_and_after() -> None:
    async def endpoint(request: Request) -> Any:
        return PlainTextResponse("in")

    door = FrontDoor(Waiting(), Tokens())
    async with client(door) as http:
        assert (await http.get("/live")).status_code == 200
        ready = await http.get("/ready")
        assert ready.status_code == 503
        assert ready.json()["reasons"] == [
            {"reason": "no_device", "detail": "cannot connect"}
        ]
        refused = await http.post("/v1/completions")
        assert refused.status_code == 503
        assert refused.json()["error"]["message"] == "cannot connect"
        door.open(app("/x", endpoint))
        assert (await http.get("/x")).text == "in"


async def test_without_a_key_the_door_says_only_yes_or_no() -> None:
    async with client(FrontDoor(Waiting(), Tokens(["k"]))) as http:
        assert (await http.get("/live")).status_code == 200
        for path in ("/ready", "/health"):
            report = await http.get(path)
            assert report.status_code == 503
            assert report.headers["retry-after"] == "1"
            assert report.json()["reasons"] == [{"reason": "no_device"}]
            assert "cannot connect" not in report.text
            assert "device_instance" not in report.text
            known = await http.get(path, headers={"authorization": "Bearer k"})
            assert known.json()["reasons"][0]["detail"] == "cannot connect"
        assert (await http.get("/v1/models")).status_code == 401
        named = await http.get("/v1/models", headers={"x-api-key": "k"})
        assert named.status_code == 503


async def test_a_websocket_needs_a_key_too() -> None:
    async def endpoint(socket: WebSocket) -> None:
        await socket.accept()

    guarded = ApiKeys(Starlette(routes=[WebSocketRoute("/x", endpoint)]), Tokens(["k"]))

    async def first_answer(*headers: tuple[bytes, bytes]) -> str:
        scope = {"type": "websocket", "path": "/x", "headers": headers}
        sent: list[Any] = []

        async def send(message: Any) -> None:
            sent.append(message)

        async def receive() -> Any:
            return {"type": "websocket.connect"}

        await guarded(scope, receive, send)
        return str(sent[0]["type"])

    assert await first_answer() == "websocket.close"
    assert await first_answer((b"x-api-key", b"k")) == "websocket.accept"


# -- turns


async def test_requests_that_come_at_once_begin_in_turns_of_their_own() -> None:
    """So a device service hears from a frontend that a thousand ask at once."""
    turn = 0
    began: list[tuple[int, int]] = []

    async def count_turns() -> None:
        nonlocal turn
        while True:
            turn += 1
            await asyncio.sleep(0)

    async def endpoint(request: Request) -> PlainTextResponse:
        began.append((turn, int(request.query_params["number"])))
        return PlainTextResponse("")

    counting = asyncio.create_task(count_turns())
    async with client(OneATurn(app("/", endpoint))) as http:
        await asyncio.gather(*(http.post(f"/?number={i}") for i in range(20)))
    counting.cancel()
    assert len({turn for turn, _ in began}) == 20
    assert [number for _, number in began] == list(range(20))
