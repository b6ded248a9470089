"""Spans of requests for OpenTelemetry, below those of the frontend.

    llm_request (the frontend's)
      device_request      from admission to the end
        queue             until the first row
        prefill           until the first token
        decode            until the end

A request is told of once, when it has ended; its spans are made on a thread of
their own, so neither the engine nor the event loop pays for them. Whether a trace
is recorded is its root's decision (`traceparent`), or OTEL_TRACES_SAMPLER's.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import Attributes
from vllm.tracing.otel import get_span_exporter
from vllm.tracing.utils import SpanAttributes

from device_service.journal import outcome
from device_service.records import Admitted, Finish, RequestHistory

LAST_EXPORT_MS = 1000
"""How long the last spans may take to be sent when the service ends."""


class RequestTracer:
    """Turns ended requests into spans. Event loop."""

    def __init__(self, provider: TracerProvider) -> None:
        self._provider = provider
        self._tracer = provider.get_tracer("ttserve.device_service")
        self._thread = ThreadPoolExecutor(1, "spans")

    @classmethod
    def to(cls, endpoint: str) -> RequestTracer:
        """Send spans to an OTLP collector, over gRPC unless
        OTEL_EXPORTER_OTLP_TRACES_PROTOCOL says otherwise.
        """
        provider = TracerProvider()
        provider.add_span_processor(BatchSpanProcessor(get_span_exporter(endpoint)))
        return cls(provider)

    def ended(
        self, admitted: Admitted, finish: Finish, history: RequestHistory
    ) -> None:
        """A request has ended; costs a queue's put."""
        epoch = time.time() - time.monotonic()
        self._thread.submit(self._emit, admitted, finish, history, epoch)

    def close(self) -> None:
        """Send what is left; may take seconds where nobody answers."""
        self._thread.shutdown(wait=True)
        self._provider.force_flush(LAST_EXPORT_MS)

    def _emit(
        self, admitted: Admitted, finish: Finish, history: RequestHistory, epoch: float
    ) -> None:
        """Make the spans; `epoch` turns monotonic seconds into those since 1970."""

        def ns(seconds: float) -> int:
            return int((seconds + epoch) * 1e9)

        headers = admitted.request.trace_headers or {}
        parent = TraceContextTextMapPropagator().extract(headers, Context())
        span = self._tracer.start_span(
            "device_request",
            context=parent,
            kind=SpanKind.SERVER,
            attributes=_attributes(admitted, finish, history),
            start_time=ns(history.queued),
        )
        inside = set_span_in_context(span, Context())
        for name, begin, end in _phases(history):
            part = self._tracer.start_span(name, context=inside, start_time=ns(begin))
            part.end(ns(end))
        if finish.error is not None:
            span.set_status(Status(StatusCode.ERROR, finish.error.message))
        span.end(ns(history.ended))


def _phases(history: RequestHistory) -> Iterator[tuple[str, float, float]]:
    """As far as the request has come; the last one ends with it."""
    scheduled, first, ended = history.scheduled, history.first_token, history.ended
    yield "queue", history.queued, ended if scheduled is None else scheduled
    if scheduled is not None:
        yield "prefill", scheduled, ended if first is None else first
    if first is not None:
        yield "decode", first, ended


def _attributes(
    admitted: Admitted, finish: Finish, history: RequestHistory
) -> Attributes:
    return {
        SpanAttributes.GEN_AI_REQUEST_ID: admitted.external_request_id,
        SpanAttributes.GEN_AI_USAGE_PROMPT_TOKENS: admitted.request.num_prompt_tokens,
        SpanAttributes.GEN_AI_USAGE_COMPLETION_TOKENS: history.output_tokens,
        "ttserve.engine_request_id": admitted.request.request_id,
        "ttserve.session": admitted.session_number,
        "ttserve.lane": history.lane,
        "ttserve.steps": history.steps,
        "ttserve.preemptions": history.preemptions,
        "ttserve.finish_reason": outcome(finish),
    }
