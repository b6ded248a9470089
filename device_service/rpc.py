"""Errors at the edge of an RPC: the only place where a call is aborted."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeAlias, TypeVar

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from ttserve.errors import Reason, TTServeError, invalid_field
from ttserve.status import to_grpc_status
from ttserve.trace_context import trace_headers

logger = logging.getLogger(__name__)

T = TypeVar("T")
Context = grpc.aio.ServicerContext[Any, Any]
Handler: TypeAlias = "grpc.RpcMethodHandler[Any, Any]"
Continuation: TypeAlias = (
    "Callable[[grpc.HandlerCallDetails], Awaitable[Handler | None]]"
)


async def or_abort(context: Context, work: Awaitable[T]) -> T:
    """Await the work; what it raises becomes the status of the call.

    `abort` raises an ordinary Exception, so it stands outside the `try`, where
    nothing can mistake it for another failure. What a defect says stays in the
    log: the caller may be anybody.
    """
    try:
        return await work
    except grpc.aio.AbortError:  # the call has its status
        raise
    except TTServeError as error:
        failure = error
    except Exception:  # the top of a call: a defect ends this call only
        logger.exception("defect in a call")
        failure = TTServeError(
            Reason.INTERNAL, "internal error: see the device service's log"
        )
    status = to_grpc_status(failure)
    return await context.abort(status.code, status.details, status.trailing_metadata)


class Containment(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # not generic
    """Gives every failure of every service a status that shows no internals.

    gRPC's own answer to an exception is UNKNOWN with the exception's text, also
    where a message cannot be parsed. Messages are parsed here for that reason.
    All handlers are asynchronous.
    """

    async def intercept_service(
        self,
        continuation: Continuation,
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Wrap the handler of one call."""
        handler = await continuation(handler_call_details)
        return None if handler is None else _contained(handler)


def _contained(handler: Handler) -> Handler:
    parse = handler.request_deserializer or (lambda data: data)
    make, behaviour = _shape(handler)

    async def run(request: Any, context: Context) -> Any:
        return await or_abort(context, serve(request, context))

    async def serve(request: Any, context: Context) -> Any:
        if handler.request_streaming:
            # Without a parser of gRPC's there is nothing to put in between.
            streamed = handler.request_deserializer is not None
            given = _parsed(request, parse) if streamed else request
        else:
            given = _parse(parse, request)
        if not handler.response_streaming:
            return await behaviour(given, context)
        answers = behaviour(given, context)
        if not hasattr(answers, "__aiter__"):
            return await answers
        async for answer in answers:
            await context.write(answer)
        return None

    return make(run, response_serializer=handler.response_serializer)


def _shape(handler: Any) -> tuple[Callable[..., Handler], Callable[..., Any]]:
    """How to make a handler of this one's arity, and what this one does."""
    match handler.request_streaming, handler.response_streaming:
        case False, False:
            return grpc.unary_unary_rpc_method_handler, handler.unary_unary
        case False, True:
            return grpc.unary_stream_rpc_method_handler, handler.unary_stream
        case True, False:
            return grpc.stream_unary_rpc_method_handler, handler.stream_unary
        case _:
            return grpc.stream_stream_rpc_method_handler, handler.stream_stream


async def _parsed(
    pieces: AsyncIterator[bytes], parse: Callable[[bytes], T]
) -> AsyncIterator[T]:
    async for piece in pieces:
        yield _parse(parse, piece)


def _parse(parse: Callable[[bytes], T], data: bytes) -> T:
    try:
        return parse(data)
    except DecodeError as error:
        raise invalid_field("request", "the message cannot be parsed") from error


def metadata(context: Context, key: str) -> str:
    """A text that came with the call; "" where there is none."""
    for name, value in context.invocation_metadata() or ():
        if name == key and isinstance(value, str):
            return value
    return ""


def trace_context(context: Context) -> dict[str, str]:
    """The W3C trace context that came with the call; empty without one."""
    pairs = context.invocation_metadata() or ()
    return trace_headers((n, value) for n, value in pairs if isinstance(value, str))
