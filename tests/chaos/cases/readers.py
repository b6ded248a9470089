"""Clients that do not read."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass

import psutil

from bench.measure import percentile
from bench.progress import say
from bench.results import Result, result
from tests.chaos.registry import Setting, case
from tests.chaos.streams import DONE, EVENT, HOST, ask, expected_text, request
from tests.chaos.system import System, running

ROUNDS = 3
STOP_SECONDS = 60.0
DECODE_MS = 20.0
OTHERS = 8
# One that reads is through when the others are.
TOKENS = int(STOP_SECONDS * 1e3 / DECODE_MS)
# So many choices that no socket's buffers hold what is said in a minute.
CHOICES = 8
PROMPT = [72, 101, 108, 108, 111]
RECEIVE_BYTES = 4096
MEMORY = "<= 64"


@case("slow-reader", shows="a client reads nothing for 60 s: the others do not notice")
def slow_reader(setting: Setting) -> Iterator[Result]:
    """Rounds in pairs: the same request is read at once, or after a minute."""
    size = ("--max-num-seqs", "16", "--max-model-len", "4096")
    ratios, growth, wrong = [], [], 0
    with running(setting.directory, decode_ms=DECODE_MS, device_options=size) as system:
        asyncio.run(_round(system, stop=0.0, tokens=100))
        before = system.holdings()
        for number in range(ROUNDS):
            read = asyncio.run(_round(system, stop=0.0))
            stopped = asyncio.run(_round(system, stop=STOP_SECONDS))
            ratios.append(stopped.gap_ms / read.gap_ms)
            growth.append(stopped.grown - max(0.0, read.grown))
            wrong += read.wrong + stopped.wrong
            gaps = f"{read.gap_ms:.1f} ms, {stopped.gap_ms:.1f} ms"
            say(f"  round {number + 1}: p99 {gaps}")
        yield result("slow-reader.p99_ratio", ratios, "of read", "<= 1.1")
        yield result("slow-reader.memory", growth, "MB more", MEMORY)
        yield result("slow-reader.not_right", wrong, "streams", "<= 0")
        yield system.settle("slow-reader", before)


@dataclass(frozen=True, slots=True)
class _Round:
    """p99 of the others' times between tokens, the frontend's growth in MB, and
    how many streams were not right, the slow one among them.
    """

    gap_ms: float
    grown: float
    wrong: int


async def _round(system: System, *, stop: float, tokens: int = TOKENS) -> _Round:
    port, process = system.ports[0], psutil.Process(system.frontends[0].pid)
    before = process.memory_info().rss
    slow = asyncio.create_task(_read_late(port, tokens, stop))
    others = [
        asyncio.create_task(ask(port, [65 + number], tokens))
        for number in range(OTHERS)
    ]
    largest = before
    while not slow.done():
        largest = max(largest, process.memory_info().rss)
        await asyncio.sleep(0.5)
    ends = await asyncio.gather(*others)
    gaps = [
        (later - earlier) * 1e3
        for each in ends
        for earlier, later in zip(each.arrivals, each.arrivals[1:], strict=False)
    ]
    wrong = sum(each.end.value != "right" for each in ends) + (not await slow)
    return _Round(percentile(gaps, 99), (largest - before) / 2**20, wrong)


async def _read_late(port: int, tokens: int, stop: float) -> bool:
    """Ask for several choices, read the first bytes, and the rest after `stop` s;
    whether every choice was right.
    """
    loop = asyncio.get_running_loop()
    with closing(socket.socket()) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, RECEIVE_BYTES)
        client.setblocking(False)
        await loop.sock_connect(client, (HOST, port))
        # Several greedy choices are refused; the best of one is greedy too.
        options = {"n": CHOICES, "temperature": 1.0, "top_k": 1}
        await loop.sock_sendall(client, request(PROMPT, tokens, **options))
        received = [await loop.sock_recv(client, RECEIVE_BYTES)]
        await asyncio.sleep(stop)
        while data := await loop.sock_recv(client, 1 << 16):
            received.append(data)
    return _choices(b"".join(received)) == [expected_text(PROMPT, tokens)] * CHOICES


def _choices(answer: bytes) -> list[str]:
    texts = [""] * CHOICES
    for line in answer.split(b"\n"):
        if line.startswith(EVENT) and not line.startswith(DONE):
            for choice in json.loads(line[6:])["choices"]:
                texts[choice["index"]] += choice["text"]
    return texts
