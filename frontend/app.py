"""vLLM's OpenAI server, composed of the parts that make sense here.

vLLM's `build_app` mounts everything it has and decides by task; a frontend
generates text and keeps no state, so the routers are named one by one and what
they bring beyond `SERVED_PATHS` is left out.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import inspect
from contextlib import AsyncExitStack
from importlib.metadata import version
from typing import Any, cast

from fastapi import APIRouter, FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.middleware.cors import CORSMiddleware
from starlette.routing import BaseRoute, Route
from vllm.entrypoints.anthropic import api_router as messages
from vllm.entrypoints.launchers.api_server.app_state import init_app_state
from vllm.entrypoints.launchers.utils.server_utils import lifespan
from vllm.entrypoints.openai.chat_completion import api_router as chat
from vllm.entrypoints.openai.completion import api_router as completions
from vllm.entrypoints.openai.models import api_router as models
from vllm.entrypoints.openai.responses import api_router as responses
from vllm.entrypoints.serve.exception_handling.register import init_exception_handler
from vllm.entrypoints.serve.instrumentator import metrics, offline_docs
from vllm.entrypoints.serve.tokenize import api_router as tokenize

import ttserve
from frontend.config import HttpConfig, Tls
from frontend.engine.build import Engine
from frontend.engine.client import TASKS
from frontend.engine.deltas import keeping_logprobs
from frontend.engine.failures import quieten_expected_failures
from frontend.http.auth import ApiKeys
from frontend.http.body import Check, JsonBody
from frontend.http.checks import Served, checks
from frontend.http.context import InFlight, RequestContext
from frontend.http.envelope import ErrorEnvelope
from frontend.http.first_error import REQUESTS, FirstError
from frontend.http.health import Readiness, health_routes
from frontend.http.keep_alive import KeepAlive
from frontend.http.server import HttpServer
from frontend.http.sizes import check_sizes
from frontend.http.streams import HeldStreams
from frontend.http.turns import OneATurn
from frontend.inspect.page import inspect_routes
from frontend.inspect.relay import Relays
from ttserve.errors import StartupError
from ttserve.tokens import Tokens
from ttserve.v1.model_pb2 import Model

SERVED_PATHS = frozenset(
    {
        "/v1/chat/completions",
        "/v1/completions",
        "/v1/messages",
        "/v1/messages/count_tokens",
        "/v1/models",
        "/v1/responses",
        "/tokenize",
        "/detokenize",
        "/tokenizer_info",
        "/health",
        "/live",
        "/ready",
        "/metrics",
        "/version",
        "/openapi.json",
        "/docs",
        "/docs/oauth2-redirect",
        "/redoc",
        "/static",
    }
)
"""What may be mounted beside the page; docs and tokenizer info depend on options."""


async def build_app(
    engine: Engine,
    config: HttpConfig,
    readiness: Readiness,
    in_flight: InFlight,
    relays: Relays,
) -> FastAPI:
    """The app with its state, ready to be served within its lifespan."""
    arguments = engine.arguments
    app = FastAPI(
        title="ttserve",
        version=ttserve.__version__,
        lifespan=lifespan,
        root_path=arguments.root_path or "",
        **_docs_options(arguments),
    )
    app.state.args = arguments
    # vLLM's error handler would stop the server through this; see is_running.
    app.state.server = argparse.Namespace(should_exit=False)
    _mount(app, readiness, config.api_keys)
    if config.inspect_page:
        app.router.routes.extend(inspect_routes(relays))
    init_exception_handler(app)
    _wrap(app, arguments, config, in_flight, served(engine.model))
    arguments.sse_keep_alive_interval = 0  # vLLM's own; ours is around it
    await init_app_state(engine.llm, app.state, arguments, TASKS)
    chat_serving = app.state.openai_serving_chat
    if chat_serving.parser_cls is not None:
        chat_serving.parser_cls = keeping_logprobs(chat_serving.parser_cls)
    quieten_expected_failures()
    return app


def refresh_certificates(server: HttpServer, tls: Tls, stack: AsyncExitStack) -> None:
    """Reload the certificate whenever its files change, if that was asked for."""
    context = server.config.ssl
    if not tls.refresh or context is None:
        return
    from vllm.entrypoints.launchers.utils.ssl import SSLCertRefresher

    refresher = SSLCertRefresher(context, tls.keyfile, tls.certfile, tls.ca_certs)
    stack.callback(refresher.stop)


def served(model: Model) -> Served:
    """What the checks of requests have to know of the model."""
    rows = model.scheduling.lanes * model.scheduling.rows_per_lane
    return Served(
        vocab_size=model.vocab_size,
        max_model_len=model.max_sequence_tokens,
        max_logprobs=model.limits.max_logprobs,
        max_sequences=rows + model.limits.max_queued_requests,
        priorities=model.scheduling.policy == "priority",
        disable_any_whitespace=model.settings.disable_any_whitespace,
    )


def _docs_options(arguments: argparse.Namespace) -> dict[str, Any]:
    if arguments.disable_fastapi_docs:
        return {"openapi_url": None, "docs_url": None, "redoc_url": None}
    if arguments.enable_offline_docs:
        return {"docs_url": None, "redoc_url": None}
    return {}


def _mount(app: FastAPI, readiness: Readiness, keys: Tokens) -> None:
    for part in (chat, completions, responses, messages, models, tokenize):
        part.attach_router(app)
    offline_docs.attach_router(app)
    app.include_router(_version_router(readiness))
    app.router.routes.extend(health_routes(readiness, keys))
    routes = [
        route
        for route in app.router.routes
        if getattr(route, "path", None) in SERVED_PATHS
    ]
    app.router.routes[:] = [_unhurried(app, route) for route in routes]


def _unhurried(app: FastAPI, route: BaseRoute) -> BaseRoute:
    """Let the API's description be made beside the event loop: it takes seconds."""
    if getattr(route, "path", None) != app.openapi_url:
        return route
    one_at_a_time = asyncio.Lock()

    async def describe(request: Request) -> JSONResponse:
        async with one_at_a_time:
            return JSONResponse(await asyncio.to_thread(app.openapi))

    return Route(str(app.openapi_url), describe, include_in_schema=False)


def _version_router(readiness: Readiness) -> APIRouter:
    router = APIRouter()

    @router.get("/version")
    async def show_version(request: Request) -> JSONResponse:
        versions = {"version": version("vllm"), "ttserve": ttserve.__version__}
        return JSONResponse(versions | readiness.details())

    return router


def _wrap(
    app: FastAPI,
    arguments: argparse.Namespace,
    config: HttpConfig,
    in_flight: InFlight,
    limits: Served,
) -> None:
    """Put the wrappers around the routes, innermost first."""
    for path in arguments.middleware:
        _add_by_name(app, path)
    app.add_middleware(KeepAlive, seconds=arguments.sse_keep_alive_interval)
    app.add_middleware(HeldStreams)
    body_checks = {
        path: _in_order(path, check, limits) for path, check in checks(limits).items()
    }
    app.add_middleware(JsonBody, max_bytes=config.max_body_bytes, checks=body_checks)
    app.add_middleware(OneATurn)
    app.add_middleware(ErrorEnvelope)
    # Mounts /metrics as well, and counts answers as the client gets them.
    metrics.attach_router(app)
    app.add_middleware(ApiKeys, keys=config.api_keys)
    app.add_middleware(RequestContext, in_flight=in_flight)
    app.add_middleware(
        CORSMiddleware,
        allow_origins=arguments.allowed_origins,
        allow_credentials=arguments.allow_credentials,
        allow_methods=arguments.allowed_methods,
        allow_headers=arguments.allowed_headers,
    )


def _in_order(path: str, check: Check, served: Served) -> Check:
    """What a body may hold, then ask for, then whether vLLM could read it."""
    first_error = FirstError(REQUESTS[path])

    def in_order(fields: dict[str, Any]) -> None:
        check_sizes(fields, served.max_model_len)
        check(fields)
        first_error.check(fields)

    return in_order


def _add_by_name(app: FastAPI, path: str) -> None:
    module, _, name = path.rpartition(".")
    try:
        found: Any = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise StartupError(f"--middleware {path}: {error}") from error
    if isinstance(found, type):
        app.add_middleware(cast(Any, found))
    elif inspect.iscoroutinefunction(found):
        app.middleware("http")(found)
    else:
        raise StartupError(f"--middleware {path} is neither a class nor a coroutine")
