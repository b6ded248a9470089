"""Generate, GetModel, GetTokenizer: what people and gateways call."""

from __future__ import annotations

import asyncio
import hashlib
from typing import Any

import grpc
import pytest

from device_service.records import AbortCause
from tests.support.scripted_engine import scripted_token
from tests.support.waiting import eventually
from tests.support.wire import BUNDLE, Service, serving
from ttserve.errors import Reason, TTServeError
from ttserve.protocol import PROTOCOL_MINOR
from ttserve.status import from_rpc_error
from ttserve.v1 import device_pb2, generation_pb2, step_pb2


async def refusal(service: Service, **request: Any) -> TTServeError:
    """How a Generate call is refused."""
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        async for _ in service.device().Generate(device_pb2.GenerateRequest(**request)):
            pass
    return from_rpc_error(caught.value)


async def test_one_prompt_token_is_a_valid_call(service: Service) -> None:
    call = service.device().Generate(device_pb2.GenerateRequest(prompt_token_ids=[1]))
    with service.engine.ticking():
        responses = [response async for response in call]
    tokens = [token for response in responses for token in response.token_ids]
    # The script counts up; 2 is one of the model's own end-of-sequence ids.
    assert tokens == [2]
    assert responses[-1].finish.reason == step_pb2.FINISH_REASON_STOP
    assert responses[0].cached_prompt_tokens == 0
    assert responses[0].HasField("cached_prompt_tokens")
    assert responses[0].step_number == 1


@pytest.mark.feature(154)
async def test_unset_values_take_the_served_defaults(service: Service) -> None:
    call = service.device().Generate(
        device_pb2.GenerateRequest(
            prompt_token_ids=[10],
            request_id="r",
            sampling=generation_pb2.Sampling(top_p=0.5),
        )
    )
    await eventually(lambda: "r" in service.engine.jobs)
    params = service.engine.jobs["r"].request.sampling_params
    assert params is not None
    assert params.temperature == 0.5
    assert params.top_k == 7
    assert params.top_p == 0.5
    assert params.min_p == 0.0
    assert params.repetition_penalty == 1.0
    assert params.max_tokens == 511
    assert params.eos_token_id == 2
    assert params.stop_token_ids == [3]
    assert params.seed is None
    call.cancel()


async def test_generate_as_told(service: Service) -> None:
    call = service.device().Generate(
        device_pb2.GenerateRequest(
            prompt_token_ids=[1],
            sampling=generation_pb2.Sampling(temperature=0.0),
            stop=generation_pb2.StopRules(max_output_tokens=5),
            ignore_eos=True,
            logprobs=generation_pb2.LogprobsRequest(top_count=1),
        )
    )
    with service.engine.ticking():
        responses = [response async for response in call]
    tokens = [token for response in responses for token in response.token_ids]
    assert tokens == [scripted_token([1], i) for i in range(5)]
    assert sum(len(response.logprobs) for response in responses) == 5
    assert responses[-1].finish.reason == step_pb2.FINISH_REASON_LENGTH


async def test_cancel_aborts_the_request(service: Service) -> None:
    call = service.device().Generate(
        device_pb2.GenerateRequest(prompt_token_ids=[10], request_id="r")
    )
    await eventually(lambda: "r" in service.engine.jobs)
    service.engine.step()
    await call.read()
    call.cancel()
    await eventually(lambda: service.engine.aborts == [("r", AbortCause.CLIENT)])


async def test_finished_request_is_not_aborted(service: Service) -> None:
    call = service.device().Generate(device_pb2.GenerateRequest(prompt_token_ids=[1]))
    with service.engine.ticking():
        assert [response async for response in call]
    await asyncio.sleep(0.05)
    assert not service.engine.aborts


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        ({}, "prompt_token_ids"),
        ({"prompt_token_ids": [1000]}, "prompt_token_ids"),
        (
            {
                "prompt_token_ids": [1],
                "sampling": generation_pb2.Sampling(temperature=float("nan")),
            },
            "sampling.temperature",
        ),
        (
            {
                "prompt_token_ids": [1],
                "ignore_eos": True,
                "stop": generation_pb2.StopRules(eos_token_id=5),
            },
            "ignore_eos",
        ),
    ],
)
async def test_refused_with_a_status(
    service: Service, request_: dict[str, Any], field: str
) -> None:
    error = await refusal(service, **request_)
    assert error.reason is Reason.INVALID_FIELD
    assert error.metadata["field"] == field


async def test_prompt_that_fills_the_context(service: Service) -> None:
    error = await refusal(service, prompt_token_ids=[1] * 512)
    assert error.reason is Reason.PROMPT_TOO_LONG


async def test_12_mb_is_invalid_argument(service: Service) -> None:
    error = await refusal(service, prompt_token_ids=[2**31] * 2_400_000)
    assert error.reason is Reason.INVALID_FIELD
    assert error.metadata["maxSubmissionBytes"] == str(1 << 20)


async def test_queue_full_says_when_to_come_back() -> None:
    async with serving(rows_per_lane=1, max_queued_requests=0) as service:
        first = service.device().Generate(
            device_pb2.GenerateRequest(prompt_token_ids=[10], request_id="r")
        )
        await eventually(lambda: "r" in service.engine.jobs)
        error = await refusal(service, prompt_token_ids=[10])
        assert error.reason is Reason.QUEUE_FULL
        assert error.retry_after == 1.0
        first.cancel()


async def test_gateway_request_id_is_recorded(service: Service) -> None:
    call = service.device().Generate(
        device_pb2.GenerateRequest(prompt_token_ids=[10], request_id="r"),
        metadata=[("x-request-id", "from-the-gateway")],
    )
    await eventually(lambda: "r" in service.engine.jobs)
    assert service.engine.jobs["r"].admitted.external_request_id == "from-the-gateway"
    call.cancel()


async def test_get_model(service: Service) -> None:
    answer = await service.device().GetModel(device_pb2.GetModelRequest())
    assert answer.instance_id == service.server.instance_id
    assert answer.protocol_minor == PROTOCOL_MINOR
    model = answer.model
    assert model.max_sequence_tokens == 512
    assert model.generation_defaults_json == '{"temperature": 0.5, "top_k": 7}'
    assert model.capabilities.max_device_top_k == 32
    assert model.limits.max_grammar_bytes == 64 << 10


async def test_get_tokenizer_announces_files_before_their_bytes(
    service: Service,
) -> None:
    files: dict[str, bytes] = {}
    announced: dict[str, device_pb2.BundleFile] = {}
    name = ""
    async for part in service.device().GetTokenizer(device_pb2.GetTokenizerRequest()):
        if part.WhichOneof("part") == "file":
            name = part.file.name
            announced[name] = part.file
            files[name] = b""
        else:
            assert len(part.data) <= 262144
            files[name] += part.data
    assert files == {file.name: file.data for file in BUNDLE.files}
    for name, file in announced.items():
        assert file.size == len(files[name])
        assert file.sha256 == hashlib.sha256(files[name]).hexdigest()
