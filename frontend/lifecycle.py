"""Where a frontend stands between its start and its end."""

from __future__ import annotations

import enum
from typing import Any

from frontend.device.connection import DeviceState
from frontend.device.fleet import Fleet, Member
from frontend.metrics import FrontendMetrics


class Phase(enum.Enum):
    """The values are the words in which /ready says why it is not ready."""

    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"


class Lifecycle:
    """The phase of this process and the states of its device services, as one answer.

    `fleet` is there once their model is known.
    """

    def __init__(self, metrics: FrontendMetrics) -> None:
        self.phase = Phase.STARTING
        self._waiting_for = "vLLM is being loaded"
        self.fleet: Fleet | None = None
        self._metrics = metrics

    def wait_for(self, what: str) -> None:
        """What the start waits for now, as a clause."""
        self._waiting_for = what

    def reasons(self) -> list[tuple[str, str]]:
        """Why no request can be served: a word and a sentence each.

        One device service that is ready is enough.
        """
        found = []
        if self.phase is Phase.STARTING:
            found.append((Phase.STARTING.value, self._waiting_for))
        elif self.phase is Phase.DRAINING:
            found.append((Phase.DRAINING.value, "this frontend is shutting down"))
        members = self._members()
        if not any(member.state is DeviceState.READY for member in members):
            why = ((member.state.value, member.reason) for member in members)
            found += dict.fromkeys(why)
        self._metrics.ready.set(0 if found else 1)
        return found

    def details(self) -> dict[str, Any]:
        """The device services that this frontend is attached to.

        `device_instance` is that of the first one that is ready, if one is.
        """
        members = self._members()
        ready = [m for m in members if m.state is DeviceState.READY]
        instances = [m.instance_id for m in ready or members]
        return {
            "device_instance": instances[0] if instances else None,
            "devices": [_describe(member) for member in members],
        }

    def _members(self) -> tuple[Member, ...]:
        return self.fleet.members if self.fleet is not None else ()


def _describe(member: Member) -> dict[str, Any]:
    requests = member.requests
    return {
        "address": str(member.address),
        "state": member.state.value,
        "reason": member.reason,
        "instance_id": member.instance_id,
        "open_requests": len(requests) if requests is not None else 0,
        "load": requests.load if requests is not None else 0,
    }
