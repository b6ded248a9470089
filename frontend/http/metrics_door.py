"""The app on the metrics port: numbers and health, no key, nothing else.

It is for operators: a network that is not theirs must not reach it.
"""

from __future__ import annotations

from prometheus_client import CONTENT_TYPE_LATEST, generate_latest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from frontend.http.health import Readiness, health_routes
from ttserve.tokens import Tokens


def metrics_app(readiness: Readiness) -> Starlette:
    """/metrics of this process, beside the health endpoints."""

    async def get_metrics(request: Request) -> Response:
        return Response(generate_latest(), media_type=CONTENT_TYPE_LATEST)

    metrics = Route("/metrics", get_metrics, methods=["GET"])
    return Starlette(routes=[*health_routes(readiness, Tokens()), metrics])
