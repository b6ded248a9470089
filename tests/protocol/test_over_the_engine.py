"""The protocol over the real engine, on its thread, and the sim mesh.

What every request must produce is a pure function of its prompt, so a mistake
anywhere between the wire and the paged cache changes tokens.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest

from tests.support.real_service import BLOCK, RealService, real_service
from ttserve.errors import Reason
from ttserve.status import from_status
from ttserve.v1 import device_pb2, generation_pb2, inspector_pb2, step_pb2

pytestmark = pytest.mark.filterwarnings("ignore:max_rollback_tokens is deprecated")


def prompts(count: int, longest: int = 120) -> list[list[int]]:
    draw = random.Random(count)
    return [
        [draw.randrange(1, 250) for _ in range(draw.randrange(1, longest))]
        for _ in range(count)
    ]


async def test_tokens_are_right_through_two_frontends_and_generate() -> None:
    async with real_service() as service:
        frontends = [await service.attach("a"), await service.attach("b")]
        work = prompts(40)
        handles: list[dict[int, list[int]]] = [{}, {}]
        for number, prompt in enumerate(work):
            side = number % 2
            handle = await frontends[side].submit(
                request_id=f"r-{number}",
                prompt_token_ids=prompt,
                stop__max_output_tokens=20,
            )
            handles[side][handle] = prompt
        call = service.device().Generate(
            device_pb2.GenerateRequest(
                prompt_token_ids=[7, 8, 9],
                sampling=generation_pb2.Sampling(temperature=0.0),
                stop=generation_pb2.StopRules(max_output_tokens=20),
            )
        )
        generated = [token async for part in call for token in part.token_ids]
        assert generated == service.expected([7, 8, 9], 20)
        for client, mine in zip(frontends, handles, strict=True):
            outputs = await client.outputs(*mine)
            for handle, prompt in mine.items():
                assert outputs[handle].token_ids == service.expected(prompt, 20)
                report = outputs[handle].prefill
                assert report is not None
                assert report.prompt_tokens == len(prompt)
        await service.assert_nothing_is_held()


async def test_second_request_finds_its_prefix_in_the_cache() -> None:
    async with real_service() as service:
        client = await service.attach()
        prompt = prompts(1)[0] + [1] * 70
        for cached in (0, len(prompt) // BLOCK * BLOCK):
            handle = await client.submit(prompt_token_ids=prompt)
            output = (await client.outputs(handle))[handle]
            assert output.token_ids == service.expected(prompt, 4)
            assert output.prefill is not None
            assert output.prefill.cached_tokens == cached


async def test_logprobs_and_grammar() -> None:
    async with real_service() as service:
        client = await service.attach()
        handle = await client.submit(
            logprobs=generation_pb2.LogprobsRequest(top_count=3),
            structured_output=generation_pb2.StructuredOutput(regex="[ab]{6}"),
            stop__max_output_tokens=6,
        )
        output = (await client.outputs(handle))[handle]
        assert output.finish is not None
        assert set(output.token_ids) <= {ord("a"), ord("b")}
        assert len(output.logprobs) == len(output.token_ids) == 6
        assert all(len(entry.top_token_ids) == 3 for entry in output.logprobs)
        await service.assert_nothing_is_held()


async def test_grammar_that_cannot_be_compiled_is_an_error_in_band() -> None:
    async with real_service() as service:
        client = await service.attach()
        handle = await client.submit(
            structured_output=generation_pb2.StructuredOutput(json_schema="{nonsense")
        )
        message = await client.read()
        if message.WhichOneof("event") == "accepted":
            output = (await client.outputs(handle))[handle]
            assert output.finish is not None
            error = from_status(output.finish.error)
        else:
            error = from_status(message.rejected.status)
        assert error.consequence.http_status == 400
        await service.assert_nothing_is_held()


async def test_failed_step_fails_its_requests_and_the_service_goes_on() -> None:
    async with real_service(fail_steps=[2]) as service:
        client = await service.attach()
        handle = await client.submit(prompt_token_ids=[4] * 40)
        output = (await client.outputs(handle))[handle]
        assert output.finish is not None
        assert output.finish.reason == step_pb2.FINISH_REASON_ERROR
        assert from_status(output.finish.error).reason is Reason.STEP_FAILED
        handle = await client.submit(prompt_token_ids=[4] * 40)
        output = (await client.outputs(handle))[handle]
        assert output.token_ids == service.expected([4] * 40, 4)
        await service.assert_nothing_is_held()


async def test_poisoned_mesh_ends_everything_with_an_answer() -> None:
    async with real_service(poison_step=3) as service:
        client = await service.attach()
        ended = asyncio.create_task(service.server.engine_ended())
        handles = [await client.submit(prompt_token_ids=p) for p in prompts(4)]
        outputs = await client.outputs(*handles)
        for output in outputs.values():
            assert output.finish is not None
            error = from_status(output.finish.error)
            # Those in the step itself hear which step it was.
            assert error.reason in (Reason.MESH_POISONED, Reason.STEP_FAILED)
        last = await client.ended()
        assert last is not None
        assert last.reason is Reason.MESH_POISONED
        assert await asyncio.wait_for(ended, 5) is not None


async def test_watcher_sees_every_step_of_a_request() -> None:
    async with real_service() as service:
        watch = service.inspector().WatchSteps(
            inspector_pb2.WatchStepsRequest(
                filter=inspector_pb2.StepFilter(request_id="watched")
            )
        )
        await asyncio.sleep(0.2)
        client = await service.attach()
        handle = await client.submit(
            request_id="watched",
            external_request_id="from-outside",
            prompt_token_ids=[5] * 40,
            stop__max_output_tokens=10,
        )
        await client.outputs(handle)
        steps = [(await watch.read()).step for _ in range(10)]
        assert [step.phase for step in steps] == [inspector_pb2.PHASE_PREFILL] + [
            inspector_pb2.PHASE_DECODE
        ] * 9
        rows = [row for step in steps for lane in step.lanes for row in lane.rows]
        assert sum(row.produced_tokens for row in rows) == 10
        assert {row.external_request_id for row in rows} == {"from-outside"}
        assert rows[-1].finish_reason == "length"
        watch.cancel()


async def test_pause_and_step_over_the_wire() -> None:
    async with real_service() as service:
        inspector, client = service.inspector(), await service.attach()
        await inspector.Pause(inspector_pb2.PauseRequest())
        handle = await client.submit(stop__max_output_tokens=6)
        await client.next("accepted")
        stepped = await inspector.Step(inspector_pb2.StepRequest(count=3))
        assert stepped.steps_run == 3
        state = await inspector.GetState(inspector_pb2.GetStateRequest())
        assert state.paused
        assert state.lanes[0].rows[0].output_tokens == 3
        await inspector.Resume(inspector_pb2.ResumeRequest())
        output = (await client.outputs(handle))[handle]
        assert output.token_ids == service.expected([5, 6, 7], 6)


async def test_drain_of_a_paused_engine_ends_in_time() -> None:
    async with real_service() as service:
        inspector, client = service.inspector(), await service.attach()
        await inspector.Pause(inspector_pb2.PauseRequest())
        handle = await client.submit()
        await client.next("accepted")
        draining = asyncio.create_task(service.server.drain(0.2))
        output = (await client.outputs(handle))[handle]
        assert output.finish is not None
        assert from_status(output.finish.error).reason is Reason.DRAINING
        await asyncio.wait_for(draining, 5)


@pytest.mark.parametrize("seed", [1, 2])
async def test_nothing_leaks_whatever_clients_do(seed: int) -> None:
    """Random aborts, cancelled calls and lost streams, at every stage."""
    draw = random.Random(seed)
    async with real_service(decode_ms=0.5, prefill_ms=0.5) as service:
        await asyncio.gather(
            *(one_client(service, number, draw) for number in range(30))
        )
        await service.assert_nothing_is_held()
        client = await service.attach("last")
        work = {
            await client.submit(request_id=f"last-{n}", prompt_token_ids=p): p
            for n, p in enumerate(prompts(32))
        }
        outputs = await client.outputs(*work)
        for handle, prompt in work.items():
            assert outputs[handle].token_ids == service.expected(prompt, 4)
        await service.assert_nothing_is_held()


async def one_client(service: RealService, number: int, draw: random.Random) -> None:
    """Some requests, and then something rude."""
    client = await service.attach(f"client-{number}")
    handles = []
    for child in range(draw.randrange(1, 6)):
        grammar = generation_pb2.StructuredOutput(regex="[ab]{30}")
        changes: dict[str, Any] = {
            "request_id": f"{number}-{child}",
            "prompt_token_ids": [draw.randrange(1, 250) for _ in range(30)],
            "stop__max_output_tokens": draw.randrange(1, 30),
        }
        if draw.random() < 0.2:
            changes["structured_output"] = grammar
        handles.append(await client.submit(**changes))
    await asyncio.sleep(draw.random() * 0.05)
    match draw.randrange(4):
        case 0:
            client.call.cancel()
        case 1:
            await client.abort(*handles[: len(handles) // 2])
            await client.outputs(*handles[len(handles) // 2 :])
        case 2:
            await client.outputs(*handles)
        case _:
            call = service.device().Generate(
                device_pb2.GenerateRequest(prompt_token_ids=[number + 1])
            )
            await call.read()
            call.cancel()
            await client.channel.close(None)
