"""Requests of a recording, made again: equal to scheduling, and empty of meaning.

A prompt is as long as it was and says nothing. What a request asked of sampling
is asked again as far as it decides where tokens are sampled.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.core.kv_cache_utils import BlockHash
from vllm.v1.request import Request, RequestStatus

from device_service.recording.events import RecordedRequest
from device_service.recording.picture import SequencePicture
from device_service.records import Admitted, StepUpdates
from device_service.sampling.facts import SamplingFacts
from device_service.sequence import Sequence

PLAIN_TOKEN = 0
STOP_TOKEN = 1
ERROR_TOKEN = -1
"""No token: whoever samples it, on the device or on the host, fails the row."""

_HOST_ONLY: dict[str, Any] = {
    "allowed_token_ids": [PLAIN_TOKEN],
    "logit_bias": {PLAIN_TOKEN: 1.0},
    "min_p": 0.5,
    "thinking_token_budget": 1,
    "logprob_token_ids": [PLAIN_TOKEN],
}


class Deaf:
    """The session of every request: nobody listens."""

    def deliver(self, updates: StepUpdates) -> None:
        """Take a step's updates."""


class RecordedHashes:
    """Names the full blocks of requests as they were named when recorded."""

    def __init__(self, tokens_per_hash: int) -> None:
        self._tokens_per_hash = tokens_per_hash
        self._hashes: dict[str, list[BlockHash]] = {}

    def learn(self, request: RecordedRequest) -> None:
        """A request whose blocks will be asked about; ids may come again."""
        self._hashes[request.request_id] = request.block_hashes

    def __call__(self, request: Request) -> list[BlockHash]:
        """Those of full blocks beyond the ones that the request has."""
        full = request.num_tokens // self._tokens_per_hash
        known = self._hashes[request.request_id]
        return known[len(request.block_hashes) : full]


def sampling_params(request: RecordedRequest, vocab_size: int) -> SamplingParams:
    """Parameters that scheduling cannot tell from the recorded ones."""
    facts = request.sampling
    options: dict[str, Any] = {}
    if facts.host_only in _HOST_ONLY:
        options[facts.host_only] = _HOST_ONLY[facts.host_only]
    if facts.structured:
        options["structured_outputs"] = StructuredOutputsParams(json_object=True)
    params = SamplingParams(
        max_tokens=request.max_tokens,
        temperature=facts.temperature,
        top_k=facts.top_k if facts.top_k < vocab_size else 0,
        presence_penalty=1.0 if facts.penalised else 0.0,
        seed=facts.seed,
        logprobs=None if facts.num_logprobs < 0 else facts.num_logprobs,
        min_tokens=facts.min_tokens,
        stop_token_ids=[STOP_TOKEN],
        ignore_eos=True,
        skip_reading_prefix_cache=request.skip_prefix_cache,
        **options,
    )
    if facts.host_only == "bad_words":
        params._bad_words_token_ids = [[PLAIN_TOKEN]]  # noqa: SLF001 - a tokenizer's job
    return params


def admitted(recorded: RecordedRequest, vocab_size: int) -> Admitted:
    """A recorded request, on its way into the engine."""
    request = Request(
        request_id=recorded.request_id,
        prompt_token_ids=[PLAIN_TOKEN] * recorded.prompt_tokens,
        sampling_params=sampling_params(recorded, vocab_size),
        pooling_params=None,
        arrival_time=0.0,
        priority=recorded.priority,
    )
    return Admitted(
        request=request,
        sink=Deaf(),
        session_number=recorded.session_number,
        handle=0,
        external_request_id=recorded.external_request_id,
        top_logprobs=None,
        awaits_grammar=recorded.awaits_grammar,
    )


def sequence(
    picture: SequencePicture,
    vocab_size: int,
    max_model_len: int,
    clock: Callable[[], float],
) -> Sequence:
    """A request that lived when the recording began."""
    entry = admitted(picture.request, vocab_size)
    request, params = entry.request, entry.request.sampling_params
    assert params is not None
    live = Sequence.admit(
        entry,
        SamplingFacts.of(params, request.num_prompt_tokens, vocab_size),
        lane=picture.lane,
        order=picture.order,
        max_model_len=max_model_len,
        now=clock(),
    )
    live.row = picture.row
    request.append_output_token_ids([PLAIN_TOKEN] * picture.output_tokens)
    request.num_computed_tokens = picture.computed_tokens
    request.is_prefill_chunk = picture.prefilling
    request.num_preemptions = picture.preemptions
    request.shared_prefix_boundary = picture.shared_prefix_boundary
    if picture.row is not None:
        request.status = RequestStatus.RUNNING
    elif picture.preempted:
        request.status = RequestStatus.PREEMPTED
    elif not picture.request.awaits_grammar:
        request.status = RequestStatus.WAITING
    return live
