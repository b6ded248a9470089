"""Long bodies are validated up to their first bad item.

Pydantic validates every item of a list, tries every member of a union for each, and
keeps every error: a body of 41 KB can have 700,000, which take half a minute of
the event loop to make and to write down.
"""

from __future__ import annotations

from typing import Any, cast

from pydantic import TypeAdapter
from pydantic_core import CoreSchema, SchemaValidator, ValidationError
from vllm.entrypoints.anthropic.protocol import (
    AnthropicCountTokensRequest,
    AnthropicMessagesRequest,
)
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.entrypoints.openai.responses.protocol import ResponsesRequest
from vllm.entrypoints.serve.tokenize.protocol import DetokenizeRequest, TokenizeRequest

from frontend.http.errors import BadField
from frontend.http.sizes import Size

FEW_VALUES = 32
"""A body with no more is left to vLLM, whose messages say more."""

REQUESTS: dict[str, Any] = {
    "/v1/completions": CompletionRequest,
    "/v1/chat/completions": ChatCompletionRequest,
    "/v1/responses": ResponsesRequest,
    "/v1/messages": AnthropicMessagesRequest,
    "/v1/messages/count_tokens": AnthropicCountTokensRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}
"""What vLLM reads the body of a path as."""

_COLLECTIONS = ("list", "tuple", "set", "frozenset", "dict")


class FirstError:
    """Says whether vLLM could read a body, and what is wrong first."""

    def __init__(self, kind: Any) -> None:
        """`kind` is a type that pydantic knows."""
        schema = _failing_fast(TypeAdapter(kind).core_schema)
        self._validator = SchemaValidator(cast(CoreSchema, schema))

    def check(self, fields: dict[str, Any]) -> None:
        """Raise BadField for the first bad item of a long body.

        Changes `fields` as vLLM's own validators do.
        """
        if Size.of(fields).values <= FEW_VALUES:
            return
        try:
            self._validator.validate_python(fields)
        except ValidationError as error:
            raise _bad_field(error, fields) from error
        except Exception:  # noqa: BLE001 - vLLM's validators raise it again and answer it
            return


def _failing_fast(node: Any) -> Any:
    """A copy of a core schema whose collections stop at their first bad item."""
    if isinstance(node, dict):
        copy = {key: _failing_fast(value) for key, value in node.items()}
        return copy | {"fail_fast": True} if node.get("type") in _COLLECTIONS else copy
    if isinstance(node, list | tuple):
        return type(node)(map(_failing_fast, node))
    return node


def _bad_field(error: ValidationError, fields: dict[str, Any]) -> BadField:
    """The members of a union that want no list at all do not say which item it is."""
    errors = error.errors(include_url=False, include_context=False, include_input=False)
    places = [found["loc"] for found in errors]
    place = next(filter(_index, places), places[0])
    # Before the field there may be a name of pydantic's for a member of a union.
    field = next((str(step) for step in place if step in fields), "body")
    one = len(errors) == 1
    reason = (
        f"is wrong: {errors[0]['msg']}" if one else "has no form that is known here"
    )
    return BadField(field, f"{field}{_index(place)} {reason}")


def _index(place: tuple[int | str, ...]) -> str:
    return next((f"[{step}]" for step in place if isinstance(step, int)), "")
