"""What the device service's /metrics says, against what its clients saw."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator

import pytest

from device_service.metrics.exporter import Exporter
from tests.support.scrape import Scrape
from tests.support.waiting import eventually
from tests.support.wire import Service, serving
from ttserve.errors import StartupError
from ttserve.v1 import device_pb2, generation_pb2


class Scraped:
    """A service over a scripted engine, and its metrics port."""

    def __init__(self, service: Service, exporter: Exporter, port: int) -> None:
        self.service = service
        self.exporter = exporter
        self._url = f"http://127.0.0.1:{port}/metrics"

    async def scrape(self) -> Scrape:
        return await asyncio.to_thread(Scrape.of, self._url)


@contextlib.asynccontextmanager
async def scraped(**changes: int) -> AsyncIterator[Scraped]:
    async with serving(**changes) as service:
        exporter = Exporter(service.server.serving, "sim")
        port = exporter.start("127.0.0.1", 0)
        exporter.follow(service.engine.step_log, lambda: 3)
        try:
            yield Scraped(service, exporter, port)
        finally:
            await exporter.stop()


async def test_every_step_is_counted_once() -> None:
    async with scraped() as it:
        client = await it.service.attach()
        handles = [await client.submit(stop__max_output_tokens=5) for _ in range(3)]
        for _ in handles:
            await client.next("accepted")
        for _ in range(2):
            it.service.engine.step()
        first = await it.scrape()
        for _ in range(3):
            it.service.engine.step()
        await client.outputs(*handles)
        last = await it.scrape()
    assert first.value("ttserve_step_rows_count", phase="prefill") == 1
    assert first.value("ttserve_step_rows_sum", phase="prefill") == 3
    assert first.value("ttserve_requests_running") == 3
    assert first.value("ttserve_lane_rows", lane="0") == 3
    assert last.value("ttserve_step_rows_count", phase="decode") == 4
    assert last.value("ttserve_produced_tokens_total", phase="decode") == 12
    assert last.value("ttserve_scheduled_tokens_total", phase="prefill") == 9
    site = last.value("ttserve_sampling_site_total", site="host", reason="scripted")
    assert site == 5
    drained = last.value("ttserve_overlap_total", verdict="drained", reason="sync_mode")
    assert drained == 5
    # The script says 2 us for each step.
    duration = last.value("ttserve_step_duration_seconds_sum", phase="decode")
    assert duration == pytest.approx(8e-6)
    assert last.value("ttserve_requests_running") == 0
    assert last.value("ttserve_requests_finished_total", reason="length") == 3
    assert last.value("ttserve_unwarmed_decode_shapes_total") == 3


async def test_blocks_sessions_and_queues_as_they_are() -> None:
    async with scraped(rows_per_lane=2) as it:
        for name in ("a", "b"):
            client = await it.service.attach(name)
            for number in range(2):
                await client.submit(request_id=f"{name}-{number}")
                await client.next("accepted")
        found = await it.scrape()
        assert found.value("ttserve_sessions") == 2
        assert found.value("ttserve_lane_rows", lane="0") == 2
        assert found.value("ttserve_lane_rows_limit", lane="0") == 2
        assert found.value("ttserve_requests_waiting", reason="capacity") == 2
        used = found.value("ttserve_kv_blocks", lane="0", state="used")
        free = found.value("ttserve_kv_blocks", lane="0", state="free")
        assert (used, free) == (4, 60)
        assert found.value("ttserve_serving") == 1
        it.service.engine.silence = 2.5
        assert (await it.scrape()).value("ttserve_engine_loop_age_seconds") == 2.5


async def test_ends_and_refusals_by_reason() -> None:
    async with scraped(rows_per_lane=1, max_queued_requests=1) as it:
        client = await it.service.attach()
        handles = [await client.submit() for _ in range(3)]
        for _ in range(2):
            await client.next("accepted")
        assert (await client.rejection())[0] == handles[2]
        await client.abort(handles[0])
        await client.abort(handles[1], cause=device_pb2.ABORT_CAUSE_STOP_STRING)
        bad = await client.submit(prompt_token_ids=[10_000])
        assert (await client.rejection())[0] == bad
        with pytest.raises(Exception, match="vocab"):
            await (
                it.service.device()
                .Generate(
                    device_pb2.GenerateRequest(
                        prompt_token_ids=[10_000],
                        stop=generation_pb2.StopRules(max_output_tokens=1),
                    )
                )
                .read()
            )
        it.service.engine.step()
        found = await it.scrape()
        while found.total("ttserve_requests_finished_total") < 2:
            found = await it.scrape()
        assert found.value("ttserve_requests_finished_total", reason="abort") == 1
        assert found.value("ttserve_requests_finished_total", reason="stop") == 1
        assert found.value("ttserve_requests_refused_total", reason="QUEUE_FULL") == 1
        assert (
            found.value("ttserve_requests_refused_total", reason="INVALID_FIELD") == 2
        )


async def test_merges_are_counted_beyond_their_session() -> None:
    async with scraped() as it:
        client = await it.service.attach()
        await client.submit(stop__max_output_tokens=5)
        await client.next("accepted")
        for _ in range(5):  # in one turn of the event loop, so nothing is written
            it.service.engine.step()
        messages, tokens = 0, 0
        while tokens < 5:
            tokens += len((await client.next("step")).step.token_ids)
            messages += 1
        assert messages < 5
        assert (await it.scrape()).value("ttserve_outbox_merges_total") == 5 - messages
        assert it.service.server.serving.sessions
        client.call.cancel()
        await eventually(lambda: not it.service.server.serving.sessions)
        assert (await it.scrape()).value("ttserve_outbox_merges_total") == 5 - messages


async def test_a_service_that_starts_says_that_it_does_not_serve() -> None:
    service = Service()
    await service.start()
    exporter = Exporter(service.server.serving, "sim")
    port = exporter.start("127.0.0.1", 0)
    try:
        url = f"http://127.0.0.1:{port}/metrics"
        found = await asyncio.to_thread(Scrape.of, url)
        assert found.value("ttserve_serving") == 0
        assert "ttserve_lane_rows" not in found.samples
        # What counts steps stands at zero, so that its first rise is seen.
        assert found.value("ttserve_step_rows_count", phase="decode") == 0
        assert found.value("process_resident_memory_bytes") > 0
    finally:
        await exporter.stop()
        await service.close()


async def test_a_taken_port_is_one_clear_line() -> None:
    service = Service()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        exporter = Exporter(service.server.serving, "sim")
        with pytest.raises(StartupError, match=f"--metrics-port {port}: .*in use"):
            exporter.start("127.0.0.1", port)
        await exporter.stop()
