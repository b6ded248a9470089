"""Errors at the edge of an RPC: the only place where a call is aborted."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import Any, TypeVar

import grpc

from ttserve.errors import Reason, TTServeError
from ttserve.status import to_grpc_status

logger = logging.getLogger(__name__)

T = TypeVar("T")
Context = grpc.aio.ServicerContext[Any, Any]


async def or_abort(context: Context, work: Awaitable[T]) -> T:
    """Await the work; what it raises becomes the status of the call.

    `abort` raises an ordinary Exception, so it stands outside the `try`, where
    nothing can mistake it for another failure.
    """
    try:
        return await work
    except TTServeError as error:
        failure = error
    except Exception as error:  # the top of a call: a defect ends this call only
        logger.exception("defect in a call")
        failure = TTServeError(Reason.INTERNAL, f"defect: {error!r}")
    status = to_grpc_status(failure)
    return await context.abort(status.code, status.details, status.trailing_metadata)
