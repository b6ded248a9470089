"""Metrics, traces, request ids and logs of a device service and two frontends."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import grpc
import httpx
import promql_parser
import pytest

from tests.support.frontend_process import free_port, wait_for
from tests.support.otlp import Collector, attributes, collector
from tests.support.scrape import Scrape
from tests.support.stack import Stack, running_stack
from ttserve.v1 import device_pb2, generation_pb2

pytestmark = pytest.mark.timeout(500)

ROOT = Path(__file__).parents[2]
ROWS = 4
SPANS_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Observed:
    """The processes, and where they are looked at."""

    stack: Stack
    collector: Collector
    device_metrics: str

    def device(self) -> Scrape:
        return Scrape.of(self.device_metrics)

    def frontends(self) -> list[Scrape]:
        return [Scrape.of(f"{url}/metrics") for url in self.stack.urls]


@pytest.fixture(scope="module")
def observed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Observed]:
    port = free_port()
    with collector() as spans, pytest.MonkeyPatch.context() as environment:
        environment.setenv("OTEL_BSP_SCHEDULE_DELAY", "200")
        # The tests are a device service, as far as their environment goes.
        environment.delenv("OTEL_SERVICE_NAME")
        options = [
            *("--log-format", "json", "--enable-log-requests"),
            *("--otlp-traces-endpoint", spans.endpoint),
        ]
        with running_stack(
            tmp_path_factory.mktemp("observed"),
            frontends=2,
            sim={"decode_ms": 5},
            device_options=[
                *("--max-num-seqs", str(ROWS), "--metrics-port", str(port)),
                *options,
            ],
            frontend_options=options,
        ) as stack:
            yield Observed(stack, spans, f"http://127.0.0.1:{port}/metrics")


def complete(url: str, headers: dict[str, str], max_tokens: int = 8) -> httpx.Response:
    body = {"prompt": [1, 2, 3], "max_tokens": max_tokens, "ignore_eos": True}
    answer = httpx.post(f"{url}/v1/completions", json=body, headers=headers, timeout=60)
    assert answer.status_code == 200, answer.text
    return answer


def log_lines(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_one_request_id_through_all(observed: Observed) -> None:
    """HTTP in and out, gRPC, step records, both logs."""
    stack, name = observed.stack, "an-id-from-outside"
    answer = complete(stack.urls[0], {"x-request-id": name})
    assert answer.headers["x-request-id"] == name
    rows = [
        row
        for step in stack.device.steps()
        for lane in step.lanes
        for row in lane.rows
        if row.external_request_id == name
    ]
    assert sum(row.produced_tokens for row in rows) == 8
    for log in (stack.device.log, stack.frontends[0].log):
        lines = [line for line in log_lines(log) if line.get("request_id") == name]
        said = " ".join(line["message"] for line in lines)
        assert "admitted" in said
        ids = {
            line["engine_request_id"] for line in lines if "engine_request_id" in line
        }
        assert ids == {rows[0].request_id}
    finished = [
        line["message"]
        for line in log_lines(stack.device.log)
        if line.get("request_id") == name and "finished" in line["message"]
    ]
    assert len(finished) == 1
    assert "finished: length; 8 tokens" in finished[0]


def test_a_call_of_generate_carries_its_id_and_trace_in_metadata(
    observed: Observed,
) -> None:
    trace = "b" * 32
    call = observed.stack.device.device.Generate(
        device_pb2.GenerateRequest(
            prompt_token_ids=[1],
            stop=generation_pb2.StopRules(max_output_tokens=2),
            ignore_eos=True,
        ),
        metadata=(
            ("x-request-id", "a-call"),
            ("traceparent", f"00-{trace}-{'c' * 16}-01"),
        ),
        timeout=30,
    )
    assert sum(len(part.token_ids) for part in call) == 2
    wait_for(lambda: len(observed.collector.of_trace(trace)) == 4, SPANS_SECONDS)
    (root,) = (
        span
        for _, span in observed.collector.of_trace(trace)
        if span.name == "device_request"
    )
    assert root.parent_span_id.hex() == "c" * 16
    assert attributes(root)["gen_ai.request.id"] == "a-call"
    lines = log_lines(observed.stack.device.log)
    (line, *_) = (line for line in lines if line.get("request_id") == "a-call")
    assert line["trace_id"] == trace


def test_spans_of_both_sides_are_one_tree(observed: Observed) -> None:
    trace, client = "a" * 32, "d" * 16
    traceparent = f"00-{trace}-{client}-01"
    complete(observed.stack.urls[1], {"traceparent": traceparent}, max_tokens=6)
    wait_for(lambda: len(observed.collector.of_trace(trace)) == 5, SPANS_SECONDS)
    spans = {span.name: (who, span) for who, span in observed.collector.of_trace(trace)}
    parents = {
        "llm_request": ("tt-frontend", client),
        "device_request": ("tt-device-service", spans["llm_request"][1].span_id.hex()),
    }
    device_span = spans["device_request"][1].span_id.hex()
    for name in ("queue", "prefill", "decode"):
        parents[name] = ("tt-device-service", device_span)
    assert {
        name: (who, span.parent_span_id.hex()) for name, (who, span) in spans.items()
    } == parents
    found = attributes(spans["device_request"][1])
    assert found["ttserve.steps"] == 6
    assert found["ttserve.lane"] == 0
    assert found["ttserve.preemptions"] == 0
    assert found["gen_ai.usage.completion_tokens"] == 6
    assert found["ttserve.finish_reason"] == "length"
    outer = spans["device_request"][1]
    times = [spans[name][1] for name in ("queue", "prefill", "decode")]
    assert outer.start_time_unix_nano == times[0].start_time_unix_nano
    assert outer.end_time_unix_nano == times[-1].end_time_unix_nano
    for before, after in zip(times, times[1:], strict=False):
        assert before.end_time_unix_nano == after.start_time_unix_nano
    # Five steps of 5 ms follow the first token.
    decode = times[-1].end_time_unix_nano - times[-1].start_time_unix_nano
    assert decode >= 5 * 5e6 * 0.9


def test_a_client_that_leaves_ends_its_spans(observed: Observed) -> None:
    trace = "e" * 32
    headers = {"traceparent": f"00-{trace}-{'d' * 16}-01"}
    body = {"prompt": [1], "max_tokens": 20_000, "stream": True, "ignore_eos": True}
    with httpx.stream(
        "POST",
        f"{observed.stack.urls[0]}/v1/completions",
        json=body,
        headers=headers,
        timeout=60,
    ) as answer:
        next(answer.iter_lines())
    wait_for(lambda: len(observed.collector.of_trace(trace)) == 5, SPANS_SECONDS)
    spans = {span.name: span for _, span in observed.collector.of_trace(trace)}
    assert spans["llm_request"].status.message == "aborted"
    assert attributes(spans["device_request"])["ttserve.finish_reason"] == "abort"


async def test_gauges_of_frontends_add_up_to_the_devices_own(
    observed: Observed,
) -> None:
    """More requests than rows; one frontend comes too late and only waits."""
    first, second = observed.stack.urls
    async with httpx.AsyncClient(timeout=120) as client:
        streams = []
        for url, count in ((first, ROWS + 1), (second, 3)):
            streams += [asyncio.create_task(_stream(client, url)) for _ in range(count)]
            live = len(streams)
            await _until(lambda n=live: observed.stack.device.live_requests() == n)
        device = await asyncio.to_thread(observed.device)
        assert device.value("ttserve_requests_running") == ROWS
        assert device.total("ttserve_requests_waiting") == 4

        def sums() -> tuple[float, float]:
            scrapes = observed.frontends()
            return (
                sum(s.total("vllm:num_requests_running") for s in scrapes),
                sum(s.total("vllm:num_requests_waiting") for s in scrapes),
            )

        await _until(lambda: sums() == (ROWS, 4))
        for stream in streams:
            stream.cancel()
        await asyncio.gather(*streams, return_exceptions=True)
        await _until(lambda: observed.stack.device.live_requests() == 0)
        await _until(lambda: sums() == (0, 0))
    assert (await asyncio.to_thread(observed.device)).total("ttserve_lane_rows") == 0


async def _stream(client: httpx.AsyncClient, url: str) -> None:
    body = {"prompt": [1, 2], "max_tokens": 30_000, "stream": True, "ignore_eos": True}
    async with client.stream("POST", f"{url}/v1/completions", json=body) as answer:
        async for _ in answer.aiter_lines():
            pass


async def _until(condition: Any) -> None:
    await asyncio.to_thread(wait_for, condition, 30.0)


def test_every_line_of_both_logs_is_json(observed: Observed) -> None:
    stack = observed.stack
    logs = {"tt-device-service": stack.device.log}
    names = [
        re.search(r'"process": "([^"]+)"', frontend.log) for frontend in stack.frontends
    ]
    for frontend, found in zip(stack.frontends, names, strict=True):
        assert found is not None
        logs[found[1]] = frontend.log
    for name, log in logs.items():
        lines = log_lines(log)
        assert lines
        for line in lines:
            assert {"time", "level", "logger", "message", "process"} <= line.keys()
            assert line["process"] == name
            assert datetime.fromisoformat(line["time"]).utcoffset() is not None


def is_ours(name: str) -> bool:
    """And none of those with which a library says since when it counts."""
    return name.startswith("ttserve_") and not name.endswith("_created")


def series_in_table() -> dict[str, str]:
    """Name and kind of every series that docs/METRICS.md lists."""
    text = (ROOT / "docs" / "METRICS.md").read_text()
    found = re.findall(r"^\| `([a-z0-9:_]+)` \| (\w+) \|", text, re.M)
    return {name.removesuffix("_total"): kind for name, kind in found}


def test_what_is_exported_is_documented_and_the_other_way_round(
    observed: Observed,
) -> None:
    complete(observed.stack.urls[0], {})
    exported: dict[str, str] = {}
    for scrape in (observed.device(), observed.frontends()[0]):
        for name, (kind, text) in scrape.families.items():
            if is_ours(name):
                assert name not in exported or kind == exported[name]
                exported[name] = kind
                assert text
    table = series_in_table()
    ours = {name: kind for name, kind in table.items() if name.startswith("ttserve_")}
    assert ours == exported
    theirs = {name for name in table if name.startswith("vllm:")}
    assert theirs <= observed.frontends()[0].families.keys()


def test_the_two_sides_share_no_name(observed: Observed) -> None:
    """A query without a job must not add up different things."""
    device = set(filter(is_ours, observed.device().families))
    frontend = set(filter(is_ours, observed.frontends()[0].families))
    assert not device & frontend


def test_the_dashboard_asks_for_what_is_exported(observed: Observed) -> None:
    complete(observed.stack.urls[0], {})
    exported = observed.device().samples.keys() | observed.frontends()[0].samples.keys()
    asked: set[str] = set()
    for expression in expressions():
        asked |= metric_names(promql_parser.parse(expression))
    assert len(asked) > 20
    assert asked <= exported


def expressions() -> Iterator[str]:
    dashboard = json.loads((ROOT / "compose" / "grafana" / "ttserve.json").read_text())
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield target["expr"]


def metric_names(expression: Any) -> set[str]:
    """The series that a parsed expression selects."""
    if isinstance(expression, promql_parser.VectorSelector):
        assert expression.name is not None
        return {expression.name}
    if isinstance(expression, promql_parser.MatrixSelector):
        return metric_names(expression.vector_selector)
    parts = [getattr(expression, name, None) for name in ("expr", "lhs", "rhs")]
    parts += getattr(expression, "args", None) or []
    return set().union(*(metric_names(part) for part in parts if part is not None))


def test_a_refused_call_is_counted(observed: Observed) -> None:
    before = observed.device().total("ttserve_requests_refused_total")
    with pytest.raises(grpc.RpcError):
        list(
            observed.stack.device.device.Generate(
                device_pb2.GenerateRequest(prompt_token_ids=[1], request_id="x" * 300),
                timeout=30,
            )
        )
    assert observed.device().total("ttserve_requests_refused_total") == before + 1
