"""Grammars: what they allow, how they fail, and that nothing of them stays."""

from __future__ import annotations

import itertools
import json
import random
import re
import time
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import numpy as np
import pytest
from vllm.config import StructuredOutputsConfig, VllmConfig
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.reasoning import ReasoningParserManager
from vllm.reasoning.basic_parsers import BaseThinkingReasoningParser
from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.usage.usage_lib import UsageContext
from vllm.v1.request import Request

from device_service.grammar import Grammars, normalise_structured_outputs
from device_service.grammar_text import MAX_GRAMMAR_BYTES
from tests.support.schemas import nested, slow_schema
from ttserve.errors import Reason, TTServeError
from ttserve.sim_model import SPECIAL_TOKENS, sim_model_dir

# vLLM's backend passes an argument that xgrammar no longer needs.
pytestmark = pytest.mark.filterwarnings("ignore:max_rollback_tokens")

VOCAB = 320
EOS = 256 + SPECIAL_TOKENS.index("<|im_end|>")
ROWS = 4

SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 6},
        "size": {"enum": ["small", "large"]},
        "counts": {"type": "array", "items": {"type": "integer"}, "maxItems": 3},
        "ok": {"type": "boolean"},
    },
    "required": ["name", "size", "counts", "ok"],
    "additionalProperties": False,
}

_numbers = itertools.count(1)


class BracesParser(BaseThinkingReasoningParser):
    """Reasoning stands between braces, which any tokenizer has."""

    @property
    def start_token(self) -> str:
        return "{"

    @property
    def end_token(self) -> str:
        return "}"

    def extract_reasoning(self, *_: Any) -> tuple[None, None]:
        return None, None


def make_config(**options: Any) -> VllmConfig:
    args = AsyncEngineArgs(
        model=str(sim_model_dir()),
        max_num_seqs=ROWS,
        max_model_len=512,
        dtype="float32",
        num_gpu_blocks_override=64,
        structured_outputs_config=StructuredOutputsConfig(
            backend="xgrammar", disable_any_whitespace=True, **options
        ),
    )
    return args.create_engine_config(UsageContext.OPENAI_API_SERVER)


@pytest.fixture(scope="module")
def config() -> VllmConfig:
    return make_config()


@pytest.fixture(scope="module")
def grammars(config: VllmConfig) -> Grammars:
    kept = Grammars(config)
    kept.warm_up()
    return kept


@pytest.fixture(autouse=True)
def nothing_is_left(grammars: Grammars) -> Iterator[None]:
    yield
    assert grammars.live == 0


def constrained(
    *, stop_token_ids: tuple[int, ...] = (EOS,), **constraint: Any
) -> Request:
    """A request whose constraint admission has normalised."""
    params = SamplingParams(
        max_tokens=2000,
        stop_token_ids=list(stop_token_ids),
        structured_outputs=StructuredOutputsParams(**constraint),
    )
    normalise_structured_outputs(params)
    return plain(params)


def plain(params: SamplingParams | None = None) -> Request:
    return Request(
        request_id=f"request-{next(_numbers)}",
        prompt_token_ids=[65],
        sampling_params=params or SamplingParams(),
        pooling_params=None,
        arrival_time=0.0,
    )


def compile_grammar(grammars: Grammars, request: Request) -> TTServeError | None:
    ready: Future[TTServeError | None] = Future()

    def on_ready(request_id: str, error: TTServeError | None) -> None:
        assert request_id == request.request_id
        ready.set_result(error)

    grammars.start(request, on_ready)
    return ready.result(timeout=60)


def allowed(mask: np.ndarray, row: int = 0) -> list[int]:
    bits = np.unpackbits(mask[row].view(np.uint8), bitorder="little")[:VOCAB]
    return [int(token) for token in bits.nonzero()[0]]


def random_walk(grammars: Grammars, request: Request, chance: random.Random) -> bytes:
    """Text of a model without a mind, until its grammar lets it stop."""
    text = bytearray()
    for _ in range(300):
        mask = grammars.bitmask([request])
        assert mask is not None
        legal = allowed(mask)
        assert legal
        # Printable where possible, so that the walk ends before long.
        likely = [t for t in legal if t == EOS or 0x20 <= t < 0x7F] or legal
        token = EOS if EOS in legal and chance.random() < 0.5 else chance.choice(likely)
        request.append_output_token_ids(token)
        if token == EOS:
            return bytes(text)
        text.append(token)
        assert grammars.accept(request, token)
    raise AssertionError(f"no end of {bytes(text)!r}")


def is_json(text: bytes) -> bool:
    json.loads(text)
    return True


def keeps_schema(text: bytes) -> bool:
    value = json.loads(text)
    return (
        list(value) == ["name", "size", "counts", "ok"]
        and len(value["name"]) <= 6
        and value["size"] in ("small", "large")
        and all(isinstance(count, int) for count in value["counts"])
        and isinstance(value["ok"], bool)
    )


TAG = {
    "type": "structural_tag",
    "format": {
        "type": "tag",
        "begin": "<n>",
        "content": {"type": "json_schema", "json_schema": {"type": "integer"}},
        "end": "</n>",
    },
}
CHOICES = ["yes", 'no "q"', "two\nlines", "back\\slash", "ü"]
KINDS: dict[str, tuple[dict[str, Any], Callable[[bytes], Any]]] = {
    "json as a mapping": ({"json": SCHEMA}, keeps_schema),
    "json as text": ({"json": json.dumps(SCHEMA)}, keeps_schema),
    "regex": ({"regex": r"[a-c]{2,5}-\d+"}, re.compile(rb"[a-c]{2,5}-\d+").fullmatch),
    "choice": ({"choice": CHOICES}, lambda text: text.decode() in CHOICES),
    "grammar": (
        {"grammar": 'root ::= "a" root "b" | ""'},
        lambda text: text == b"a" * (len(text) // 2) + b"b" * (len(text) // 2),
    ),
    "lark grammar": (
        {"grammar": 'start: "x" | "y" item\nitem: "z"'},
        lambda text: text in (b"x", b"yz"),
    ),
    "structural tag": (
        {"structural_tag": json.dumps(TAG)},
        re.compile(rb"<n>-?\d+</n>").fullmatch,
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_random_walks_keep_to_the_grammar(grammars: Grammars, kind: str) -> None:
    constraint, holds = KINDS[kind]
    for seed in range(8):
        request = constrained(**constraint)
        assert compile_grammar(grammars, request) is None
        text = random_walk(grammars, request, random.Random(seed))
        assert holds(text), text
        grammars.release(request.request_id)


@pytest.mark.edge(40)
@pytest.mark.feature(21)
def test_a_json_object_begins_with_a_brace_and_has_no_idle_space(
    grammars: Grammars,
) -> None:
    request = constrained(json_object=True)
    assert compile_grammar(grammars, request) is None
    mask = grammars.bitmask([request])
    assert mask is not None
    assert allowed(mask) == [ord("{")]
    request.append_output_token_ids(ord("{"))
    assert grammars.accept(request, ord("{"))
    mask = grammars.bitmask([request])
    assert mask is not None
    assert not {ord(" "), ord("\n")} & set(allowed(mask))
    grammars.release(request.request_id)


# -- masks -------------------------------------------------------------------


@pytest.mark.feature(132)
def test_mask_rows_follow_the_requests_and_are_the_callers_own(
    grammars: Grammars,
) -> None:
    """More rows than max_num_seqs, in any order, free requests between them."""
    structured = [constrained(choice=[chr(65 + i)]) for i in range(3 * ROWS)]
    for request in structured:
        assert compile_grammar(grammars, request) is None
    mixed = [r for request in structured[::-1] for r in (plain(), request)]
    first = grammars.bitmask(mixed)
    assert first is not None
    kept = first.copy()
    for place, request in enumerate(mixed):
        if request.use_structured_output:
            expected = 65 + structured.index(request)
            assert allowed(first, place) == [expected]
        else:
            assert (first[place] == -1).all()
    second = grammars.bitmask(structured[:1])
    assert np.array_equal(first, kept)
    assert second is not None
    assert second.shape == (1, VOCAB // 32)
    for request in structured:
        grammars.release(request.request_id)


@pytest.mark.edge(20)
@pytest.mark.feature(136)
def test_without_grammars_there_is_no_mask(grammars: Grammars) -> None:
    assert grammars.bitmask([]) is None
    assert grammars.bitmask([plain(), plain()]) is None
    assert grammars.accept(plain(), 7)


def test_a_token_outside_the_grammar_is_not_accepted(grammars: Grammars) -> None:
    request = constrained(choice=["abc"])
    assert compile_grammar(grammars, request) is None
    request.append_output_token_ids(ord("x"))
    assert not grammars.accept(request, ord("x"))
    grammars.release(request.request_id)


def test_the_requests_own_stop_tokens_end_its_grammar(grammars: Grammars) -> None:
    request = constrained(choice=["a"], stop_token_ids=(300,))
    assert compile_grammar(grammars, request) is None
    request.append_output_token_ids(ord("a"))
    assert grammars.accept(request, ord("a"))
    mask = grammars.bitmask([request])
    assert mask is not None
    assert allowed(mask) == [300]
    grammars.release(request.request_id)


def test_a_grammar_too_ambiguous_to_follow_is_given_up(grammars: Grammars) -> None:
    request = constrained(grammar='root ::= a\na ::= "x" | a a | a a a | ""')
    assert compile_grammar(grammars, request) is None
    while grammars.accept(request, ord("x")):
        request.append_output_token_ids(ord("x"))
        assert request.num_output_tokens < 1000
    assert request.num_output_tokens > 10
    grammars.release(request.request_id)


# -- reasoning ---------------------------------------------------------------


def test_the_grammar_waits_for_the_end_of_reasoning() -> None:
    ReasoningParserManager.register_module("braces", module=BracesParser)
    grammars = Grammars(make_config(reasoning_parser="braces"))
    request = constrained(choice=["ab"])
    assert compile_grammar(grammars, request) is None
    for thought in b"{hm, x}":
        mask = grammars.bitmask([request])
        assert mask is not None
        assert (mask == -1).all()
        request.append_output_token_ids(thought)
        assert grammars.accept(request, thought)
    mask = grammars.bitmask([request])
    assert mask is not None
    assert allowed(mask) == [ord("a")]
    request.append_output_token_ids(ord("a"))
    assert grammars.accept(request, ord("a"))
    mask = grammars.bitmask([request])
    assert mask is not None
    assert allowed(mask) == [ord("b")]


# -- failures ----------------------------------------------------------------

UNCOMPILABLE: dict[str, dict[str, Any]] = {
    "regex": {"regex": "(ab"},
    "rule": {"grammar": "root ::= missing"},
    "schema": {"json": '{"type": "nonsense"}'},
    "tag": {"structural_tag": '{"type": "structural_tag"}'},
    "reference": {"json": '{"$ref": "#/$defs/nowhere"}'},
}


@pytest.mark.parametrize("kind", UNCOMPILABLE)
def test_what_does_not_compile_is_its_requests_error(
    grammars: Grammars, kind: str
) -> None:
    request = constrained(**UNCOMPILABLE[kind])
    error = compile_grammar(grammars, request)
    assert error is not None
    assert error.reason is Reason.GRAMMAR
    assert len(error.message) <= 500
    assert ".cc:" not in error.message
    grammars.release(request.request_id)


REFUSED: dict[str, dict[str, Any]] = {
    "empty choice": {"choice": []},
    "empty grammar": {"grammar": " "},
    "no object": {"json_object": False},
    "bad lark": {"grammar": "start: other"},
    "no JSON": {"json": "{"},
    "no JSON in a tag": {"structural_tag": "{"},
    "multiples": {"json": {"type": "integer", "multipleOf": 3}},
    "deep": {"json": nested("items", 101)},
    "very deep": {"json": nested("items", 20000)},
    "deep tag": {"structural_tag": nested("content", 101)},
    "NUL": {"regex": "a\x00b"},
    "large schema": {"json": json.dumps({"enum": ["x" * MAX_GRAMMAR_BYTES]})},
    "large choice": {"choice": ["x" * MAX_GRAMMAR_BYTES]},
    "large regex": {"regex": "x" * (MAX_GRAMMAR_BYTES + 1)},
}


@pytest.mark.parametrize("kind", REFUSED)
def test_admission_refuses(kind: str) -> None:
    with pytest.raises(TTServeError) as caught:
        constrained(**REFUSED[kind])
    assert caught.value.reason is Reason.GRAMMAR
    assert caught.value.metadata == {"field": "structured_output"}
    assert len(caught.value.message) <= 500


def test_a_schema_may_be_a_hundred_levels_deep(grammars: Grammars) -> None:
    request = constrained(json=nested("items", 100))
    assert compile_grammar(grammars, request) is None
    grammars.release(request.request_id)


@pytest.mark.parametrize(
    "option", [{"whitespace_pattern": " ?"}, {"disable_additional_properties": True}]
)
def test_admission_refuses_what_would_be_ignored(option: dict[str, Any]) -> None:
    with pytest.raises(TTServeError) as caught:
        constrained(json_object=True, **option)
    assert caught.value.reason is Reason.UNSUPPORTED


def test_a_hostile_schema_fails_in_time_and_delays_nobody(config: VllmConfig) -> None:
    grammars = Grammars(config, compile_timeout=0.1)
    grammars.warm_up()
    hostile = constrained(json=slow_schema(1000))
    waiting: Future[TTServeError | None] = Future()
    grammars.start(hostile, lambda _, error: waiting.set_result(error))
    quick = constrained(choice=["a"])
    assert compile_grammar(grammars, quick) is None
    error = waiting.result(timeout=60)
    assert error is not None
    assert error.reason is Reason.GRAMMAR
    assert "too complex" in error.message
    again = constrained(json=slow_schema(1000))
    ready: list[TTServeError | None] = []
    grammars.start(again, lambda _, error: ready.append(error))
    assert [error.message] == [known.message for known in ready if known]
    for request in (hostile, quick, again):
        grammars.release(request.request_id)
    assert grammars.live == 0


# -- what is kept ------------------------------------------------------------


def test_released_requests_and_their_grammars_are_gone(grammars: Grammars) -> None:
    requests = [constrained(regex=f"a{{{i + 1}}}") for i in range(8)]
    for request in requests:
        assert compile_grammar(grammars, request) is None
    assert grammars.live == 8
    ghosts = [weakref.ref(request) for request in requests]
    for request in requests:
        grammars.release(request.request_id)
        grammars.release(request.request_id)
    grammars.release("never heard of")
    del requests, request
    limit = time.monotonic() + 30
    while any(ghost() for ghost in ghosts):  # until the threads are done with them
        assert time.monotonic() < limit
        time.sleep(0.005)


def test_nothing_is_reported_after_release(config: VllmConfig) -> None:
    grammars = Grammars(config)
    request = constrained(json=slow_schema(100))
    reports: list[str] = []
    grammars.start(request, lambda request_id, _: reports.append(request_id))
    grammars.release(request.request_id)
    assert grammars.live == 0
    # Four more compilations at least, so the first one's thread is done with.
    for i in range(8):
        other = constrained(regex=f"b{{{i + 1}}}")
        assert compile_grammar(grammars, other) is None
        grammars.release(other.request_id)
    assert request.request_id not in reports
