"""The app on the metrics port: numbers and health, no key, nothing else."""

from __future__ import annotations

from prometheus_client import make_asgi_app
from starlette.applications import Starlette
from starlette.routing import Mount

from frontend.http.health import Readiness, health_routes


def metrics_app(readiness: Readiness) -> Starlette:
    """/metrics of this process, beside the health endpoints."""
    # A mount alone would redirect /metrics to /metrics/.
    numbers = make_asgi_app()
    return Starlette(
        routes=[
            *health_routes(readiness),
            Mount("/metrics", numbers),
        ]
    )
