"""The two codecs agree: what a frontend encodes, the device service decodes.

Neither side imports the other; only here do they meet.
"""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from vllm.sampling_params import (
    RepetitionDetectionParams,
    SamplingParams,
    StructuredOutputsParams,
)
from vllm.v1.engine import EngineCoreRequest

from device_service.checks import check
from device_service.codec.model import model_message
from device_service.codec.outputs import step_output
from device_service.codec.requests import submission_from_attach
from device_service.description import ModelDescription
from device_service.merging import PendingSteps
from device_service.records import (
    EventKind,
    Finish,
    FinishKind,
    PrefillReport,
    RequestUpdate,
    SessionStats,
    StepUpdates,
    TokenLogprobs,
)
from frontend.codec.outputs import Decoding, decode_step
from frontend.codec.submission import Envelope, encode_submission
from tests.support.wire import MODEL, model_with
from ttserve.errors import Reason, TTServeError
from ttserve.fields import ENGINE_CORE_REQUEST, SAMPLING_PARAMS
from ttserve.v1 import generation_pb2, step_pb2

TOKENS = st.integers(0, MODEL.vocab_size - 1)


def unit(low: float, high: float, **rest: Any) -> st.SearchStrategy[float]:
    """Numbers that float32 holds exactly, so that they can be compared."""
    ends = float(np.float32(low)), float(np.float32(high))
    return st.floats(*ends, width=32, **rest)


CONSTRAINTS = st.none() | st.one_of(
    st.builds(StructuredOutputsParams, json=st.just('{"type": "object"}')),
    st.builds(StructuredOutputsParams, json=st.just({"type": "object"})),
    st.builds(StructuredOutputsParams, regex=st.just("a+")),
    st.builds(StructuredOutputsParams, grammar=st.just('root ::= "x"')),
    st.builds(StructuredOutputsParams, json_object=st.just(True)),
    st.builds(StructuredOutputsParams, choice=st.just(["a", "b"])),
    st.builds(StructuredOutputsParams, structural_tag=st.just("{}")),
)
PARAMS = st.builds(
    SamplingParams,
    temperature=st.just(0.0) | unit(0.015625, 2.0),
    top_p=unit(0.0, 1.0, exclude_min=True),
    top_k=st.integers(-1, MODEL.vocab_size - 1),
    min_p=unit(0.0, 1.0),
    seed=st.none() | st.integers(-(2**63), 2**63 - 1),
    presence_penalty=unit(-2.0, 2.0),
    frequency_penalty=unit(-2.0, 2.0),
    repetition_penalty=unit(0.0, 3.0, exclude_min=True),
    logit_bias=st.none()
    | st.dictionaries(TOKENS, unit(-100.0, 100.0), min_size=1, max_size=4),
    allowed_token_ids=st.none() | st.lists(TOKENS, min_size=1, max_size=4),
    _bad_words_token_ids=st.none()
    | st.lists(st.lists(TOKENS, min_size=1, max_size=3), min_size=1, max_size=3),
    max_tokens=st.integers(5, 100),
    min_tokens=st.integers(0, 5),
    _eos_token_id=st.none() | TOKENS,
    stop_token_ids=st.lists(TOKENS, unique=True, max_size=3),
    _all_stop_token_ids=st.sets(TOKENS, max_size=3),
    repetition_detection=st.none()
    | st.builds(
        RepetitionDetectionParams,
        max_pattern_size=st.integers(2, 20),
        min_pattern_size=st.integers(0, 2),
        min_count=st.integers(2, 5),
    ),
    logprobs=st.none() | st.integers(0, 20),
    skip_reading_prefix_cache=st.booleans(),
    structured_outputs=CONSTRAINTS,
)


def request(params: SamplingParams, **changes: Any) -> EngineCoreRequest:
    """What vLLM's input processor hands to the engine client."""
    values: dict[str, Any] = {
        "request_id": "r-1",
        "prompt_token_ids": [1, 2, 3],
        "mm_features": None,
        "sampling_params": params,
        "pooling_params": None,
        "arrival_time": 1.0,
        "lora_request": None,
        "cache_salt": None,
        "data_parallel_rank": None,
    }
    return EngineCoreRequest(**(values | changes))


def over_the_wire(
    sent: EngineCoreRequest, model: ModelDescription = MODEL, **envelope: Any
) -> EngineCoreRequest:
    """Encode, travel, decode, check."""
    message = encode_submission(sent, Envelope(**envelope), model_message(model))
    arrived = generation_pb2.Submission.FromString(message.SerializeToString())
    submission = submission_from_attach(arrived)
    check(submission, model)
    return submission.request


@given(params=PARAMS)
def test_sampling_params_arrive_as_they_were(params: SamplingParams) -> None:
    arrived = over_the_wire(request(params)).sampling_params
    assert arrived is not None
    for name in SAMPLING_PARAMS.carried - {"structured_outputs", "top_k"}:
        sent, received = getattr(params, name), getattr(arrived, name)
        assert received == sent or not (received or sent), name
    assert arrived.top_k == max(params.top_k, 0)  # -1 is 0 by another name
    assert_same_constraint(params.structured_outputs, arrived.structured_outputs)


def assert_same_constraint(
    sent: StructuredOutputsParams | None, arrived: StructuredOutputsParams | None
) -> None:
    if sent is None:
        assert arrived is None
        return
    assert arrived is not None
    for field in ("regex", "choice", "grammar", "json_object", "structural_tag"):
        assert getattr(arrived, field) == getattr(sent, field)
    assert (sent.json is None) == (arrived.json is None)
    assert not isinstance(arrived.json, dict)


def test_the_rest_of_the_request_arrives() -> None:
    structured = SamplingParams(
        structured_outputs=StructuredOutputsParams(regex="a"), max_tokens=5
    )
    sent = request(
        structured,
        cache_salt="salt",
        priority=-7,
        trace_headers={"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"},
        external_req_id="from-outside",
        reasoning_ended=True,
        reasoning_parser_kwargs={"x": [1]},
    )
    arrived = over_the_wire(
        sent, model_with(policy="priority"), external_request_id="from-outside"
    )
    for name in ENGINE_CORE_REQUEST.carried - {"sampling_params"}:
        assert getattr(arrived, name) == getattr(sent, name), name


# -- outputs ---------------------------------------------------------------

FINISHES = st.none() | st.sampled_from(
    [
        Finish(FinishKind.STOP),
        Finish(FinishKind.STOP, stop_token_id=9),
        Finish(FinishKind.LENGTH),
        Finish(FinishKind.REPETITION),
        Finish(FinishKind.ERROR, error=TTServeError(Reason.STEP_FAILED, "broken")),
    ]
)


@dataclasses.dataclass(frozen=True)
class Told:
    """What the engine says about one request over its life."""

    tokens: list[int]
    top: int | None
    finish: Finish | None


TOLD = st.builds(
    Told,
    tokens=st.lists(TOKENS, min_size=1, max_size=6),
    top=st.none() | st.integers(0, 3),
    finish=FINISHES,
)


def updates(handle: int, told: Told) -> list[RequestUpdate]:
    """One update per token, the last one with the finish."""
    found = []
    for index, token in enumerate(told.tokens):
        logprobs = None
        if told.top is not None:
            values = [-math.inf, *[-1.0] * told.top][: told.top]
            logprobs = [TokenLogprobs(-0.5, 2, list(range(told.top)), values)]
        last = index == len(told.tokens) - 1
        first = index == 0
        found.append(
            RequestUpdate(
                handle,
                [token],
                logprobs,
                told.finish if last else None,
                PrefillReport(7, 3) if first else None,
                ((EventKind.QUEUED, 1.0),) if first else (),
            )
        )
    return found


@given(told=st.lists(TOLD, min_size=1, max_size=4), limit=st.integers(1, 40))
def test_outputs_arrive_one_per_token_however_they_were_merged(
    told: list[Told], limit: int
) -> None:
    pending = PendingSteps()
    lives = [updates(handle, entry) for handle, entry in enumerate(told)]
    for number in range(max(map(len, lives))):
        step = [life[number] for life in lives if number < len(life)]
        stats = SessionStats(running=1, waiting=0, kv_usage=0.5)
        pending.add(StepUpdates(number, float(number), step, stats), step)
    decodings = {handle: Decoding(f"r-{handle}") for handle in range(len(told))}
    outputs: dict[str, list[Any]] = {d.request_id: [] for d in decodings.values()}
    failed = []
    while pending:
        message = step_pb2.StepOutput.FromString(
            step_output(pending.take(limit)).SerializeToString()
        )
        decoded = decode_step(message, decodings.get)
        failed += decoded.failures
        for output in decoded.outputs.outputs:
            outputs[output.request_id].append(output)
    for handle, entry in enumerate(told):
        mine = outputs[f"r-{handle}"]
        assert [o.new_token_ids for o in mine] == [[t] for t in entry.tokens]
        assert mine[0].prefill_stats.num_cached_tokens == 3
        assert len(mine[0].events) == 1
        assert all(output.finish_reason is None for output in mine[:-1])
        assert (mine[-1].finish_reason is None) == (entry.finish is None)
        if entry.finish is not None:
            assert mine[-1].stop_reason == entry.finish.stop_token_id
        for output, token in zip(mine, entry.tokens, strict=True):
            if entry.top is None:
                assert output.new_logprobs is None
            else:
                ids = output.new_logprobs.logprob_token_ids.tolist()
                assert ids == [[token, *range(entry.top)]]
    errors = [t for t in told if t.finish is not None and t.finish.error is not None]
    assert [f.error.reason for f in failed] == [Reason.STEP_FAILED] * len(errors)
