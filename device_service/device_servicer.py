"""The Device service: each call is checked, done, and its error translated.

Attach and Generate get their messages unparsed, because parsing a long prompt
is not the event loop's work; hence the handlers are registered here and not by
the generated function, which would parse first.
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import closing
from typing import Any

import grpc

from device_service.codec.model import model_message
from device_service.codec.outputs import generate_response
from device_service.generate import GenerateCall, prepare_generate
from device_service.records import AbortCause
from device_service.rpc import Context, metadata, or_abort, trace_context
from device_service.serving import Serving
from device_service.session import Session, Wire
from ttserve.errors import Reason, TTServeError
from ttserve.protocol import DEVICE_SERVICE, PROTOCOL_MINOR
from ttserve.v1 import device_pb2

logger = logging.getLogger(__name__)


class DeviceServicer:
    """ttserve.v1.Device over what the service can do at the moment."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving

    def handler(self) -> grpc.GenericRpcHandler[Any, Any]:
        """What `grpc.aio.Server.add_generic_rpc_handlers` takes."""
        return grpc.method_handlers_generic_handler(
            DEVICE_SERVICE,
            {
                "Attach": grpc.stream_stream_rpc_method_handler(
                    self.attach,
                    response_serializer=device_pb2.AttachResponse.SerializeToString,
                ),
                "Generate": grpc.unary_stream_rpc_method_handler(
                    self.generate,
                    response_serializer=device_pb2.GenerateResponse.SerializeToString,
                ),
                "GetModel": grpc.unary_unary_rpc_method_handler(
                    self.get_model,
                    request_deserializer=device_pb2.GetModelRequest.FromString,
                    response_serializer=device_pb2.GetModelResponse.SerializeToString,
                ),
                "GetTokenizer": grpc.unary_stream_rpc_method_handler(
                    self.get_tokenizer,
                    request_deserializer=device_pb2.GetTokenizerRequest.FromString,
                    response_serializer=device_pb2.GetTokenizerResponse.SerializeToString,
                ),
                "Abort": grpc.unary_unary_rpc_method_handler(
                    self.abort,
                    request_deserializer=device_pb2.AbortRequest.FromString,
                    response_serializer=device_pb2.AbortResponse.SerializeToString,
                ),
            },
        )

    async def attach(self, requests: AsyncIterator[bytes], context: Context) -> None:
        """Serve a frontend for as long as its stream lasts."""
        await or_abort(context, self._attach(requests, context))

    async def generate(self, data: bytes, context: Context) -> None:
        """Run one request and stream what it produces."""
        await or_abort(context, self._generate(data, context))

    async def get_model(
        self, request: device_pb2.GetModelRequest, context: Context
    ) -> device_pb2.GetModelResponse:
        """Describe the model."""
        return await or_abort(context, self._get_model())

    async def get_tokenizer(
        self, request: device_pb2.GetTokenizerRequest, context: Context
    ) -> None:
        """Stream the tokenizer bundle."""
        await or_abort(context, self._get_tokenizer(context))

    async def abort(
        self, request: device_pb2.AbortRequest, context: Context
    ) -> device_pb2.AbortResponse:
        """Abort a request of any stream."""
        return await or_abort(context, self._abort(request.request_id))

    async def _attach(self, requests: AsyncIterator[bytes], context: Context) -> None:
        sessions = self._serving.sessions
        most = self._serving.options.max_sessions
        if len(sessions) >= most:
            raise TTServeError(
                Reason.QUEUE_FULL, f"{most} sessions are open already", retry_after=1.0
            )
        number = self._serving.next_session_number()
        wire = Wire(peer=context.peer(), requests=requests, write=context.write)
        session = sessions[number] = Session(number, wire, self._serving)
        closed = session.closed
        # The stubs describe a client's callback; a server's gets the context.
        context.add_done_callback(lambda _: closed.set())  # type: ignore[arg-type]
        why = "the frontend left"
        try:
            error = await session.run()
            if error is not None:
                why = error.message
                raise error.with_traceback(None)  # many sessions may end with it
        finally:
            self._serving.forget(session)
            if session.frontend_name:
                logger.info(
                    "session %d: %s ends: %s", number, session.frontend_name, why
                )

    async def _generate(self, data: bytes, context: Context) -> None:
        external_id = metadata(context, "x-request-id")
        try:
            candidate = await prepare_generate(
                data, self._serving, external_id, trace_context(context)
            )
            call = GenerateCall([candidate], self._serving.require_open().admission)
            call.begin()
        except TTServeError as error:
            self._serving.journal.refuse(error, external_request_id=external_id)
            raise
        with closing(call):
            finished = False
            while not finished:
                piece = await call.take()
                for delta in piece.deltas.values():
                    await context.write(generate_response(delta, piece.step_number))
                    finished = delta.finish is not None

    async def _get_model(self) -> device_pb2.GetModelResponse:
        description = self._serving.require_model().description
        return device_pb2.GetModelResponse(
            model=model_message(description),
            instance_id=self._serving.instance_id,
            protocol_minor=PROTOCOL_MINOR,
        )

    async def _get_tokenizer(self, context: Context) -> None:
        for file in self._serving.require_model().bundle.files:
            announced = device_pb2.BundleFile(
                name=file.name, size=len(file.data), sha256=file.sha256
            )
            await context.write(device_pb2.GetTokenizerResponse(file=announced))
            for piece in file.pieces():
                await context.write(device_pb2.GetTokenizerResponse(data=piece))

    async def _abort(self, request_id: str) -> device_pb2.AbortResponse:
        admission = self._serving.require_engine().admission
        found = request_id in admission
        if found:
            admission.abort([request_id], AbortCause.INSPECTOR)
        return device_pb2.AbortResponse(found=found)
