"""The requests that this frontend has open in one device service."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Protocol

from frontend.codec.outputs import DecodedStep, Decoding, decode_step
from frontend.device.session import Session
from frontend.engine.requests import OpenRequest
from ttserve.errors import Reason, TTServeError
from ttserve.status import from_status
from ttserve.v1 import device_pb2

logger = logging.getLogger(__name__)


_LEAVING = TTServeError(
    Reason.DRAINING, "the device service is leaving", retry_after=1.0
)


class Owner(Protocol):
    """Who has the requests of all device services."""

    def stepped(
        self, device: DeviceRequests, step: DecodedStep, ended: list[OpenRequest]
    ) -> None:
        """Outputs came, the last ones of those that `ended`."""

    def lost(
        self, device: DeviceRequests, requests: list[OpenRequest], error: TTServeError
    ) -> None:
        """Nothing more comes of these from there."""

    def session_lost(self, device: DeviceRequests) -> None:
        """It has none of our requests any more; `lost` came first."""

    def closed(self, device: DeviceRequests) -> None:
        """It will not be used again."""


class DeviceRequests:
    """Sends requests over whatever session is ready, and knows them by handle.

    Handles are never used again. Event loop only. It must be empty whenever no HTTP
    request runs.
    """

    def __init__(self, name: str, owner: Owner) -> None:
        self.name = name
        self._owner = owner
        self._session: Session | None = None
        self._draining: Session | None = None
        self._leaving = False
        self._unavailable: TTServeError | None = TTServeError(
            Reason.NOT_READY, "the device service is not connected", retry_after=1.0
        )
        self._by_handle: dict[int, OpenRequest] = {}
        self._last_handle = 0
        self._live_elsewhere = 0

    def __len__(self) -> int:
        return len(self._by_handle)

    @property
    def load(self) -> int:
        """Requests that run or wait there: ours now, and those that others had.

        The others' are known as of the newest heartbeat.
        """
        return self._live_elsewhere + len(self._by_handle)

    @property
    def unavailable(self) -> TTServeError | None:
        """Why nothing can be submitted now; None if something can."""
        return _LEAVING if self._leaving else self._unavailable

    # -- what the connection says --------------------------------------------

    def session_ready(self, session: Session) -> None:
        """Submit here from now on."""
        self._session = session
        self._unavailable = None

    def session_draining(self, session: Session) -> None:
        """What runs goes on; nothing new is submitted."""
        self._draining = session
        self._unavailable = TTServeError(
            Reason.DRAINING, "the device service is shutting down", retry_after=1.0
        )
        self._finish_if_drained()

    def session_lost(self, error: TTServeError) -> None:
        """Nothing more comes of what was open; told of every failed attempt too."""
        self._session = self._draining = None
        self._unavailable = error
        self._live_elsewhere = 0
        lost = list(self._by_handle.values())
        self._by_handle.clear()
        if lost:
            self._owner.lost(self, lost, error)
        self._owner.session_lost(self)

    def take(self, response: device_pb2.AttachResponse) -> None:
        """An answer to a submission, or what a step produced."""
        match response.WhichOneof("event"):
            case "step":
                self._take_step(decode_step(response.step, self._find_decoding))
            case "accepted":
                request = self._by_handle.get(response.accepted.handle)
                if request is not None and not request.admission.done():
                    request.admission.set_result(None)
            case "rejected":
                refused = self._by_handle.pop(response.rejected.handle, None)
                if refused is not None:
                    error = from_status(response.rejected.status)
                    self._owner.lost(self, [refused], error)
            case other:
                # A newer minor may add events; they concern newer frontends.
                logger.debug("ignored a message %r", other)
        self._finish_if_drained()

    def load_reported(self, live_requests: int) -> None:
        """What all frontends have there; ours of these are known better here."""
        self._live_elsewhere = max(0, live_requests - len(self._by_handle))

    # -- what the fleet says -------------------------------------------------

    def leave(self) -> None:
        """Submit nothing new, even to a session that is ready."""
        self._leaving = True

    def rejoin(self) -> None:
        """Submit again, to a session that is ready."""
        self._leaving = False

    def close(self) -> None:
        """It will not be used again; what is still open there is lost."""
        self.session_lost(
            TTServeError(Reason.DEVICE_LOST, "the device service is not used any more")
        )
        self._owner.closed(self)

    # -- what the client says ------------------------------------------------

    def submit(self, request: OpenRequest) -> None:
        """Send a request whose submission is there; a session must be ready."""
        assert self._session is not None
        assert request.submission is not None
        self._last_handle += 1
        request.handle = request.submission.handle = self._last_handle
        self._by_handle[request.handle] = request
        self._session.submit(request.submission)

    def abort(
        self, requests: Iterable[OpenRequest], cause: device_pb2.AbortCause
    ) -> None:
        """Forget requests and stop them there; what still comes is ignored."""
        handles = [
            request.handle
            for request in requests
            if self._by_handle.get(request.handle) is request
        ]
        for handle in handles:
            del self._by_handle[handle]
        if handles and self._session is not None:
            self._session.abort(handles, cause)
        self._finish_if_drained()

    # -- inside --------------------------------------------------------------

    def _finish_if_drained(self) -> None:
        """Let a device service go that drains, once we have read the last answers."""
        if self._draining is not None and not self._by_handle:
            self._draining.finish()
            self._draining = None

    def _find_decoding(self, handle: int) -> Decoding | None:
        request = self._by_handle.get(handle)
        return None if request is None else request.decoding

    def _take_step(self, step: DecodedStep) -> None:
        for handle in step.begun_handles:
            request = self._by_handle[handle]
            request.submission = None
            request.placement.movable = False
        ended = [self._by_handle.pop(handle) for handle in step.finished_handles]
        self._owner.stepped(self, step, ended)
        for handle, error in step.stillborn:
            self._owner.lost(self, [self._by_handle.pop(handle)], error)
