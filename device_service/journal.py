"""What becomes of requests: counted for metrics, said in the log, traced.

Event loop only. A line names the request twice: by the id that the client knows,
and by the one under which step records and the Inspector have it.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Mapping

from device_service.records import (
    AbortCause,
    Admitted,
    Finish,
    RequestHistory,
    RequestUpdate,
    SessionStats,
)
from ttserve.errors import Reason, TTServeError
from ttserve.trace_context import trace_id

logger = logging.getLogger(__name__)

OnEnd = Callable[[Admitted, Finish, RequestHistory], None]


class RequestJournal:
    """One per device service.

    `log_requests` raises its lines from DEBUG to INFO. `on_end` is told of every
    admitted request's end.
    """

    def __init__(
        self, *, log_requests: bool = False, on_end: OnEnd | None = None
    ) -> None:
        self._level = logging.INFO if log_requests else logging.DEBUG
        self._on_end = on_end
        self.finished: Counter[str] = Counter()
        self.refused: Counter[Reason] = Counter()
        self.prefix_queries = 0
        self.prefix_hits = 0

    def admit(self, admitted: Admitted) -> None:
        """A request is in the engine's inbox."""
        if logger.isEnabledFor(self._level):
            request = admitted.request
            self._say(
                _names(admitted),
                "admitted: %d prompt tokens, session %d",
                request.num_prompt_tokens,
                admitted.session_number,
            )

    def refuse(
        self, error: TTServeError, request_id: str = "", external_request_id: str = ""
    ) -> None:
        """A request was not admitted; its ids as far as they are known."""
        self.refused[error.reason] += 1
        if logger.isEnabledFor(self._level):
            names = {"request_id": external_request_id, "engine_request_id": request_id}
            self._say(names, "refused: %s: %s", error.reason.name, error.message)

    def step(self, stats: SessionStats) -> None:
        """A step did something for one submitter."""
        self.prefix_queries += stats.prefix_queries
        self.prefix_hits += stats.prefix_hits

    def end(self, admitted: Admitted, last: RequestUpdate) -> None:
        """An admitted request has had its final update."""
        finish, history = last.finish, last.history
        assert finish is not None
        assert history is not None
        how = outcome(finish)
        self.finished[how] += 1
        if logger.isEnabledFor(self._level):
            how = how if finish.error is None else f"{how} ({finish.error.message})"
            self._say(
                _names(admitted),
                "finished: %s; %d tokens, %d steps, lane %d, %d preemptions, %.3f s",
                how,
                history.output_tokens,
                history.steps,
                history.lane,
                history.preemptions,
                history.ended - history.queued,
            )
        if self._on_end is not None:
            self._on_end(admitted, finish, history)

    def _say(self, names: Mapping[str, str], text: str, *values: object) -> None:
        logger.log(
            self._level,
            "request %s [%s] " + text,  # noqa: G003 - the text is a literal
            names["request_id"] or "-",
            names["engine_request_id"] or "-",
            *values,
            extra=names,
        )


def outcome(finish: Finish) -> str:
    """How a request ended, in one word.

    One that a frontend took back because a stop string had matched has finished.
    """
    if finish.abort_cause is AbortCause.STOP_STRING:
        return "stop"
    return finish.kind.value


def _names(admitted: Admitted) -> dict[str, str]:
    request = admitted.request
    return {
        "request_id": admitted.external_request_id,
        "engine_request_id": request.request_id,
        "trace_id": trace_id(request.trace_headers),
    }
