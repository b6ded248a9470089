"""Attach: from open to the last token."""

from __future__ import annotations

from tests.support.attach_client import AttachClient
from tests.support.scripted_engine import scripted_token
from tests.support.wire import Service
from ttserve.protocol import PROTOCOL_MINOR
from ttserve.v1 import generation_pb2, step_pb2

PROMPT = [5, 6, 7]


async def test_open_describes_the_model(service: Service) -> None:
    opened = await AttachClient(service.channel()).open()
    assert opened.protocol_minor == PROTOCOL_MINOR
    assert opened.instance_id == service.server.instance_id
    assert opened.session_number == 1
    assert opened.silence_limit_ms == 5000
    assert opened.model.served_names == ["tiny", "tiny-alias"]
    assert opened.model.eos_token_ids == [2, 3]


async def test_tokens_come_one_message_per_step(service: Service) -> None:
    client = await service.attach()
    handle = await client.submit()
    await client.next("accepted")
    for index in range(4):
        service.engine.step()
        step = (await client.next("step")).step
        assert step.handles == [handle]
        assert step.token_ids == [scripted_token(PROMPT, index)]
        assert not step.token_counts  # one token each
        assert step.step_number == index + 1
        assert len(step.extras) == (1 if index in (0, 3) else 0)
    assert step.extras[0].finish.reason == step_pb2.FINISH_REASON_LENGTH
    assert not service.engine.jobs


async def test_first_output_reports_the_prefill_and_its_events(
    service: Service,
) -> None:
    client = await service.attach()
    await client.submit()
    await client.next("accepted")
    service.engine.step()
    step = (await client.next("step")).step
    [extra] = step.extras
    assert extra.prefill == step_pb2.PrefillReport(prompt_tokens=3)
    assert [event.kind for event in extra.events] == [
        step_pb2.REQUEST_EVENT_KIND_QUEUED,
        step_pb2.REQUEST_EVENT_KIND_SCHEDULED,
    ]
    assert all(0 < e.monotonic_seconds <= step.monotonic_seconds for e in extra.events)
    assert step.stats.running == 1
    assert step.stats.prefix_cache_queries == 10


async def test_several_requests_share_a_message(service: Service) -> None:
    client = await service.attach()
    handles = [await client.submit() for _ in range(3)]
    for _ in handles:
        await client.next("accepted")
    service.engine.step()
    step = (await client.next("step")).step
    assert step.handles == handles
    assert len(step.token_ids) == 3


async def test_logprobs_travel_with_their_tokens(service: Service) -> None:
    client = await service.attach()
    handle = await client.submit(logprobs=generation_pb2.LogprobsRequest(top_count=2))
    await client.next("accepted")
    with service.engine.ticking():
        output = (await client.outputs(handle))[handle]
    assert len(output.logprobs) == len(output.token_ids) == 4
    assert output.logprobs[0].chosen == -0.5
    assert output.logprobs[0].chosen_rank == 1
    assert output.logprobs[0].top_token_ids == [0, 1]


async def test_stop_token_is_reported_and_eos_is_not(service: Service) -> None:
    client = await service.attach()
    second = scripted_token(PROMPT, 1)
    stopped = await client.submit(stop__stop_token_ids=[second])
    ended = await client.submit(stop__eos_token_id=second)
    with service.engine.ticking():
        outputs = await client.outputs(stopped, ended)
    for handle, reported in ((stopped, True), (ended, False)):
        output = outputs[handle]
        assert output.token_ids == [scripted_token(PROMPT, 0), second]
        assert output.finish is not None
        assert output.finish.reason == step_pb2.FINISH_REASON_STOP
        assert output.finish.HasField("stop_token_id") == reported


async def test_accepted_comes_before_the_first_token(service: Service) -> None:
    client = await service.attach()
    with service.engine.ticking(0.0001):
        handles = {await client.submit(stop__max_output_tokens=1) for _ in range(60)}
        accepted: set[int] = set()
        ended: set[int] = set()
        while ended != handles:
            message = await client.read()
            if message.WhichOneof("event") == "accepted":
                accepted.add(message.accepted.handle)
            elif message.WhichOneof("event") == "rejected":
                handles.remove(message.rejected.handle)  # the queue was full
            else:
                assert set(message.step.handles) <= accepted
                ended |= set(message.step.handles)
    assert ended


async def test_two_frontends_do_not_see_each_other(service: Service) -> None:
    first, second = await service.attach("a"), await service.attach("b")
    ours = await first.submit(request_id="a-1")
    theirs = await second.submit(request_id="b-1", prompt_token_ids=[9])
    with service.engine.ticking():
        mine = await first.outputs(ours)
        other = await second.outputs(theirs)
    assert set(mine) == {ours}
    assert mine[ours].token_ids == [scripted_token(PROMPT, i) for i in range(4)]
    assert other[theirs].token_ids == [scripted_token([9], i) for i in range(4)]


async def test_half_close_lets_running_requests_finish(service: Service) -> None:
    client = await service.attach()
    handle = await client.submit()
    await client.next("accepted")
    await client.call.done_writing()
    with service.engine.ticking():
        output = (await client.outputs(handle))[handle]
        assert await client.ended() is None
    assert len(output.token_ids) == 4


async def test_half_close_of_an_idle_stream_ends_it(service: Service) -> None:
    client = await service.attach()
    await client.call.done_writing()
    assert await client.ended() is None


async def test_pong_says_how_silent_the_engine_is(service: Service) -> None:
    client = await service.attach()
    service.engine.silence = 1.25
    await client.ping(7)
    pong = (await client.next("pong")).pong
    assert (pong.sequence, pong.engine_silence_ms) == (7, 1250)
