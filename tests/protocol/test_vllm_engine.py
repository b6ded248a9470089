"""vllm.grpc.engine.VllmEngine: what other gateways call."""

from __future__ import annotations

import asyncio
import copy
import hashlib
import io
import json
import sys
import zipfile
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
import pytest_asyncio
from grpc_health.v1 import health_pb2, health_pb2_grpc

from device_service.records import AbortCause
from device_service.server import DeviceServer
from device_service.serving import ServiceOptions
from tests.support.real_service import BLOCK, RealService, real_service
from tests.support.scripted_engine import scripted_token
from tests.support.vllm_engine import (
    COMMON,
    ENGINE,
    BlockWatcher,
    engine_stub,
    generate,
    request,
)
from tests.support.waiting import eventually
from tests.support.wire import BUNDLE, Endpoint, Service, serving
from ttserve.errors import Reason, StartupError, TTServeError
from ttserve.status import from_rpc_error
from ttserve.v1 import device_pb2, inspector_pb2

pytestmark = pytest.mark.filterwarnings("ignore:max_rollback_tokens is deprecated")

GATEWAY = ServiceOptions(vllm_grpc=True, step_control=True, silence_limit=60.0)
NAME = "vllm.grpc.engine.VllmEngine"


@pytest_asyncio.fixture
async def scripted() -> AsyncIterator[Service]:
    """Over a script, which counts tokens up from the sum of the prompt."""
    async with serving(options=GATEWAY) as service:
        yield service


@pytest_asyncio.fixture
async def real() -> AsyncIterator[RealService]:
    """Over the engine and the sim mesh."""
    async with real_service(options=GATEWAY, decode_ms=1) as service:
        yield service


async def health_of(service: Endpoint) -> int:
    stub = health_pb2_grpc.HealthStub(service.channel())
    answer = await stub.Check(health_pb2.HealthCheckRequest(service=NAME))
    return int(answer.status)


async def refusal(service: Endpoint, message: Any) -> TTServeError:
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await generate(engine_stub(service), message)
    return from_rpc_error(caught.value)


async def test_streamed_tokens_and_then_the_last_ones_again(real: RealService) -> None:
    prompt = [7, 8, 9]
    message = request(prompt, stream=True, temperature=0.0, max_tokens=6)
    chunks, [complete] = await generate(engine_stub(real), message)
    assert [t for c in chunks for t in c.token_ids] == real.expected(prompt, 6)
    assert sum(chunk.completion_tokens for chunk in chunks) == 6
    assert {chunk.prompt_tokens for chunk in chunks} == {3}
    assert complete.output_ids == chunks[-1].token_ids
    assert complete.completion_tokens == len(chunks[-1].token_ids)
    assert complete.finish_reason == "length"
    await real.assert_nothing_is_held()


async def test_everything_at_once(real: RealService) -> None:
    prompt = [5] * 40
    stub = engine_stub(real)
    for cached in (0, 2 * BLOCK):
        message = request(prompt, temperature=0.0, max_tokens=6, logprobs=2)
        chunks, [complete] = await generate(stub, message)
        assert not chunks
        assert list(complete.output_ids) == real.expected(prompt, 6)
        assert (complete.prompt_tokens, complete.completion_tokens) == (40, 6)
        assert complete.cached_tokens == cached
        logprobs = complete.output_logprobs
        assert list(logprobs.token_ids) == real.expected(prompt, 6)
        assert all(len(top.token_ids) == 2 for top in logprobs.top_logprobs)
        # Greedy: what was chosen is the best.
        for chosen, top in zip(
            logprobs.token_logprobs, logprobs.top_logprobs, strict=True
        ):
            assert chosen == top.values[0] >= top.values[1]


async def test_a_prompt_as_text_and_a_grammar(real: RealService) -> None:
    message = request(
        "say it", choice=ENGINE.ChoiceConstraint(choices=["ab"]), max_tokens=9
    )
    _, [complete] = await generate(engine_stub(real), message)
    assert bytes(complete.output_ids[:2]) == b"ab"
    assert complete.prompt_tokens == len("say it")
    message = request([1], regex="[xy]{3}", max_tokens=3, logprobs=5, temperature=0.0)
    _, [complete] = await generate(engine_stub(real), message)
    assert set(bytes(complete.output_ids)) <= set(b"xy")
    values = [v for top in complete.output_logprobs.top_logprobs for v in top.values]
    assert min(values) >= -9999.0


@pytest.mark.parametrize("stream", [True, False])
async def test_stop_strings_end_a_request(real: RealService, stream: bool) -> None:
    expected = real.expected([9], 40)
    text = bytes(expected).decode()
    stop = text[5:8]
    at = text.index(stop) + len(stop)
    message = request(
        [9], stop=["nowhere", stop], temperature=0.0, max_tokens=40, stream=stream
    )
    chunks, [complete] = await generate(engine_stub(real), message)
    tokens = [t for c in chunks for t in c.token_ids] or list(complete.output_ids)
    assert complete.finish_reason == "stop"
    assert complete.matched_stop_str == stop
    assert tokens[:at] == expected[:at]
    await real.assert_nothing_is_held()


async def test_unset_values_are_neutral_and_the_model_s_ends_count(
    scripted: Service,
) -> None:
    """The gateway applies the served defaults itself: it is told them."""
    call = engine_stub(scripted).Generate(request([10], request_id="r"))
    await eventually(lambda: "r" in scripted.engine.jobs)
    params = scripted.engine.jobs["r"].request.sampling_params
    assert params is not None
    assert (params.temperature, params.top_p, params.top_k) == (1.0, 1.0, 0)
    assert (params.max_tokens, params.eos_token_id) == (511, 2)
    assert params.stop_token_ids == [3]
    assert params.seed is None
    call.cancel()


async def test_what_is_set_reaches_the_engine(scripted: Service) -> None:
    message = request(
        [10],
        request_id="r",
        temperature=0.75,
        top_p=0.5,
        top_k=4,
        min_p=0.25,
        frequency_penalty=1.0,
        presence_penalty=-1.0,
        repetition_penalty=2.0,
        max_tokens=9,
        min_tokens=2,
        stop_token_ids=[44],
        ignore_eos=True,
        logit_bias={7: 2.0},
        json_object=True,
        grammar_from_first_token=True,
    )
    call = engine_stub(scripted).Generate(
        message, metadata=[("x-request-id", "from-outside")]
    )
    await eventually(lambda: "r" in scripted.engine.jobs)
    job = scripted.engine.jobs["r"]
    params = job.request.sampling_params
    assert params is not None
    given = (params.top_p, params.top_k, params.min_p, params.repetition_penalty)
    assert given == (0.5, 4, 0.25, 2.0)
    assert (params.frequency_penalty, params.presence_penalty) == (1.0, -1.0)
    assert (params.max_tokens, params.min_tokens) == (9, 2)
    assert (params.stop_token_ids, params.eos_token_id) == ([44], None)
    assert params.logit_bias == {7: 2.0}
    assert params.structured_outputs is not None
    assert params.structured_outputs.json_object
    assert job.admitted.external_request_id == "from-outside"
    call.cancel()


async def test_several_outputs_have_seeds_of_their_own(scripted: Service) -> None:
    call = asyncio.create_task(
        generate(
            engine_stub(scripted),
            request([10], request_id="r", n=3, seed=5, max_tokens=2, stream=True),
        )
    )
    await eventually(lambda: len(scripted.engine.jobs) == 3)
    seeds = [
        job.request.sampling_params.seed
        for job in scripted.engine.jobs.values()
        if job.request.sampling_params is not None
    ]
    assert seeds == [5, 6, 7]
    with scripted.engine.ticking():
        chunks, completes = await call
    assert sorted(complete.index for complete in completes) == [0, 1, 2]
    for index in range(3):
        mine = [t for c in chunks if c.index == index for t in c.token_ids]
        assert mine == [scripted_token([10], 0), scripted_token([10], 1)]


async def test_abort_ends_the_stream_with_an_answer(scripted: Service) -> None:
    stub = engine_stub(scripted)
    call = asyncio.create_task(
        generate(stub, request([10], request_id="r", n=2, stream=True))
    )
    await eventually(lambda: len(scripted.engine.jobs) == 2)
    await stub.Abort(ENGINE.AbortRequest(request_ids=["unknown", "r"]))
    scripted.engine.step()
    _, completes = await call
    assert [complete.finish_reason for complete in completes] == ["abort", "abort"]
    assert {cause for _, cause in scripted.engine.aborts} == {AbortCause.CLIENT}


async def test_a_client_that_leaves_takes_its_request_along(real: RealService) -> None:
    call = engine_stub(real).Generate(request([3], stream=True, ignore_eos=True))
    await call.read()
    call.cancel()
    await real.assert_nothing_is_held()


@pytest.mark.parametrize(
    ("message", "reason", "field"),
    [
        (ENGINE.GenerateRequest(), Reason.INVALID_FIELD, "input"),
        (request([]), Reason.INVALID_FIELD, "prompt_token_ids"),
        (request([1000]), Reason.INVALID_FIELD, "prompt_token_ids"),
        (request([1], temperature=3.0), Reason.INVALID_FIELD, "sampling.temperature"),
        (request([1], n=100), Reason.INVALID_FIELD, "sampling_params.n"),
        (request([1], logprobs=-1), Reason.INVALID_FIELD, "logprobs"),
        (request([1], logprobs=21), Reason.INVALID_FIELD, "logprobs.top_count"),
        (request([1], logit_bias={-1: 1.0}), Reason.INVALID_FIELD, "logit_bias"),
        (request([1], stop=[""]), Reason.INVALID_FIELD, "stop"),
        (request([1], stop=["x"] * 65), Reason.INVALID_FIELD, "stop"),
        (request([1], prompt_logprobs=1), Reason.UNSUPPORTED, "prompt_logprobs"),
        (
            request([1], truncate_prompt_tokens=5),
            Reason.UNSUPPORTED,
            "truncate_prompt_tokens",
        ),
        (
            ENGINE.GenerateRequest(media_refs=ENGINE.MediaRefs()),
            Reason.UNSUPPORTED,
            "media_refs",
        ),
        (
            ENGINE.GenerateRequest(kv_transfer_params_json="{}"),
            Reason.UNSUPPORTED,
            "kv_transfer_params_json",
        ),
        (
            ENGINE.GenerateRequest(data_parallel_rank=0),
            Reason.UNSUPPORTED,
            "data_parallel_rank",
        ),
    ],
)
async def test_refused_by_name(
    scripted: Service, message: Any, reason: Reason, field: str
) -> None:
    error = await refusal(scripted, message)
    assert (error.reason, error.metadata["field"]) == (reason, field)
    assert not scripted.engine.jobs


async def test_too_long_and_in_use_and_broken(scripted: Service) -> None:
    error = await refusal(scripted, request([1] * 512))
    assert error.reason is Reason.PROMPT_TOO_LONG
    first = engine_stub(scripted).Generate(request([10], request_id="r"))
    await eventually(lambda: "r" in scripted.engine.jobs)
    error = await refusal(scripted, request([10], request_id="r", n=2))
    assert error.reason is Reason.REQUEST_ID_IN_USE
    scripted.engine.die(RuntimeError("the mesh is gone"))
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await first.read()
    assert from_rpc_error(caught.value).reason is Reason.MESH_POISONED


async def test_health_says_why_not() -> None:
    service = Service(options=GATEWAY)
    await service.start()
    stub = engine_stub(service)
    answer = await stub.HealthCheck(ENGINE.HealthCheckRequest())
    assert (answer.healthy, answer.message) == (False, "the mesh is still warming up")
    assert await health_of(service) == health_pb2.HealthCheckResponse.NOT_SERVING
    await service.open()
    assert (await stub.HealthCheck(ENGINE.HealthCheckRequest())).healthy
    assert await health_of(service) == health_pb2.HealthCheckResponse.SERVING
    watcher = BlockWatcher(stub)
    await watcher.read()
    await service.server.drain(1.0)
    answer = await stub.HealthCheck(ENGINE.HealthCheckRequest())
    assert (answer.healthy, answer.message) == (
        False,
        "the device service is shutting down",
    )
    with pytest.raises(grpc.aio.AioRpcError) as caught:
        await watcher.read()
    assert from_rpc_error(caught.value).reason is Reason.DRAINING
    await service.close()


async def test_what_the_gateway_is_told(scripted: Service) -> None:
    stub = engine_stub(scripted)
    model = await stub.GetModelInfo(ENGINE.GetModelInfoRequest())
    assert (model.served_model_name, model.max_context_length) == ("tiny", 512)
    assert (model.vocab_size, list(model.eos_token_ids)) == (1000, [2, 3])
    assert json.loads(model.default_sampling_params_json) == {
        "temperature": 0.5,
        "top_k": 7,
    }
    call = stub.Generate(request([10], request_id="r"))
    await eventually(lambda: "r" in scripted.engine.jobs)
    server = await stub.GetServerInfo(ENGINE.GetServerInfoRequest())
    assert (server.active_requests, server.block_size) == (1, 16)
    assert (server.max_num_seqs, server.data_parallel_size) == (8, 1)
    assert server.last_receive_timestamp > 1e9
    call.cancel()


async def test_the_tokenizer_as_an_archive(scripted: Service) -> None:
    chunks = [
        chunk
        async for chunk in engine_stub(scripted).GetTokenizer(
            COMMON.GetTokenizerRequest()
        )
    ]
    data = b"".join(chunk.data for chunk in chunks)
    assert max(len(chunk.data) for chunk in chunks) <= 64 << 10
    assert [chunk.sha256 for chunk in chunks[:-1]] == [""] * (len(chunks) - 1)
    assert chunks[-1].sha256 == hashlib.sha256(data).hexdigest()
    archive = zipfile.ZipFile(io.BytesIO(data))
    assert {n: archive.read(n) for n in archive.namelist()} == {
        file.name: file.data for file in BUNDLE.files
    }


async def test_loads_are_of_now() -> None:
    async with real_service(options=GATEWAY, rig={"rows": 2, "lanes": 2}) as service:
        stub, inspector = engine_stub(service), service.inspector()
        await inspector.Pause(inspector_pb2.PauseRequest())
        calls = [
            stub.Generate(request([n] * 40, max_tokens=30, ignore_eos=True))
            for n in range(1, 6)
        ]
        await eventually_loaded(stub, running=0, waiting=5)
        await inspector.Step(inspector_pb2.StepRequest(count=4))
        answer = await stub.GetLoads(ENGINE.GetLoadsRequest())
        assert [load.dp_rank for load in answer.loads] == [0, 1]
        for load in answer.loads:
            assert load.num_running_reqs == load.max_running_requests == 2
            # 40 tokens of a prompt and some of output are three blocks of 16.
            assert load.num_used_tokens == 2 * 3 * BLOCK
            assert load.token_usage == load.num_used_tokens / load.max_total_num_tokens
            assert load.gen_throughput > 0
        assert sum(load.num_waiting_uncached_tokens for load in answer.loads) == 40
        one = await stub.GetLoads(ENGINE.GetLoadsRequest(dp_rank=1))
        assert [load.dp_rank for load in one.loads] == [1]
        for call in calls:
            call.cancel()
        await inspector.Resume(inspector_pb2.ResumeRequest())
        await eventually_loaded(stub, running=0, waiting=0)


async def eventually_loaded(stub: Any, *, running: int, waiting: int) -> None:
    for _ in range(500):
        loads = (await stub.GetLoads(ENGINE.GetLoadsRequest())).loads
        found = (
            sum(load.num_running_reqs for load in loads),
            sum(load.num_waiting_reqs for load in loads),
        )
        if found == (running, waiting):
            return
        await asyncio.sleep(0.02)
    raise AssertionError(found)


async def test_block_events_foretell_hits_and_can_be_resumed() -> None:
    async with real_service(options=GATEWAY, rig={"num_blocks": 40}) as service:
        stub = engine_stub(service)
        early = BlockWatcher(stub)
        await early.read()
        assert not early.indices[0].entries
        hits = 0
        for turn in range(12):
            prompt = [turn % 4 + 1] * 100 + [turn] * 30
            foretold = early.indices[0].cached_tokens(prompt, BLOCK)
            _, [complete] = await generate(
                stub, request(prompt, max_tokens=20, temperature=0.0)
            )
            assert complete.cached_tokens == foretold
            hits += foretold
            stored = 149 // BLOCK  # the last token is never computed
            tokens = prompt + list(complete.output_ids)
            await caught_up(early, tokens, stored)
            if turn == 5:
                middle = copy.deepcopy(early.indices[0])
        assert hits > 0
        index = early.indices[0]
        late = BlockWatcher(stub)
        await late.read()
        assert late.indices[0].entries == index.entries
        assert index.snapshots == late.indices[0].snapshots == 1
        resumed = BlockWatcher(stub, start=middle.number + 1)
        resumed.indices = [middle]
        while middle.number < index.number:
            await resumed.read()
        assert middle.entries == index.entries
        assert middle.snapshots == 1  # its first: it got events and no new snapshot
        inspector = service.inspector()
        await inspector.ResetPrefixCache(inspector_pb2.ResetPrefixCacheRequest())
        for watcher in (early, late, resumed):
            await watcher.read()
            assert not watcher.indices[0].entries


async def caught_up(watcher: BlockWatcher, tokens: list[int], blocks: int) -> None:
    """Read until the blocks of a finished request have been told."""
    index = watcher.indices[0]
    while index.cached_tokens(tokens, BLOCK) < blocks * BLOCK:
        await asyncio.wait_for(watcher.read(), 10)


async def test_off_unless_asked_for() -> None:
    async with serving() as service:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await engine_stub(service).HealthCheck(ENGINE.HealthCheckRequest())
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert service.server.on_block_events is None
        answer = await service.device().GetModel(device_pb2.GetModelRequest())
        assert answer.model.served_names


async def test_methods_that_are_not_served(scripted: Service) -> None:
    stub = engine_stub(scripted)
    for call in (
        stub.Embed(ENGINE.EmbedRequest()),
        stub.FlushCache(COMMON.FlushCacheRequest()),
        stub.StartProfile(COMMON.StartProfileRequest()),
        stub.StopProfile(COMMON.StopProfileRequest()),
    ):
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call
        assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_without_its_messages_the_launch_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "smg_grpc_proto", None)
    monkeypatch.delitem(sys.modules, "device_service.gateway.servicer", raising=False)
    with pytest.raises(StartupError, match=r"install ttserve\[gateway\]"):
        DeviceServer("127.0.0.1:0", GATEWAY)
