"""What no client should send."""

from __future__ import annotations

import asyncio
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from bench.progress import say
from bench.registry import CannotRun
from bench.results import Result, result
from tests.chaos.fuzzing import Found, search, still_right
from tests.chaos.registry import Setting, case
from tests.chaos.streams import HOST, TRACES, all_right, request
from tests.chaos.system import running

ANSWER_SECONDS = 2.0
SMALL = ("--max-num-seqs", "16", "--max-model-len", "256")
PATHS = (
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
    "/tokenize",
    "/detokenize",
)
FIELDS = (
    *("model", "prompt", "messages", "input", "max_tokens", "temperature", "top_p"),
    *("top_k", "min_p", "n", "seed", "stop", "stop_token_ids", "logprobs", "echo"),
    *("top_logprobs", "logit_bias", "presence_penalty", "frequency_penalty", "user"),
    *("repetition_penalty", "response_format", "structured_outputs", "tools"),
    *("tool_choice", "stream", "stream_options", "min_tokens", "priority", "tokens"),
    *("bad_words", "allowed_token_ids", "prompt_logprobs", "truncate_prompt_tokens"),
    *("max_completion_tokens", "best_of", "suffix", "metadata", "add_special_tokens"),
)
NAMES = (
    *("role", "content", "type", "text", "name", "arguments", "function", "tool_calls"),
    *("tool_call_id", "image_url", "url", "json_schema", "schema", "strict", "json"),
    *("regex", "choice", "grammar", "structural_tag", "format", "include_usage"),
)
"""Of the objects inside a body."""
WORDS = (
    *("user", "system", "assistant", "tool", "developer", "text", "input_text"),
    *("image_url", "function", "message", "function_call", "function_call_output"),
    *("reasoning", "json_schema", "json_object", "structural_tag", "auto", "none"),
    *("required", "object", "string", "{", "a|", "root ::= ", "ttserve-sim"),
)
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(-2, 300)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from(WORDS)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.sampled_from([*FIELDS, *NAMES]), inner, max_size=5)
    ),
    max_leaves=8,
)
BASES: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "a"},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}]},
    "/v1/responses": {"input": "a"},
    "/v1/messages": {
        "model": "ttserve-sim",
        "max_tokens": 3,
        "messages": [{"role": "user", "content": "a"}],
    },
    "/v1/messages/count_tokens": {"messages": [{"role": "user", "content": "a"}]},
    "/tokenize": {"prompt": "a"},
    "/detokenize": {"tokens": [65]},
}


@case("fuzz-http", shows="malformed HTTP and JSON get an error of the client, or none")
def fuzz_http(setting: Setting) -> Iterator[Result]:
    """Bytes that are nearly a request, and JSON that is nearly a right one."""
    with running(setting.directory, decode_ms=0, device_options=SMALL) as system:
        asyncio.run(all_right(system.ports, 16))
        before = system.holdings()
        port = system.ports[0]
        nearly = _mutated(request([72, 101], 3))
        posts = st.builds(_post, st.sampled_from(PATHS), _bodies())
        for name, strategy in (("bytes", nearly), ("json", posts)):
            answers: Counter[str] = Counter()
            found = search(strategy, _asker(port, answers), setting.seed)
            say(f"  {name}: {dict(answers)}")
            yield result(f"fuzz-http.{name}", answers.total(), "requests")
            yield result(f"fuzz-http.{name}_wrong", found, "kinds", "<= 0")
        yield from still_right("fuzz-http", system)
        yield system.settle("fuzz-http", before)


@case("openapi", shows="schemathesis finds no server error behind our OpenAPI document")
def openapi(setting: Setting) -> Iterator[Result]:
    """Requests made from the document: right ones and wrong ones."""
    # Many of these requests say nothing about their length.
    short = (*SMALL, "--override-generation-config", '{"max_new_tokens": 4}')
    with running(setting.directory, decode_ms=0, device_options=short) as system:
        asyncio.run(all_right(system.ports, 16))
        before = system.holdings()
        said = _schemathesis(system.frontends[0].url, setting)
        last = said.rpartition("\n")[2]
        say("  " + last)
        yield result("openapi.cases", _count(r"(\d+) generated", said), "requests")
        # It may fail to make up a body: that is no answer of ours.
        yield result(
            "openapi.not_made_up", _count(r"(\d+) errors?", last), "operations"
        )
        failures = _count(r"(\d+) failures?", last)
        yield result("openapi.server_errors", failures, "kinds", "<= 0")
        yield from still_right("openapi", system)
        yield system.settle("openapi", before)


def _schemathesis(url: str, setting: Setting) -> str:
    """Run it to its end; what it printed."""
    log = setting.directory / "schemathesis.log"
    with log.open("wb") as output:
        subprocess.run(
            [
                *(str(Path(sys.executable).with_name("schemathesis")), "run"),
                *(f"{url}/openapi.json", "--no-color", "--seed", str(setting.seed)),
                *("--checks", "not_a_server_error", "--max-examples", "25"),
                *("--request-timeout", "60", "--workers", "4"),
                *("--phases", "examples,coverage,fuzzing"),
            ],
            stdout=output,
            stderr=output,
            cwd=setting.directory,
            check=False,
        )
    said = log.read_text().strip()
    if "Test cases:" not in said:
        raise CannotRun(f"schemathesis did not run: {said[-300:]}")
    return said


def _count(pattern: str, text: str) -> int:
    found = re.search(pattern, text)
    return int(found[1]) if found else 0


def _asker(port: int, answers: Counter[str]) -> Callable[[bytes], None]:
    def ask(sent: bytes) -> None:
        answers[_judge_http(asyncio.run(_exchange(port, sent)))] += 1

    return ask


def _bodies() -> st.SearchStrategy[Any]:
    """Fields of ours over a right request, or anything that JSON can say."""
    fields = st.dictionaries(st.sampled_from(FIELDS), VALUES, max_size=4)
    return st.tuples(st.booleans(), fields) | VALUES


def _post(path: str, body: Any) -> bytes:
    if isinstance(body, tuple):
        base, fields = body
        body = (BASES[path] if base else {}) | fields
    content = json.dumps(body).encode()
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(content)}\r\nConnection: close\r\n\r\n"
    )
    return head.encode() + content


@st.composite
def _mutated(draw: st.DrawFn, whole: bytes) -> bytes:
    """A request with some of its bytes replaced, left out or repeated."""
    pieces = st.binary(max_size=8) | st.sampled_from(
        [b"\r\n", b"\r\n\r\n", b"\x00", b"Transfer-Encoding: chunked\r\n", b"HTTP/9.9"]
    )
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, len(whole)))
        width = draw(st.integers(0, 12))
        whole = whole[:at] + draw(pieces) + whole[at + width :]
    return whole


async def _exchange(port: int, sent: bytes) -> bytes:
    """Send bytes; what came back until the end, or until patience ended."""
    received = b""
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        async with asyncio.timeout(ANSWER_SECONDS if b"\r\n\r\n" in sent else 1.0):
            writer.write(sent)
            while data := await reader.read(1 << 16):
                received += data
    except (TimeoutError, OSError):
        pass  # an unfinished request is waited for
    finally:
        writer.close()
    return received


def _judge_http(answer: bytes) -> str:
    """The status, or "nothing"; raises Found for what a client should not see."""
    if not answer:
        return "nothing"
    if any(trace in answer for trace in TRACES):
        raise Found(f"it shows its insides: {answer[:1000]!r}")
    head, _, body = answer.partition(b"\r\n\r\n")
    words = head.split(maxsplit=2)
    if len(words) < 2 or not words[0].startswith(b"HTTP/1."):
        raise Found(f"no answer of HTTP: {answer[:300]!r}")
    status = words[1].decode()
    if status.startswith("5"):
        raise Found(f"an error of the server: {answer[:600]!r}")
    if status.startswith("4") and b'"error"' not in body and status != "405":
        raise Found(f"an error that does not say why: {answer[:600]!r}")
    return status
