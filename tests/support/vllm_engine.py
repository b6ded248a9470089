"""A client of vllm.grpc.engine.VllmEngine, as a gateway is one."""

from __future__ import annotations

from typing import Any

from smg_grpc_proto import vllm_engine_pb2, vllm_engine_pb2_grpc
from smg_grpc_proto.generated import common_pb2

from tests.support.block_index import BlockIndex
from tests.support.wire import Endpoint

ENGINE = vllm_engine_pb2
COMMON = common_pb2


def engine_stub(endpoint: Endpoint) -> Any:
    """The stub over a channel of its own."""
    return vllm_engine_pb2_grpc.VllmEngineStub(endpoint.channel())


def request(prompt: list[int] | str, **fields: Any) -> Any:
    """A GenerateRequest; `request_id` and `stream` are its own, the rest sampling."""
    own = {
        name: fields.pop(name) for name in ("request_id", "stream") if name in fields
    }
    message = ENGINE.GenerateRequest(
        sampling_params=ENGINE.SamplingParams(**fields), **own
    )
    if isinstance(prompt, str):
        message.text = prompt
    else:
        message.tokenized.input_ids.extend(prompt)
    return message


async def generate(stub: Any, message: Any) -> tuple[list[Any], list[Any]]:
    """Chunks and completes of a call, each in order."""
    chunks, completes = [], []
    async for response in stub.Generate(message):
        if response.WhichOneof("response") == "chunk":
            chunks.append(response.chunk)
        else:
            completes.append(response.complete)
    return chunks, completes


class BlockWatcher:
    """Follows SubscribeKvEvents; an index per lane."""

    def __init__(self, stub: Any, lanes: int = 1, start: int = 0) -> None:
        self.call = stub.SubscribeKvEvents(
            COMMON.SubscribeKvEventsRequest(start_sequence_number=start)
        )
        self.indices = [BlockIndex(number=max(0, start - 1)) for _ in range(lanes)]

    async def read(self) -> None:
        """Take the next batch."""
        batch = await self.call.read()
        self.indices[batch.dp_rank].take(batch)
