"""One OpenTelemetry span per request, open for as long as the request is.

vLLM makes its `llm_request` span when a request has finished. What the device
service does would then have nothing to stand below, so here the span begins
with the request and its context goes down the wire. Name and attributes are
vLLM's.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Span, SpanKind, Status, StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from vllm.tracing import SpanAttributes
from vllm.v1.engine import EngineCoreRequest, FinishReason
from vllm.v1.engine.output_processor import RequestState
from vllm.v1.metrics.stats import RequestStateStats

_CONTEXT = TraceContextTextMapPropagator()


class RequestSpans:
    """The open spans by request id. Event loop only."""

    def __init__(self, tracer: trace.Tracer) -> None:
        self._tracer = tracer
        self._open: dict[str, Span] = {}

    def __len__(self) -> int:
        return len(self._open)

    def begin(self, request: EngineCoreRequest) -> None:
        """Open a span below the client's, if it has one; the request's trace
        context is that of the span from now on.
        """
        span = self._tracer.start_span(
            "llm_request",
            context=_CONTEXT.extract(dict(request.trace_headers or {}), Context()),
            kind=SpanKind.SERVER,
            start_time=int(request.arrival_time * 1e9),
        )
        carrier: dict[str, str] = {}
        _CONTEXT.inject(carrier, trace.set_span_in_context(span, Context()))
        request.trace_headers = carrier
        self._open[request.request_id] = span

    def finish(self, state: RequestState, reason: FinishReason | None) -> None:
        """A request has ended by itself."""
        span = self._open.pop(state.request_id, None)
        if span is None:
            return
        span.set_attributes(_attributes(state))
        if reason is FinishReason.ERROR:
            span.set_status(Status(StatusCode.ERROR))
        span.end()

    def abort(self, request_ids: Iterable[str]) -> None:
        """Requests have been given up: the client has left, or they were refused."""
        for request_id in request_ids:
            span = self._open.pop(request_id, None)
            if span is not None:
                span.set_status(Status(StatusCode.ERROR, "aborted"))
                span.end()


def _attributes(state: RequestState) -> dict[str, Any]:
    """vLLM's, as far as they are known; times need its statistics of requests."""
    asked = {
        SpanAttributes.GEN_AI_REQUEST_TOP_P: state.top_p,
        SpanAttributes.GEN_AI_REQUEST_MAX_TOKENS: state.max_tokens_param,
        SpanAttributes.GEN_AI_REQUEST_TEMPERATURE: state.temperature,
        SpanAttributes.GEN_AI_REQUEST_N: state.n,
    }
    return {
        SpanAttributes.GEN_AI_REQUEST_ID: state.external_req_id,
        SpanAttributes.GEN_AI_USAGE_PROMPT_TOKENS: len(state.prompt_token_ids or ()),
        **{name: value for name, value in asked.items() if value is not None},
        **({} if state.stats is None else _times(state.stats)),
    }


def _times(stats: RequestStateStats) -> dict[str, Any]:
    produced = stats.num_generation_tokens
    tokens = {SpanAttributes.GEN_AI_USAGE_COMPLETION_TOKENS: produced}
    if not produced:
        return tokens
    scheduled, first, last = (
        stats.scheduled_ts,
        stats.first_token_ts,
        stats.last_token_ts,
    )
    return tokens | {
        SpanAttributes.GEN_AI_LATENCY_TIME_TO_FIRST_TOKEN: stats.first_token_latency,
        SpanAttributes.GEN_AI_LATENCY_TIME_IN_QUEUE: scheduled - stats.queued_ts,
        SpanAttributes.GEN_AI_LATENCY_TIME_IN_MODEL_PREFILL: first - scheduled,
        SpanAttributes.GEN_AI_LATENCY_TIME_IN_MODEL_DECODE: last - first,
        SpanAttributes.GEN_AI_LATENCY_TIME_IN_MODEL_INFERENCE: last - scheduled,
    }
