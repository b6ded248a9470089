"""Requests over HTTP, streamed, with as little client as possible.

A client shares the machine with what it measures, so lines are only stamped
while they come in and are looked into when all is over.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Sequence

from bench.measure import Arrival, Batch, Prompt
from bench.services import HOST

EVENT = b"data: {"
DONE = b"data: [DONE]"
LINE_LIMIT = 1 << 20


class HttpLoad:
    """Runs batches against `/v1/completions` of one port."""

    def __init__(self, port: int) -> None:
        self._port = port

    def run(self, prompts: Sequence[Prompt], max_tokens: int) -> Batch:
        """One stream per prompt, all opened at once."""
        return asyncio.run(self._run(prompts, max_tokens))

    async def _run(self, prompts: Sequence[Prompt], max_tokens: int) -> Batch:
        began = time.monotonic()
        stamped = await asyncio.gather(
            *(_stream(self._port, prompt, max_tokens) for prompt in prompts)
        )
        return Batch(tuple(_arrivals(lines, began) for lines in stamped))


async def _stream(
    port: int, prompt: Prompt, max_tokens: int
) -> list[tuple[float, bytes]]:
    """The lines of one answer that are events, and when they came."""
    reader, writer = await asyncio.open_connection(HOST, port, limit=LINE_LIMIT)
    try:
        writer.write(_request(prompt, max_tokens))
        status = await reader.readline()
        if b" 200 " not in status:
            rest = await reader.read()
            raise RuntimeError(f"HTTP {status!r}: {rest[-300:]!r}")
        lines: list[tuple[float, bytes]] = []
        while line := await reader.readline():
            if line.startswith(EVENT):
                lines.append((time.monotonic(), line))
            elif line.startswith(DONE):
                return lines
        raise RuntimeError("the stream ended before [DONE]")
    finally:
        writer.close()
        await writer.wait_closed()


def _request(prompt: Prompt, max_tokens: int) -> bytes:
    body = json.dumps(
        {
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": True,
            # One event may carry several tokens, and text does not tell.
            "return_token_ids": True,
        }
    ).encode()
    head = (
        "POST /v1/completions HTTP/1.1\r\n"
        f"Host: {HOST}\r\n"
        "Content-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode() + body


def _arrivals(lines: list[tuple[float, bytes]], began: float) -> tuple[Arrival, ...]:
    arrivals = []
    for moment, line in lines:
        event = json.loads(line.removeprefix(b"data: "))
        if "error" in event:
            raise RuntimeError(f"error event: {event['error']}")
        count = sum(len(choice.get("token_ids") or ()) for choice in event["choices"])
        if count:
            arrivals.append((moment - began, count))
    return tuple(arrivals)
