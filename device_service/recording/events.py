"""What comes to the engine from outside and may change what it schedules.

An event goes into the inbox beside the action that it stands for, so that the
flight recorder sees what the engine saw, in the same order. Questions change
nothing and are no events.
"""

from __future__ import annotations

from dataclasses import dataclass

from vllm.v1.core.kv_cache_utils import BlockHash

from device_service.records import AbortCause, Admitted
from device_service.sampling.facts import SamplingFacts
from device_service.sequence import Sequence


@dataclass(frozen=True, slots=True)
class RecordedRequest:
    """All that scheduling depends on of a request, and none of its tokens.

    block_hashes are those of its full blocks: the request's own list, to which
    the engine adds while it lives. skip_prefix_cache: it looks up no prefix.
    """

    request_id: str
    external_request_id: str
    session_number: int
    prompt_tokens: int
    max_tokens: int
    priority: int
    awaits_grammar: bool
    skip_prefix_cache: bool
    sampling: SamplingFacts
    block_hashes: list[BlockHash]

    @classmethod
    def arriving(cls, admitted: Admitted, vocab_size: int) -> RecordedRequest:
        """A request that the engine has not looked at yet."""
        request = admitted.request
        params = request.sampling_params
        assert params is not None
        return cls(
            request_id=request.request_id,
            external_request_id=admitted.external_request_id,
            session_number=admitted.session_number,
            prompt_tokens=request.num_prompt_tokens,
            max_tokens=request.max_tokens,
            priority=request.priority,
            awaits_grammar=admitted.awaits_grammar,
            skip_prefix_cache=request.skip_reading_prefix_cache,
            sampling=SamplingFacts.of(params, request.num_prompt_tokens, vocab_size),
            block_hashes=request.block_hashes,
        )

    @classmethod
    def living(cls, sequence: Sequence) -> RecordedRequest:
        """A request that the engine holds."""
        request = sequence.request
        return cls(
            request_id=request.request_id,
            external_request_id=sequence.external_request_id,
            session_number=sequence.session_number,
            prompt_tokens=request.num_prompt_tokens,
            max_tokens=request.max_tokens,
            priority=request.priority,
            awaits_grammar=sequence.awaits_grammar,
            skip_prefix_cache=request.skip_reading_prefix_cache,
            sampling=sequence.sampling,
            block_hashes=request.block_hashes,
        )


@dataclass(frozen=True, slots=True)
class Arrived:
    """Requests were submitted together; the event of the inbox."""

    batch: tuple[Admitted, ...]


@dataclass(frozen=True, slots=True)
class Arrivals:
    """The same, as it is recorded."""

    requests: tuple[RecordedRequest, ...]


@dataclass(frozen=True, slots=True)
class GrammarReady:
    """A request's grammar is compiled, or could not be."""

    request_id: str
    failed: bool


@dataclass(frozen=True, slots=True)
class Aborted:
    """Requests were ended from outside."""

    request_ids: tuple[str, ...]
    cause: AbortCause


@dataclass(frozen=True, slots=True)
class Paused:
    """Steps are planned no longer."""


@dataclass(frozen=True, slots=True)
class StepsAsked:
    """So many steps may be planned while paused."""

    count: int


@dataclass(frozen=True, slots=True)
class Resumed:
    """Steps are planned again."""


@dataclass(frozen=True, slots=True)
class ResetAsked:
    """Cached prefixes are to be forgotten."""

    preempt_running: bool


@dataclass(frozen=True, slots=True)
class Stopped:
    """The engine was told to end."""


Plain = GrammarReady | Aborted | Paused | StepsAsked | Resumed | ResetAsked | Stopped
Event = Arrived | Plain
Recorded = Arrivals | Plain
