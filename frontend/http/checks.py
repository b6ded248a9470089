"""What a request may ask for, checked on its JSON before vLLM reads it.

vLLM checks most of it too, but accepts some fields and ignores them, names no
parameter in many of its errors, and does some work before it refuses. Types are
left to vLLM, but for those that its validators trip over: a check here passes over
what is not of the type it is about.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from frontend.http.errors import BadField

Fields = Mapping[str, Any]

MAX_CHOICES = 128
MAX_STOP_STRINGS = 4
MAX_REQUEST_ID = 128
MAX_PROMPTS = 1024
INT32 = 2**31


@dataclass(frozen=True, slots=True)
class Served:
    """What the loaded model allows; only what checks need.

    `max_sequences` is how many can run and wait together: of more, some are
    always refused.
    """

    vocab_size: int
    max_model_len: int
    max_logprobs: int
    max_sequences: int
    priorities: bool
    disable_any_whitespace: bool


@dataclass(frozen=True, slots=True)
class Range:
    """The numbers that a field may have; `above` excludes the lower bound."""

    low: float
    high: float = math.inf
    above: bool = False

    def check(self, field: str, value: object) -> None:
        """Refuse a number outside the range; anything but a number passes."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return
        inside = self.low <= value <= self.high and math.isfinite(value)
        if not inside or (self.above and value == self.low):
            raise BadField(field, f"{field} must be {self}, not {value}")

    def __str__(self) -> str:
        least = f"more than {self.low}" if self.above else f"at least {self.low}"
        return least if self.high == math.inf else f"{least} and at most {self.high}"


RANGES = {
    "temperature": Range(0, 2),
    "top_p": Range(0, 1, above=True),
    "top_k": Range(-1, INT32 - 1),
    "min_p": Range(0, 1),
    "presence_penalty": Range(-2, 2),
    "frequency_penalty": Range(-2, 2),
    "repetition_penalty": Range(0, above=True),
    "n": Range(1, MAX_CHOICES),
    "min_tokens": Range(0),
    "seed": Range(-(2**63), 2**63 - 1),
}

_UNSERVED: dict[str, tuple[object, str]] = {
    "use_beam_search": (False, "beam search is not supported"),
    "suffix": ("", "suffix is not supported: the models complete, they do not fill in"),
    "prompt_embeds": (None, "prompt_embeds is not supported: send text or token ids"),
    "prompt_logprobs": (None, "prompt_logprobs is not supported"),
    "kv_transfer_params": (None, "kv_transfer_params is not supported"),
    "ec_transfer_params": (None, "ec_transfer_params is not supported"),
    "vllm_xargs": ({}, "vllm_xargs is not supported"),
    "routed_experts_prompt_start": (0, "routed experts are not returned"),
    "functions": ([], "functions is not supported: use tools"),
    "function_call": ("none", "function_call is not supported: use tool_choice"),
}
"""Fields that ask for something we cannot do, with the value that asks for nothing."""

_TYPES: dict[str, tuple[type, str]] = {
    "messages": (list, "a list"),
    "tools": (list, "a list"),
    "structured_outputs": (dict, "an object"),
}
"""Fields whose type vLLM's validators take for granted."""

_GUIDED = (
    "guided_json",
    "guided_regex",
    "guided_choice",
    "guided_grammar",
    "guided_decoding_backend",
    "guided_whitespace_pattern",
)


def checks(served: Served) -> dict[str, Callable[[dict[str, Any]], None]]:
    """The check of every path that takes a body."""

    def completion(fields: Fields) -> None:
        _check_common(fields, served)
        _check_prompt(fields.get("prompt"), served.vocab_size)
        _check_best_of(fields)
        _check_count(fields, served.max_sequences)
        _check_logprobs(fields, "logprobs", served.max_logprobs)
        if fields.get("echo") and isinstance(fields.get("logprobs"), int):
            raise BadField(
                "logprobs", "logprobs with echo ask for the prompt's: not supported"
            )

    def chat(fields: Fields) -> None:
        _check_common(fields, served)
        _check_messages(fields)
        _check_logprobs(fields, "top_logprobs", served.max_logprobs)
        _check_count(fields, served.max_sequences)

    def response(fields: Fields) -> None:
        _check_common(fields, served)
        if fields.get("background"):
            raise BadField("background", "nothing is kept here to be fetched later")
        _check_logprobs(fields, "top_logprobs", served.max_logprobs)

    def message(fields: Fields) -> None:
        _check_common(fields, served)
        _check_messages(fields)

    def detokenize(fields: Fields) -> None:
        tokens = fields.get("tokens")
        if isinstance(tokens, list) and _is_token_ids(tokens):
            _check_ids(tokens, served.vocab_size, "tokens")

    return {
        "/v1/completions": completion,
        "/v1/chat/completions": chat,
        "/v1/responses": response,
        "/v1/messages": message,
        "/v1/messages/count_tokens": _check_conversation,
        "/tokenize": _check_conversation,
        "/detokenize": detokenize,
    }


def _check_common(fields: Fields, served: Served) -> None:
    for name, allowed in RANGES.items():
        allowed.check(name, fields.get(name))
    for name, (nothing, reason) in _UNSERVED.items():
        if fields.get(name) not in (None, nothing):
            raise BadField(name, reason)
    for name in _GUIDED:
        if fields.get(name) is not None:
            raise BadField(name, f"{name} no longer exists: use structured_outputs")
    _check_types(fields)
    _check_stop(fields)
    _check_min_tokens(fields)
    _check_priority(fields, served)
    _check_whitespace(fields, served)
    request_id = fields.get("request_id")
    if isinstance(request_id, str) and len(request_id.encode()) > MAX_REQUEST_ID:
        raise BadField("request_id", f"request_id has more than {MAX_REQUEST_ID} bytes")


def _check_conversation(fields: Fields) -> None:
    _check_types(fields)
    _check_messages(fields)


def _check_types(fields: Fields) -> None:
    for name, (kind, words) in _TYPES.items():
        value = fields.get(name)
        if value is not None and not isinstance(value, kind):
            raise BadField(name, f"{name} must be {words}")


def _check_stop(fields: Fields) -> None:
    for name in ("stop", "stop_sequences"):
        stop = fields.get(name)
        if isinstance(stop, list) and len(stop) > MAX_STOP_STRINGS:
            raise BadField(
                name, f"{name} has {len(stop)} strings; at most {MAX_STOP_STRINGS} work"
            )
        if stop == "" or (isinstance(stop, list) and "" in stop):
            raise BadField(name, f"{name} must not hold an empty string")


def _check_min_tokens(fields: Fields) -> None:
    least, most = fields.get("min_tokens"), fields.get("max_tokens")
    if isinstance(least, int) and isinstance(most, int) and least > most:
        raise BadField("min_tokens", f"min_tokens={least} is more than {most}")


def _check_priority(fields: Fields, served: Served) -> None:
    priority = fields.get("priority")
    if not isinstance(priority, int) or isinstance(priority, bool):
        return
    if priority and not served.priorities:
        raise BadField(
            "priority",
            "priority needs priority scheduling, and this model is served first come, "
            "first served",
        )
    Range(-INT32, INT32 - 1).check("priority", priority)


def _check_whitespace(fields: Fields, served: Served) -> None:
    """vLLM takes the server's setting and says nothing about the request's."""
    outputs = fields.get("structured_outputs")
    if not isinstance(outputs, dict) or served.disable_any_whitespace:
        return
    if outputs.get("disable_any_whitespace"):
        raise BadField(
            "structured_outputs", "disable_any_whitespace is a setting of the server"
        )


def _check_best_of(fields: Fields) -> None:
    best_of = fields.get("best_of")
    if best_of is not None and best_of != (fields.get("n") or 1):
        raise BadField("best_of", "best_of is not supported: ask for n and choose")


def _check_logprobs(fields: Fields, name: str, most: int) -> None:
    Range(0, most).check(name, fields.get(name))


def _check_count(fields: Fields, most: int) -> None:
    prompt, n = fields.get("prompt"), fields.get("n")
    prompts = (
        len(prompt) if isinstance(prompt, list) and not _is_token_ids(prompt) else 1
    )
    choices = n if isinstance(n, int) else 1
    if prompts * choices > most:
        raise BadField(
            "prompt" if prompts > choices else "n",
            f"{prompts} prompts with n={choices} are {prompts * choices} sequences; "
            f"the device service takes {most} at a time",
        )


def _check_messages(fields: Fields) -> None:
    messages = fields.get("messages")
    if messages is None and "messages" in fields:
        raise BadField("messages", "messages must be a list")
    if messages == []:
        raise BadField("messages", "messages must not be empty")
    for message in messages or ():
        calls = message.get("tool_calls") if isinstance(message, dict) else None
        if calls is not None and not isinstance(calls, list):
            raise BadField("messages", "tool_calls of a message must be a list")


def _check_prompt(prompt: object, vocab_size: int) -> None:
    if prompt is None or prompt in ("", []):
        raise BadField("prompt", "prompt must not be empty")
    if not isinstance(prompt, list):
        return
    if _is_token_ids(prompt):
        _check_ids(prompt, vocab_size)
        return
    if len(prompt) > MAX_PROMPTS:
        raise BadField("prompt", f"prompt is a list of more than {MAX_PROMPTS} prompts")
    for item in prompt:
        if item in ("", []):
            raise BadField("prompt", "prompt holds an empty prompt")
        if isinstance(item, list) and _is_token_ids(item):
            _check_ids(item, vocab_size)


def _is_token_ids(items: list[Any]) -> bool:
    kinds = set(map(type, items))
    return bool(kinds) and kinds <= {int, bool}  # pydantic takes True for 1


def _check_ids(ids: list[int], vocab_size: int, field: str = "prompt") -> None:
    for token_id in (min(ids), max(ids)):
        if not 0 <= token_id < vocab_size:
            raise BadField(
                field,
                f"token id {token_id} is outside the vocabulary of {vocab_size}",
            )
