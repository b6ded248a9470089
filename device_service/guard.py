"""Where calls on the gRPC port are let through or refused."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio

from device_service.access import Access
from device_service.rpc import Context, Continuation, Handler, or_abort
from ttserve.errors import TTServeError

HEADER = "authorization"


class Guard(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # not generic
    """Refuses calls that may not be made, before a byte of them is parsed."""

    def __init__(self, access: Access) -> None:
        self._access = access

    async def intercept_service(
        self,
        continuation: Continuation,
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Any:
        """Let the call through, or give it a handler that only refuses."""
        header = ""
        for name, value in handler_call_details.invocation_metadata or ():
            if name == HEADER and isinstance(value, str):
                header = value
        refusal = self._access.refusal(handler_call_details.method, header)
        if refusal is None:
            return await continuation(handler_call_details)
        return _refusing(refusal)


def _refusing(refusal: TTServeError) -> Handler:
    """A handler for calls of every arity: it ends before it reads."""

    async def refuse(requests: object, context: Context) -> None:
        await or_abort(context, _raise(refusal))

    return grpc.stream_stream_rpc_method_handler(refuse)


async def _raise(error: TTServeError) -> None:
    raise error
