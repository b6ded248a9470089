"""The device services of a frontend, and which of them gets a request."""

from __future__ import annotations

from frontend.engine.device_requests import DeviceRequests, Owner
from frontend.engine.requests import Placement
from frontend.routing.router import Router
from ttserve.errors import Reason, TTServeError
from ttserve.v1.generation_pb2 import Submission
from ttserve.v1.model_pb2 import Model

_NONE_KNOWN = TTServeError(
    Reason.NOT_READY, "no device service is known", retry_after=1.0
)
_SOONEST_OVER = (Reason.NOT_READY, Reason.DRAINING)


class Devices:
    """All device services by name, usable or not. Event loop only."""

    def __init__(self, model: Model) -> None:
        scheduling = model.scheduling
        rows = scheduling.lanes * scheduling.rows_per_lane
        self._most_requests = rows + model.limits.max_queued_requests
        self._router = Router(model)
        self._by_name: dict[str, DeviceRequests] = {}

    def add(self, name: str, owner: Owner) -> DeviceRequests:
        """Another one; `name` is not in use."""
        device = self._by_name[name] = DeviceRequests(name, owner)
        return device

    def remove(self, name: str) -> None:
        """One that is not used any more."""
        del self._by_name[name]

    def forget_prefixes(self, name: str) -> None:
        """Its prefix cache may be gone."""
        self._router.forget(name)

    @property
    def refusal(self) -> TTServeError | None:
        """Why none takes requests; None if one does.

        Of several reasons, the one that is over soonest.
        """
        errors = []
        for device in self._by_name.values():
            if device.unavailable is None:
                return None
            errors.append(device.unavailable)
        return min(errors, key=_hopelessness, default=_NONE_KNOWN)

    def choose(self, message: Submission) -> DeviceRequests | None:
        """The one that gets a request; None if none takes any."""
        return self._route(self._usable(), message)

    def choose_another(
        self, placement: Placement, error: TTServeError
    ) -> DeviceRequests | None:
        """Where what its device has lost with `error` may be sent once more, if
        anywhere: a full queue is left for one that has room.
        """
        sent = [r.submission for r in placement.requests if r.submission is not None]
        if not (placement.movable and sent and error.consequence.retryable):
            return None
        others = [other for other in self._usable() if other is not placement.device]
        if error.reason is Reason.QUEUE_FULL:
            room = self._most_requests - len(placement.requests)
            others = [other for other in others if other.load <= room]
        return self._route(others, sent[0])

    def _usable(self) -> list[DeviceRequests]:
        return [d for d in self._by_name.values() if d.unavailable is None]

    def _route(
        self, usable: list[DeviceRequests], message: Submission
    ) -> DeviceRequests | None:
        if len(self._by_name) == 1 or not usable:
            return next(iter(usable), None)
        loads = {device.name: device.load for device in usable}
        name = self._router.route(loads, message.prompt_token_ids, message.cache_salt)
        return self._by_name[name]


def _hopelessness(error: TTServeError) -> int:
    order = _SOONEST_OVER
    return order.index(error.reason) if error.reason in order else len(order)
