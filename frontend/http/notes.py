"""What one HTTP request knows about itself, for code that never sees it.

vLLM's handlers call the engine client without the HTTP request. A context
variable reaches through: every task that serves a request inherits it.
"""

from __future__ import annotations

import contextvars
from dataclasses import dataclass

from ttserve.errors import TTServeError


@dataclass(slots=True)
class Notes:
    """`request_id` is the client's x-request-id, or one made up for it.

    `failure` is the last error of the service that the request met.
    """

    request_id: str
    failure: TTServeError | None = None


_current: contextvars.ContextVar[Notes | None] = contextvars.ContextVar(
    "ttserve_http_notes", default=None
)


def begin_notes(request_id: str) -> Notes:
    """Start the notes of an HTTP request, in its own context."""
    notes = Notes(request_id)
    _current.set(notes)
    return notes


def current_notes() -> Notes:
    """Those of the HTTP request that is being served; fresh ones outside of one."""
    return _current.get() or Notes("")


def note_failure(error: TTServeError) -> None:
    """Remember why the request that is being served fails."""
    current_notes().failure = error
