"""The tools of `make chaos` see what is wrong."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys

import pytest

from tests.chaos.observed import unfinished_tasks
from tests.chaos.proxy import Proxy
from tests.chaos.registry import all_cases, chosen
from tests.chaos.streams import HOST, End, judge

OK = b"HTTP/1.1 200 OK\r\n"
DONE = b"data: [DONE]\n"


def event(text: str, reason: str | None = None) -> bytes:
    choice = {"index": 0, "text": text, "finish_reason": reason}
    return b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n"


ERROR = b'data: {"error": {"message": "lost"}}\n'


@pytest.mark.parametrize(
    ("head", "lines", "end"),
    [
        (OK, [event("ab"), event("c", "length"), DONE], End.RIGHT),
        (OK, [event("ab"), event("b", "length"), DONE], End.WRONG),  # another's
        (OK, [event("a"), event("c", "length"), DONE], End.WRONG),  # lost
        (OK, [event("ab"), event("bc", "length"), DONE], End.WRONG),  # doubled
        (OK, [event("ab", "length"), DONE], End.WRONG),  # too little
        (OK, [event("abc", "stop"), DONE], End.WRONG),
        (OK, [event("ab"), ERROR, DONE], End.FAILED),
        (OK, [event("x"), ERROR, DONE], End.WRONG),
        (OK, [event("ab")], End.BROKEN),
        (b"", [], End.BROKEN),
        (b"HTTP/1.1 503 X\r\n", [b'{"error": {"message": "no"}}'], End.REFUSED),
        (b"HTTP/1.1 500 X\r\n", [b"Internal Server Error"], End.WRONG),
        (b"HTTP/1.1 500 X\r\n", [b"Traceback (most recent"], End.TRACE),
    ],
)
def test_answers_are_judged(head: bytes, lines: list[bytes], end: End) -> None:
    assert judge(head, [(0.0, line) for line in lines], "abc")[0] is end


async def test_a_frozen_proxy_closes_nothing_and_forwards_nothing() -> None:
    writers: list[asyncio.StreamWriter] = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with contextlib.suppress(OSError):
            while data := await reader.read(100):
                writer.write(data)

    server = await asyncio.start_server(echo, HOST, 0)
    proxy = Proxy(server.sockets[0].getsockname()[1])
    async with server:
        with proxy.running():
            old = await asyncio.open_connection(HOST, proxy.port)
            old[1].write(b"before")
            assert await old[0].readexactly(6) == b"before"
            await asyncio.to_thread(proxy.freeze, accepting=True)
            old[1].write(b"lost")
            new = await asyncio.open_connection(HOST, proxy.port)
            new[1].write(b"after")
            assert await new[0].readexactly(5) == b"after"
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(old[0].read(1), 0.2)
        for writer in (old[1], new[1], *writers):
            writer.transport.abort()
            with contextlib.suppress(OSError):
                await writer.wait_closed()


async def test_tasks_are_listed_while_they_run() -> None:
    async def forgotten() -> None:
        await asyncio.Event().wait()

    task = asyncio.create_task(forgotten())
    name = forgotten.__qualname__
    assert unfinished_tasks().count(name) == 1
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert unfinished_tasks().count(name) == 0


def test_cases_are_chosen_by_the_start_of_their_names() -> None:
    cases = all_cases()
    assert {"streams", "faults", "clock"} < {case.name for case in cases}
    assert [case.name for case in chosen(cases, ["fuzz"])] == ["fuzz-grpc", "fuzz-http"]
    with pytest.raises(LookupError, match="no case is called nothing"):
        chosen(cases, ["nothing"])


def test_a_wrong_name_is_refused() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.chaos", "nothing"],
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )
    assert done.returncode == 2
    assert done.stderr == "error: no case is called nothing; --list names them\n"
