"""What Prometheus learns from a frontend beside vLLM's own metrics."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from prometheus_client import Counter, Gauge

from frontend.device.connection import DeviceState
from frontend.device.fleet import Member
from ttserve.errors import Reason

LAG_PERIOD = 0.5


class FrontendMetrics:
    """One per process: Prometheus' registry does not take a name twice."""

    def __init__(self) -> None:
        self.ready = Gauge("ttserve_ready", "1 while a request can be served")
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
        self._moves = Counter(
            "ttserve_request_retries",
            "Requests that a device service lost or refused before their first token "
            "and that were sent to another one",
            ["device", "reason"],
        )
        self._devices = _DeviceMetricFamilies()

    def add_device(self, member: Member) -> DeviceMetrics:
        """Those of another device service; its address is the label `device`."""
        return DeviceMetrics(self._devices, member)

    def failed(self, reason: Reason) -> None:
        """A request was refused or failed for this reason."""
        self._failures.labels(reason.name).inc()

    def moved(self, device: str, reason: Reason) -> None:
        """A request left `device` for this reason and runs elsewhere."""
        self._moves.labels(device, reason.name).inc()

    async def watch_event_loop(self) -> None:
        """Measure how late a timer comes, until cancelled."""
        while True:
            before = time.monotonic()
            await asyncio.sleep(LAG_PERIOD)
            self._lag.set(max(0.0, time.monotonic() - before - LAG_PERIOD))


class _DeviceMetricFamilies:
    """The metrics that there are once per device service."""

    def __init__(self) -> None:
        label = ["device"]
        self.sessions = Counter(
            "ttserve_device_sessions", "Sessions opened with a device service", label
        )
        self.refusals = Counter(
            "ttserve_device_models_refused",
            "Sessions not opened because of another model or version",
            label,
        )
        self.round_trip = Gauge(
            "ttserve_heartbeat_seconds", "Round trip of the newest heartbeat", label
        )
        self.silence = Gauge(
            "ttserve_engine_silence_seconds",
            "Time since the engine completed a loop, as of the newest heartbeat",
            label,
        )
        self.state = Gauge(
            "ttserve_device_state",
            "1 for the state that a device service is in, 0 for the others",
            ["device", "state"],
        )
        self.open_requests = Gauge(
            "ttserve_device_open_requests",
            "This frontend's requests in a device service",
            label,
        )
        self.load = Gauge(
            "ttserve_device_load",
            "Requests of all frontends in a device service, as routing sees them",
            label,
        )


class DeviceMetrics:
    """Those of one device service; states and counts are read when asked for."""

    def __init__(self, families: _DeviceMetricFamilies, member: Member) -> None:
        self._families = families
        self._device = str(member.address)
        families.sessions.labels(self._device)
        families.refusals.labels(self._device)
        for state in DeviceState:
            families.state.labels(self._device, state.value).set_function(
                _is_in(member, state)
            )
        families.open_requests.labels(self._device).set_function(
            lambda: len(member.requests or ())
        )
        families.load.labels(self._device).set_function(
            lambda: member.requests.load if member.requests else 0
        )

    def session_opened(self) -> None:
        """A session with the device service has begun."""
        self._families.sessions.labels(self._device).inc()

    def model_refused(self) -> None:
        """It has another model or another version."""
        self._families.refusals.labels(self._device).inc()

    def heartbeat(self, round_trip: float, engine_silence: float) -> None:
        """Both in seconds."""
        self._families.round_trip.labels(self._device).set(round_trip)
        self._families.silence.labels(self._device).set(engine_silence)

    def closed(self) -> None:
        """It is not used any more; its counters stay, as counters do."""
        for family in (
            self._families.round_trip,
            self._families.silence,
            self._families.open_requests,
            self._families.load,
        ):
            family.remove(self._device)
        for state in DeviceState:
            self._families.state.remove(self._device, state.value)


def _is_in(member: Member, state: DeviceState) -> Callable[[], float]:
    return lambda: float(member.state is state)
