"""Where a frontend stands between its start and its end."""

from __future__ import annotations

import enum
from typing import Any

from frontend.device.connection import Connection, DeviceState
from frontend.metrics import FrontendMetrics


class Phase(enum.Enum):
    """The values are the words in which /ready says why it is not ready."""

    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"


class Lifecycle:
    """The phase of this process and the state of its connection, as one answer."""

    def __init__(self, metrics: FrontendMetrics) -> None:
        self.phase = Phase.STARTING
        self.waiting_for = "vLLM is being loaded"
        self.connection: Connection | None = None
        self._metrics = metrics

    def reasons(self) -> list[tuple[str, str]]:
        """Why no request can be served: a word and a sentence each."""
        found = []
        if self.phase is Phase.STARTING:
            found.append((Phase.STARTING.value, self.waiting_for))
        elif self.phase is Phase.DRAINING:
            found.append((Phase.DRAINING.value, "this frontend is shutting down"))
        connection = self.connection
        if connection is not None and connection.state is not DeviceState.READY:
            found.append((connection.state.value, connection.reason))
        self._metrics.ready.set(0 if found else 1)
        return found

    def details(self) -> dict[str, Any]:
        """The device service that this frontend is attached to."""
        connection = self.connection
        return {"device_instance": connection.instance_id if connection else None}
