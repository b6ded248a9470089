"""An OpenTelemetry collector that keeps what it is sent."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.collector.trace.v1.trace_service_pb2_grpc import (
    TraceServiceServicer,
    add_TraceServiceServicer_to_server,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class Collector(TraceServiceServicer):
    """Spans by the service that sent them."""

    def __init__(self) -> None:
        self.endpoint = ""
        self._spans: list[tuple[str, Span]] = []
        self._lock = threading.Lock()

    def Export(
        self, request: ExportTraceServiceRequest, context: Any
    ) -> ExportTraceServiceResponse:
        with self._lock:
            for resource in request.resource_spans:
                names = {
                    a.key: a.value.string_value for a in resource.resource.attributes
                }
                for scope in resource.scope_spans:
                    self._spans += [(names["service.name"], s) for s in scope.spans]
        return ExportTraceServiceResponse()

    def of_trace(self, trace_id: str) -> list[tuple[str, Span]]:
        """Who sent which span of a trace."""
        with self._lock:
            return [(who, s) for who, s in self._spans if s.trace_id.hex() == trace_id]


@contextlib.contextmanager
def collector() -> Iterator[Collector]:
    """A collector on a port of its own."""
    made = Collector()
    server = grpc.server(ThreadPoolExecutor(2))
    add_TraceServiceServicer_to_server(made, server)  # type: ignore[no-untyped-call]
    port = server.add_insecure_port("127.0.0.1:0")
    made.endpoint = f"http://127.0.0.1:{port}"
    server.start()
    try:
        yield made
    finally:
        server.stop(None).wait()


def attributes(span: Span) -> dict[str, Any]:
    """The attributes of a span, as Python values."""
    found = {}
    for attribute in span.attributes:
        kind = attribute.value.WhichOneof("value")
        assert kind is not None
        found[attribute.key] = getattr(attribute.value, kind)
    return found
