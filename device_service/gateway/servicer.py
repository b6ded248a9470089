"""vllm.grpc.engine.VllmEngine over what the service can do at the moment.

Methods that are not here (Embed, FlushCache, StartProfile, StopProfile) are
UNIMPLEMENTED, which gRPC itself answers.
"""

from __future__ import annotations

import asyncio
import time
import uuid
from contextlib import closing
from functools import partial
from typing import Any

import grpc
from smg_grpc_proto import vllm_engine_pb2
from smg_grpc_proto.generated import common_pb2

from device_service.gateway import SERVICE, answers
from device_service.gateway.block_feed import BlockFeed
from device_service.gateway.block_messages import batch_message
from device_service.gateway.requests import GatewayCall, read_call
from device_service.gateway.responses import ChoiceResponses
from device_service.gateway.tokenizer_archive import TokenizerArchive
from device_service.generate import GenerateCall
from device_service.records import AbortCause
from device_service.rpc import Context, metadata, or_abort
from device_service.serving import Serving
from ttserve.errors import Reason, TTServeError


class VllmEngineServicer:
    """Event loop only; `feed.post` takes what the engine's thread tells."""

    def __init__(self, serving: Serving) -> None:
        self._serving = serving
        self.feed = BlockFeed()
        self._calls: dict[str, GenerateCall] = {}
        self._archive: asyncio.Future[TokenizerArchive] | None = None
        self._last_call = 0.0

    def handler(self) -> grpc.GenericRpcHandler[Any, Any]:
        """What `grpc.aio.Server.add_generic_rpc_handlers` takes."""
        return grpc.method_handlers_generic_handler(
            SERVICE,
            {
                # Unparsed: to parse a long prompt is not the event loop's work.
                "Generate": grpc.unary_stream_rpc_method_handler(
                    self.generate, response_serializer=_serialize
                ),
                "Abort": _unary(self.abort, vllm_engine_pb2.AbortRequest),
                "HealthCheck": _unary(
                    self.health_check, vllm_engine_pb2.HealthCheckRequest
                ),
                "GetModelInfo": _unary(
                    self.get_model_info, vllm_engine_pb2.GetModelInfoRequest
                ),
                "GetServerInfo": _unary(
                    self.get_server_info, vllm_engine_pb2.GetServerInfoRequest
                ),
                "GetLoads": _unary(self.get_loads, vllm_engine_pb2.GetLoadsRequest),
                "GetTokenizer": _stream(
                    self.get_tokenizer, common_pb2.GetTokenizerRequest
                ),
                "SubscribeKvEvents": _stream(
                    self.subscribe_kv_events, common_pb2.SubscribeKvEventsRequest
                ),
            },
        )

    async def generate(self, data: bytes, context: Context) -> None:
        """Run a request and write what its outputs produce."""
        await or_abort(context, self._generate(data, context))

    async def abort(self, request: Any, context: Context) -> Any:
        """End calls; each still gets its `complete`. Unknown ids are ignored."""
        for request_id in request.request_ids:
            call = self._calls.get(request_id)
            if call is not None:
                call.abort(AbortCause.CLIENT)
        return vllm_engine_pb2.AbortResponse()

    async def health_check(self, request: Any, context: Context) -> Any:
        """Whether a call would be taken, and why not; always answers."""
        try:
            self._serving.require_open()
        except TTServeError as error:
            return vllm_engine_pb2.HealthCheckResponse(
                healthy=False, message=error.message
            )
        return vllm_engine_pb2.HealthCheckResponse(healthy=True, message="serving")

    async def get_model_info(self, request: Any, context: Context) -> Any:
        """Describe the model."""
        return await or_abort(context, self._get_model_info())

    async def get_server_info(self, request: Any, context: Context) -> Any:
        """Describe the service."""
        return await or_abort(context, self._get_server_info())

    async def get_loads(self, request: Any, context: Context) -> Any:
        """The load of every lane, between two steps."""
        return await or_abort(context, self._get_loads(request))

    async def get_tokenizer(self, request: Any, context: Context) -> None:
        """Stream the tokenizer archive."""
        await or_abort(context, self._get_tokenizer(context))

    async def subscribe_kv_events(self, request: Any, context: Context) -> None:
        """Stream what the prefix caches hold, until the client leaves."""
        await or_abort(context, self._subscribe_kv_events(request, context))

    async def _generate(self, data: bytes, context: Context) -> None:
        self._last_call = time.time()
        external_id = metadata(context, "x-request-id")
        try:
            asked, call = await self._begin(data, external_id)
        except TTServeError as error:
            self._serving.journal.refuse(error, external_request_id=external_id)
            raise
        self._calls[asked.request_id] = call
        try:
            with closing(call):
                await _write_all(asked, call, context)
        finally:
            del self._calls[asked.request_id]

    async def _begin(
        self, data: bytes, external_id: str
    ) -> tuple[GatewayCall, GenerateCall]:
        """Check a call in a worker thread and queue what it asks for."""
        admission = self._serving.require_open().admission
        names = (f"gateway-{uuid.uuid4().hex}", external_id)
        read = partial(read_call, data, self._serving.require_model(), admission, names)
        asked = await asyncio.get_running_loop().run_in_executor(
            self._serving.checkers, read
        )
        if asked.request_id in self._calls:
            raise TTServeError(
                Reason.REQUEST_ID_IN_USE,
                f"a live call has the id {asked.request_id!r}",
                metadata={"requestId": asked.request_id},
            )
        call = GenerateCall([choice.candidate for choice in asked.choices], admission)
        call.begin()
        return asked, call

    async def _get_model_info(self) -> Any:
        return answers.model_info(self._serving.require_model())

    async def _get_server_info(self) -> Any:
        running = self._serving.require_engine()
        state = await running.answer(running.engine.snapshot())
        return answers.server_info(
            self._serving.require_model().description,
            active=len(running.admission),
            paused=state.paused,
            last=self._last_call,
            uptime=self._serving.uptime_seconds,
        )

    async def _get_loads(self, request: Any) -> Any:
        running = self._serving.require_engine()
        state = await running.answer(running.engine.snapshot())
        wanted = request.dp_rank if request.HasField("dp_rank") else None
        return answers.loads(
            self._serving.require_model().description,
            [lane for lane in state.lanes if wanted in (None, lane.lane)],
            running.engine.step_log.newest(answers.THROUGHPUT_STEPS),
            time.time(),
        )

    async def _get_tokenizer(self, context: Context) -> None:
        bundle = self._serving.require_model().bundle
        if self._archive is None:
            self._archive = asyncio.get_running_loop().run_in_executor(
                self._serving.checkers, TokenizerArchive.of, bundle
            )
        # Shared: a caller that leaves must not cancel it for the others.
        archive = await asyncio.shield(self._archive)
        for chunk in archive.chunks():
            await context.write(chunk)

    async def _subscribe_kv_events(self, request: Any, context: Context) -> None:
        self._serving.require_engine()
        lanes = self._serving.require_model().description.scheduling.lanes
        reader = self.feed.follow(lanes, request.start_sequence_number)
        while True:
            for lane, batch in await reader.read():
                await context.write(batch_message(lane, batch))


async def _write_all(asked: GatewayCall, call: GenerateCall, context: Context) -> None:
    """Write messages until every output of the call is complete."""
    outputs = {
        choice.candidate.handle: ChoiceResponses(asked, choice)
        for choice in asked.choices
    }
    while not all(output.complete for output in outputs.values()):
        piece = await call.take()
        for handle, delta in piece.deltas.items():
            output = outputs[handle]
            for message in output.add(delta):
                await context.write(message)
            if output.matched is not None:
                call.abort(AbortCause.STOP_STRING, handle)


def _unary(method: Any, request: Any) -> grpc.RpcMethodHandler[Any, Any]:
    return grpc.unary_unary_rpc_method_handler(
        method,
        request_deserializer=request.FromString,
        response_serializer=_serialize,
    )


def _stream(method: Any, request: Any) -> grpc.RpcMethodHandler[Any, Any]:
    return grpc.unary_stream_rpc_method_handler(
        method,
        request_deserializer=request.FromString,
        response_serializer=_serialize,
    )


def _serialize(message: Any) -> bytes:
    data: bytes = message.SerializeToString()
    return data
