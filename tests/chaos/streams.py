"""Streams whose text is known beforehand, with as little client as possible.

The simulated model's words are a function of the prompt alone, so a client can
tell a right answer from one with another's, a lost or a doubled token.
"""

from __future__ import annotations

import asyncio
import enum
import json
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.measure import Prompt
from device_service.models.sim_tokens import SimVocabulary, expected_tokens
from ttserve.sim_model import PRINTABLE, VOCABULARY

HOST = "127.0.0.1"
EVENT = b"data: {"
DONE = b"data: [DONE]"
LINE_LIMIT = 1 << 20
PATIENCE_SECONDS = 120.0
TRACES = (b"Traceback", b'File "/')
WORDS = SimVocabulary(
    size=VOCABULARY, first=PRINTABLE[0], count=PRINTABLE[1] - PRINTABLE[0]
)


class End(enum.Enum):
    """How a request ended."""

    RIGHT = "right"
    """Whole, and as the model says it."""
    REFUSED = "refused"
    """Before its first token, with a status of HTTP and a body that says why."""
    FAILED = "failed"
    """After its first token, with an event that says why; right so far."""
    BROKEN = "broken"
    """The connection ended without a word; right so far."""
    WRONG = "wrong"
    """Other text than the model's, too little of it, or an answer without form."""
    HUNG = "hung"
    """Not over in `PATIENCE_SECONDS`."""
    TRACE = "trace"
    """The answer shows our insides."""


@dataclass(frozen=True, slots=True)
class Ended:
    """One request: when it began and ended, and when its chunks came (monotonic)."""

    end: End
    began: float
    ended: float
    arrivals: tuple[float, ...] = ()
    said: str = ""
    """What came instead of a right answer."""


@dataclass
class Tally:
    """How many requests ended how."""

    ends: list[Ended] = field(default_factory=list)

    def count(self, *kinds: End) -> int:
        return sum(each.end in kinds for each in self.ends)

    def __str__(self) -> str:
        counted = Counter(each.end.value for each in self.ends)
        return ", ".join(f"{count} {end}" for end, count in counted.most_common())


def expected_text(prompt: Prompt, tokens: int) -> str:
    """What the model says, by its definition and without cache, rows or steps."""
    return bytes(expected_tokens(prompt, tokens, WORDS)).decode()


async def ask(port: int, prompt: Prompt, tokens: int) -> Ended:
    """Stream one completion and judge it. Never raises for what a server does.

    The prompt is of printable ASCII: after half a character the text of an answer
    begins with the other half, as far as there is one.
    """
    began = time.monotonic()
    lines: list[tuple[float, bytes]] = []
    head = b""
    try:
        async with asyncio.timeout(PATIENCE_SECONDS):
            head = await _exchange(port, request(prompt, tokens), lines)
    except TimeoutError:
        return Ended(End.HUNG, began, time.monotonic())
    except (OSError, EOFError):
        pass  # what came so far says how it ended
    ended = time.monotonic()
    end, said = judge(head, lines, expected_text(prompt, tokens))
    return Ended(end, began, ended, tuple(moment for moment, _ in lines), said)


def request(prompt: Prompt, tokens: int, **options: object) -> bytes:
    """A streamed completion as bytes; its connection is for it alone."""
    body = json.dumps(
        {
            "prompt": prompt,
            "max_tokens": tokens,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": True,
        }
        | options
    ).encode()
    return (
        "POST /v1/completions HTTP/1.1\r\n"
        f"Host: {HOST}\r\n"
        "Content-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\n"
        "Connection: close\r\n\r\n"
    ).encode() + body


def judge(
    head: bytes, lines: Sequence[tuple[float, bytes]], expected: str
) -> tuple[End, str]:
    """How an answer ended: `head` has its status line, `lines` its events.

    For a status other than 200, the body is the only line.
    """
    everything = b"".join(line for _, line in lines)
    if any(trace in everything for trace in TRACES):
        return End.TRACE, everything[-500:].decode(errors="replace")
    if not head:
        return End.BROKEN, ""
    if b" 200 " not in head:
        return _judge_refusal(head, everything)
    answer = _read(lines)
    if not expected.startswith(answer.text):
        return End.WRONG, f"{answer.text!r} instead of {expected!r}"
    if answer.error is not None:
        return End.FAILED, str(answer.error)
    if not answer.done:
        return End.BROKEN, ""
    if (answer.text, answer.reason) != (expected, "length"):
        return End.WRONG, f"{answer} instead of {expected!r}"
    return End.RIGHT, ""


@dataclass
class _Answer:
    """What the events of a stream say together."""

    text: str = ""
    reason: str | None = None
    error: object = None
    done: bool = False


def _read(lines: Sequence[tuple[float, bytes]]) -> _Answer:
    answer = _Answer()
    for _, line in lines:
        if line.startswith(DONE):
            answer.done = True
            continue
        event = json.loads(line.removeprefix(b"data: "))
        answer.error = event.get("error", answer.error)
        for choice in event.get("choices", ()):
            answer.text += choice["text"]
            answer.reason = choice["finish_reason"] or answer.reason
    return answer


def _judge_refusal(head: bytes, body: bytes) -> tuple[End, str]:
    try:
        message = json.loads(body)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        return End.WRONG, f"{head!r} {body[-300:]!r}"
    return End.REFUSED, f"{head.split()[1].decode()} {message}"


async def _exchange(
    port: int, request: bytes, lines: list[tuple[float, bytes]]
) -> bytes:
    """Fill `lines` with events and when they came; the status line.

    A connection that breaks leaves what came before, and the head of a stream.
    """
    reader, writer = await asyncio.open_connection(HOST, port, limit=LINE_LIMIT)
    try:
        writer.write(request)
        head = await reader.readline()
        if b" 200 " not in head:
            rest = await reader.read()
            lines.append((time.monotonic(), rest.partition(b"\r\n\r\n")[2]))
            return head
        try:
            while line := await reader.readline():
                if line.startswith((EVENT, DONE)):
                    lines.append((time.monotonic(), line))
                if line.startswith(DONE):
                    break
        except OSError:
            pass  # the head is known, so the answer is judged by its events
        return head
    finally:
        writer.close()


async def all_right(ports: Sequence[int], requests: int, *, tokens: int = 16) -> Tally:
    """Ask each frontend in turn, all at once; prompts differ."""
    prompts = [[40 + number % 80, 40 + number // 80] for number in range(requests)]
    ends = await asyncio.gather(
        *(
            ask(ports[number % len(ports)], prompt, tokens)
            for number, prompt in enumerate(prompts)
        )
    )
    return Tally(list(ends))
