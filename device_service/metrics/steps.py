"""What Prometheus learns from step records.

The engine thread pays one append to a deque per step; the records are counted
later, on the event loop.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, Counter, Histogram

from device_service.records import Phase, StepRecord
from device_service.step_log import StepListener

STEP_SECONDS = (
    *(0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25),
    *(0.5, 1.0, 2.5, 5.0, 10.0, 30.0),
)
HOST_SECONDS = (
    *(0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005),
    *(0.01, 0.025, 0.05, 0.1, 0.25, 1.0),
)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


@dataclass(frozen=True, slots=True)
class _OfPhase:
    """The series of one phase, looked up once."""

    duration: Histogram
    host: Histogram
    readback: Histogram
    gap: Histogram
    rows: Histogram
    scheduled: Counter
    produced: Counter


class StepMeter:
    """Counts records. Event loop only, but for `listener`."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._unread: deque[StepRecord] = deque()
        self._phases = _by_phase(registry)
        self._sites = Counter(
            "ttserve_sampling_site",
            "Steps by where their tokens were sampled, and why there",
            ["site", "reason"],
            registry=registry,
        )
        self._overlaps = Counter(
            "ttserve_overlap",
            "Steps by whether they were submitted before the one in flight ended, "
            "and why",
            ["verdict", "reason"],
            registry=registry,
        )
        self._preemptions = Counter(
            "ttserve_preemptions",
            "Times that a request lost its row and went back to its queue",
            registry=registry,
        )
        self._failed = Counter(
            "ttserve_failed_steps",
            "Steps that ended with an error; nothing else is counted of them",
            registry=registry,
        )

    @property
    def listener(self) -> StepListener:
        """For `StepRing.add_listener`: one call in C on the engine thread."""
        return self._unread.append

    def drain(self) -> None:
        """Count the records that have come since the last call."""
        for _ in range(len(self._unread)):
            self._count(self._unread.popleft())

    def _count(self, record: StepRecord) -> None:
        if record.preempted:
            self._preemptions.inc(len(record.preempted))
        if record.error:
            self._failed.inc()
            return
        series = self._phases[record.phase]
        series.duration.observe(record.device_us / 1e6)
        series.host.observe(record.host_us / 1e6)
        series.readback.observe(record.readback_us / 1e6)
        series.gap.observe(record.host_gap_us / 1e6)
        series.rows.observe(sum(len(lane.rows) for lane in record.lanes))
        series.scheduled.inc(record.scheduled_tokens)
        series.produced.inc(record.produced_tokens)
        sampling, overlap = record.sampling, record.overlap
        self._sites.labels(sampling.site.value, sampling.reason).inc()
        verdict = "overlapped" if overlap.overlap else "drained"
        self._overlaps.labels(verdict, overlap.reason).inc()


def _by_phase(registry: CollectorRegistry) -> dict[Phase, _OfPhase]:
    """Every series of both phases, so that they stand at zero from the start."""

    def histogram(name: str, text: str, buckets: tuple[float, ...]) -> Histogram:
        return Histogram(name, text, ["phase"], buckets=buckets, registry=registry)

    def counter(name: str, text: str) -> Counter:
        return Counter(name, text, ["phase"], registry=registry)

    duration = histogram(
        "ttserve_step_duration_seconds",
        "From a step's submission to its completion, as the mesh's worker saw it",
        STEP_SECONDS,
    )
    host = histogram(
        "ttserve_step_host_seconds",
        "Host work from the start of planning to the submission",
        HOST_SECONDS,
    )
    readback = histogram(
        "ttserve_step_readback_seconds",
        "From a step's completion to the end of readback and host sampling",
        HOST_SECONDS,
    )
    gap = histogram(
        "ttserve_host_gap_seconds",
        "How long the mesh was idle before the step; for want of work too, but that "
        "only before a prefill",
        HOST_SECONDS,
    )
    rows = histogram("ttserve_step_rows", "Requests that had a share in a step", ROWS)
    scheduled = counter(
        "ttserve_scheduled_tokens", "Tokens that went through the model"
    )
    produced = counter("ttserve_produced_tokens", "Tokens that steps produced")
    return {
        phase: _OfPhase(
            duration=duration.labels(phase.value),
            host=host.labels(phase.value),
            readback=readback.labels(phase.value),
            gap=gap.labels(phase.value),
            rows=rows.labels(phase.value),
            scheduled=scheduled.labels(phase.value),
            produced=produced.labels(phase.value),
        )
        for phase in Phase
    }
