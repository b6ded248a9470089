"""What Prometheus learns from a frontend beside vLLM's own metrics."""

from __future__ import annotations

import asyncio
import time

from prometheus_client import Counter, Gauge

from ttserve.errors import Reason

LAG_PERIOD = 0.5


class FrontendMetrics:
    """One per process: Prometheus' registry does not take a name twice."""

    def __init__(self) -> None:
        self.ready = Gauge("ttserve_ready", "1 while a request can be served")
        self._sessions = Counter(
            "ttserve_device_sessions", "Sessions opened with the device service"
        )
        self._round_trip = Gauge(
            "ttserve_heartbeat_seconds", "Round trip of the newest heartbeat"
        )
        self._silence = Gauge(
            "ttserve_engine_silence_seconds",
            "Time since the engine completed a loop, as of the newest heartbeat",
        )
        self._lag = Gauge(
            "ttserve_event_loop_lag_seconds", "How late the event loop woke up last"
        )
        self._failures = Counter(
            "ttserve_request_failures",
            "Requests that the service refused or could not finish, by reason",
            ["reason"],
        )
        for reason in (Reason.QUEUE_FULL, Reason.DEVICE_LOST, Reason.STEP_FAILED):
            self._failures.labels(reason.name)

    def session_opened(self) -> None:
        """A session with the device service has begun."""
        self._sessions.inc()

    def heartbeat(self, round_trip: float, engine_silence: float) -> None:
        """Both in seconds."""
        self._round_trip.set(round_trip)
        self._silence.set(engine_silence)

    def failed(self, reason: Reason) -> None:
        """A request was refused or failed for this reason."""
        self._failures.labels(reason.name).inc()

    async def watch_event_loop(self) -> None:
        """Measure how late a timer comes, until cancelled."""
        while True:
            before = time.monotonic()
            await asyncio.sleep(LAG_PERIOD)
            self._lag.set(max(0.0, time.monotonic() - before - LAG_PERIOD))
