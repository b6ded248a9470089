"""What Prometheus learns by looking, at every scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    InfoMetricFamily,
)
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from device_service.records import EngineState, LaneState, WaitingReason
from ttserve.errors import Reason

ALWAYS_FINISHED = ("stop", "length", "abort", "error")
ALWAYS_REFUSED = (Reason.QUEUE_FULL, Reason.INVALID_FIELD, Reason.NOT_READY)


@dataclass(frozen=True, slots=True)
class Picture:
    """The service at one moment.

    `engine` is None while there is none, and when it did not answer in time.
    `loop_age` is in seconds. `merged_steps` never falls.
    """

    info: Mapping[str, str]
    serving: bool
    uptime: float
    stages: Mapping[str, float]
    sessions: int
    merged_steps: int
    finished: Mapping[str, int]
    refused: Mapping[Reason, int]
    prefix_queries: int
    prefix_hits: int
    max_queued: int
    unwarmed_shapes: int
    loop_age: float
    engine: EngineState | None


class PictureCollector(Collector):
    """Asks for a picture at every scrape, on the scrape's own thread.

    A service that does not answer shows nothing of this, and no error.
    """

    def __init__(self, take: Callable[[], Picture | None]) -> None:
        self._take = take

    def describe(self) -> list[Metric]:
        """Nothing: a registry would otherwise collect to learn the names."""
        return []

    def collect(self) -> Iterator[Metric]:
        """The families of one scrape."""
        picture = self._take()
        if picture is None:
            return
        yield from _service(picture)
        yield from _requests(picture)
        if picture.engine is not None:
            yield from _engine(picture.engine)
            yield from _lanes(picture.engine.lanes)


def _service(picture: Picture) -> Iterator[Metric]:
    yield InfoMetricFamily("ttserve_build", "What runs here", value=dict(picture.info))
    yield GaugeMetricFamily(
        "ttserve_serving", "1 while requests are taken", value=picture.serving
    )
    yield GaugeMetricFamily(
        "ttserve_uptime_seconds", "Since the service started", value=picture.uptime
    )
    stages = GaugeMetricFamily(
        "ttserve_startup_seconds",
        "How long a stage of the start took",
        labels=["stage"],
    )
    for stage, seconds in picture.stages.items():
        stages.add_metric([stage], seconds)
    yield stages
    yield GaugeMetricFamily(
        "ttserve_sessions", "Attached frontends", value=picture.sessions
    )
    yield CounterMetricFamily(
        "ttserve_outbox_merges",
        "Steps that were merged because a frontend read slowly",
        value=picture.merged_steps,
    )
    yield GaugeMetricFamily(
        "ttserve_engine_loop_age_seconds",
        "Since the engine completed a loop; 0 while it has nothing to do",
        value=picture.loop_age,
    )
    yield CounterMetricFamily(
        "ttserve_unwarmed_decode_shapes",
        "Decode shapes that were met after warm-up for the first time",
        value=picture.unwarmed_shapes,
    )


def _requests(picture: Picture) -> Iterator[Metric]:
    finished = CounterMetricFamily(
        "ttserve_requests_finished",
        "Admitted requests by how they ended",
        labels=["reason"],
    )
    for how in dict.fromkeys([*ALWAYS_FINISHED, *picture.finished]):
        finished.add_metric([how], picture.finished.get(how, 0))
    yield finished
    refused = CounterMetricFamily(
        "ttserve_requests_refused", "Requests that were not admitted", labels=["reason"]
    )
    for reason in dict.fromkeys([*ALWAYS_REFUSED, *picture.refused]):
        refused.add_metric([reason.name], picture.refused.get(reason, 0))
    yield refused
    yield GaugeMetricFamily(
        "ttserve_max_queued_requests",
        "Requests that may wait before others are refused",
        value=picture.max_queued,
    )
    yield CounterMetricFamily(
        "ttserve_prefix_cache_queries",
        "Prompt tokens that were looked up in the prefix cache",
        value=picture.prefix_queries,
    )
    yield CounterMetricFamily(
        "ttserve_prefix_cache_hits",
        "Prompt tokens that were found in the prefix cache",
        value=picture.prefix_hits,
    )


def _engine(state: EngineState) -> Iterator[Metric]:
    yield GaugeMetricFamily(
        "ttserve_requests_running",
        "Requests that hold a row",
        value=sum(len(lane.rows) for lane in state.lanes),
    )
    reasons = Counter(w.reason for lane in state.lanes for w in lane.waiting)
    waiting = GaugeMetricFamily(
        "ttserve_requests_waiting", "Requests that wait for a row", labels=["reason"]
    )
    for reason in WaitingReason:
        waiting.add_metric([reason.value], reasons[reason])
    yield waiting
    yield GaugeMetricFamily(
        "ttserve_grammars", "Grammars of live requests", value=state.grammars
    )
    yield GaugeMetricFamily(
        "ttserve_steps_in_flight",
        "Steps submitted and not yet applied",
        value=state.steps_in_flight,
    )
    yield GaugeMetricFamily(
        "ttserve_paused", "1 while Inspector.Pause is in force", value=state.paused
    )


def _lanes(lanes: tuple[LaneState, ...]) -> Iterator[Metric]:
    rows = GaugeMetricFamily(
        "ttserve_lane_rows", "Rows that requests hold", labels=["lane"]
    )
    capacity = GaugeMetricFamily(
        "ttserve_lane_rows_limit", "Rows of the lane", labels=["lane"]
    )
    blocks = GaugeMetricFamily(
        "ttserve_kv_blocks",
        "KV blocks; free ones may hold a cached prefix",
        labels=["lane", "state"],
    )
    for lane in lanes:
        number = str(lane.lane)
        rows.add_metric([number], len(lane.rows))
        capacity.add_metric([number], lane.total_rows)
        blocks.add_metric([number, "used"], lane.total_blocks - lane.free_blocks)
        blocks.add_metric([number, "free"], lane.free_blocks)
    yield from (rows, capacity, blocks)
