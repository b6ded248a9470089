"""Whether an HTTP request brings a valid API key."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import Scope

from ttserve.tokens import Tokens, bearer


def has_key(scope: Scope, keys: Tokens) -> bool:
    """Whether it has one of the keys, or none is asked for.

    `Authorization: Bearer KEY`, or Anthropic's `x-api-key: KEY`.
    """
    if not keys:
        return True
    headers = Headers(scope=scope)
    return keys.accept(
        bearer(headers.get("authorization", "")) or headers.get("x-api-key", "")
    )
