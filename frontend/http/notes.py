"""What one HTTP request knows about itself, for code that never sees it.

vLLM's handlers call the engine client without the HTTP request. A context
variable reaches through: every task that serves a request inherits it.
"""

from __future__ import annotations

import contextvars
from collections.abc import Mapping
from dataclasses import dataclass, field

from ttserve.errors import TTServeError


@dataclass(slots=True)
class Notes:
    """`request_id` is the client's x-request-id, or one made up for it, and
    `trace_headers` its W3C trace context, empty without one.

    `failure` is the last error of the service that the request met.
    """

    request_id: str
    trace_headers: Mapping[str, str] = field(default_factory=dict)
    failure: TTServeError | None = None


_current: contextvars.ContextVar[Notes | None] = contextvars.ContextVar(
    "ttserve_http_notes", default=None
)


def begin_notes(
    request_id: str, trace_headers: Mapping[str, str] | None = None
) -> Notes:
    """Start the notes of an HTTP request, in its own context."""
    notes = Notes(request_id, trace_headers or {})
    _current.set(notes)
    return notes


def current_notes() -> Notes:
    """Those of the HTTP request that is being served; fresh ones outside of one."""
    return _current.get() or Notes("")


def note_failure(error: TTServeError) -> None:
    """Remember why the request that is being served fails."""
    current_notes().failure = error
