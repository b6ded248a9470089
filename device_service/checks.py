"""What a well-formed submission must satisfy for this model, in one table.

Frontends check too, for the sake of their users; here it is for the sake of the
service, since frontends are not trusted. Pure functions: any thread.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import chain

from vllm.sampling_params import MAX_LOGPROB_TOKEN_IDS, SamplingParams
from vllm.v1.engine import EngineCoreRequest

from device_service.description import ModelDescription
from device_service.submission import Submission
from ttserve.errors import Reason, TTServeError, invalid_field, unsupported

MAX_REQUEST_ID_BYTES = 256
MAX_TEXT_BYTES = 1024


@dataclass(frozen=True, slots=True)
class Subject:
    """A submission under examination, and the model that is to serve it."""

    submission: Submission
    model: ModelDescription

    @property
    def request(self) -> EngineCoreRequest:
        """What is asked for."""
        return self.submission.request

    @property
    def prompt(self) -> list[int]:
        """The prompt; empty where there is none."""
        return self.request.prompt_token_ids or []

    @property
    def params(self) -> SamplingParams:
        """How tokens are to be chosen; the codec always sets it."""
        params = self.request.sampling_params
        assert params is not None
        return params


@dataclass(frozen=True, slots=True)
class TokenIds:
    """A field that holds token ids: each below the vocabulary, at most `most`."""

    field: str
    ids: Callable[[Subject], Iterable[int]]
    most: int | None = None


TOKEN_IDS = (
    TokenIds("prompt_token_ids", lambda s: s.prompt),
    TokenIds("stop.stop_token_ids", lambda s: s.params.stop_token_ids or (), 1024),
    TokenIds("stop.min_tokens_masked_ids", lambda s: s.params.all_stop_token_ids, 2048),
    TokenIds("stop.eos_token_id", lambda s: _optional(s.params.eos_token_id)),
    TokenIds("sampling.logit_bias", lambda s: s.params.logit_bias or (), 4096),
    TokenIds("sampling.allowed_token_ids", lambda s: s.params.allowed_token_ids or ()),
    TokenIds(
        "sampling.bad_words",
        lambda s: chain.from_iterable(s.params.bad_words_token_ids or ()),
        16384,
    ),
    TokenIds(
        "logprobs.token_ids",
        lambda s: s.params.logprob_token_ids or (),
        MAX_LOGPROB_TOKEN_IDS,
    ),
)


def check_names(subject: Subject) -> None:
    """Ids and free texts are present where needed, and short."""
    request = subject.request
    size = len(request.request_id.encode())
    if not 1 <= size <= MAX_REQUEST_ID_BYTES:
        raise invalid_field(
            "request_id",
            f"request_id must have 1 to {MAX_REQUEST_ID_BYTES} bytes, not {size}",
        )
    texts = {
        "external_request_id": subject.submission.external_request_id,
        "cache_salt": request.cache_salt or "",
    }
    for field, text in texts.items():
        if len(text.encode()) > MAX_TEXT_BYTES:
            raise invalid_field(
                field, f"{field} must have at most {MAX_TEXT_BYTES} bytes"
            )


def check_prompt(subject: Subject) -> None:
    """There is a prompt."""
    if not subject.prompt:
        raise invalid_field(
            "prompt_token_ids", "prompt_token_ids must hold at least one token"
        )


def check_lists(subject: Subject) -> None:
    """Lists that may be given may not be given empty."""
    allowed = subject.params.allowed_token_ids
    if allowed is not None and not allowed:
        raise invalid_field(
            "sampling.allowed_token_ids",
            "allowed_token_ids must hold at least one token where it is set",
        )
    if not all(subject.params.bad_words_token_ids or ()):
        raise invalid_field("sampling.bad_words", "a bad word has no token")


def check_token_ids(subject: Subject) -> None:
    """Every token id is in the vocabulary, no list is longer than its bound."""
    vocab_size = subject.model.vocab_size
    for entry in TOKEN_IDS:
        ids = list(entry.ids(subject))
        if entry.most is not None and len(ids) > entry.most:
            raise invalid_field(
                entry.field,
                f"{entry.field} holds {len(ids)} token ids; at most {entry.most} "
                "are taken",
            )
        if ids and max(ids) >= vocab_size:  # on the wire there is nothing below 0
            wrong = next(token_id for token_id in ids if token_id >= vocab_size)
            raise TTServeError(
                Reason.INVALID_FIELD,
                f"{entry.field} holds token id {wrong}, but the vocabulary has "
                f"{vocab_size} tokens",
                metadata={
                    "field": entry.field,
                    "tokenId": str(wrong),
                    "vocabSize": str(vocab_size),
                },
            )


def check_length(subject: Subject) -> None:
    """Prompt and output fit the model's context and, alone, the KV cache."""
    model = subject.model
    prompt_tokens = len(subject.prompt)
    output_tokens = subject.params.max_tokens or 0
    limit = min(model.max_sequence_tokens, model.kv_cache.usable_tokens)
    if prompt_tokens + output_tokens > limit:
        raise TTServeError(
            Reason.PROMPT_TOO_LONG,
            f"the prompt has {prompt_tokens} tokens and max_output_tokens is "
            f"{output_tokens}: {prompt_tokens + output_tokens} tokens, but a "
            f"sequence has at most {limit}",
            metadata={
                "promptTokens": str(prompt_tokens),
                "maxOutputTokens": str(output_tokens),
                "maxSequenceTokens": str(limit),
            },
        )


def check_logprobs(subject: Subject) -> None:
    """Not more log probabilities than the model's settings allow."""
    count, most = subject.params.logprobs, subject.model.limits.max_logprobs
    if count is not None and not 0 <= count <= most:
        raise invalid_field(
            "logprobs.top_count", f"top_count must be 0 to {most}, not {count}"
        )


def check_scheduling(subject: Subject) -> None:
    """One output per request; a priority only where there are priorities."""
    if subject.params.n != 1:
        raise unsupported("n", "a submission asks for one output")
    policy = subject.model.scheduling.policy
    if subject.request.priority != 0 and policy != "priority":
        raise unsupported(
            "priority",
            f"priority must be 0 with {policy} scheduling, "
            f"not {subject.request.priority}",
        )


def check_grammar_size(subject: Subject) -> None:
    """A schema or grammar is small enough to be compiled in reasonable time."""
    constraint = subject.params.structured_outputs
    if constraint is None:
        return
    texts = [
        constraint.json,
        constraint.regex,
        constraint.grammar,
        constraint.structural_tag,
        *(constraint.choice or ()),
    ]
    size = sum(len(text.encode()) for text in texts if isinstance(text, str))
    most = subject.model.limits.max_grammar_bytes
    if size > most:
        raise invalid_field(
            "structured_output",
            f"the grammar has {size} bytes; at most {most} are compiled",
        )


def check_group(subject: Subject) -> None:
    """The children of one request can all be queued at the same time."""
    group, model = subject.submission.group, subject.model
    most = model.scheduling.total_rows + model.limits.max_queued_requests
    if group is not None and group.count > most:
        raise invalid_field(
            "group.count",
            f"{group.count} children are more than can ever be queued ({most})",
        )


CHECKS: tuple[Callable[[Subject], None], ...] = (
    check_names,
    check_prompt,
    check_lists,
    check_token_ids,
    check_length,
    check_logprobs,
    check_scheduling,
    check_grammar_size,
    check_group,
)


def check(submission: Submission, model: ModelDescription) -> None:
    """Refuse a submission that this model cannot serve."""
    subject = Subject(submission, model)
    for rule in CHECKS:
        rule(subject)


def _optional(value: int | None) -> tuple[int, ...]:
    return () if value is None else (value,)
