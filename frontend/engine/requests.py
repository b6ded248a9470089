"""Requests on their way, and where they run."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from frontend.codec.outputs import Decoding
from ttserve.v1.generation_pb2 import Submission, SubmissionGroup

if TYPE_CHECKING:
    from frontend.engine.device_requests import DeviceRequests


@dataclass(slots=True, eq=False)
class Placement:
    """Where a request runs, or all children of one with n > 1 together.

    They stay there, but for one move to another device service while nothing has
    come of any of them. `device` is unset before the first is sent; `requests` are
    those that are open, in order.
    """

    device: DeviceRequests | None = None
    group: SubmissionGroup | None = None
    requests: list[OpenRequest] = field(default_factory=list)
    movable: bool = True


@dataclass(slots=True, eq=False)
class OpenRequest:
    """A request that has not ended.

    `admission` is done when a device service has accepted it, and holds the error
    when it was refused or lost before. `submission` is kept until the first token,
    in case it has to be sent again; its handle is that of the session it went to.
    """

    request_id: str
    placement: Placement
    admission: asyncio.Future[None]
    decoding: Decoding
    submission: Submission | None = None
    handle: int = 0

    @classmethod
    def open(cls, request_id: str, placement: Placement) -> OpenRequest:
        """To be called on the event loop."""
        admission: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # Whoever waits for it may have been cancelled: then nobody asks.
        admission.add_done_callback(_mark_retrieved)
        request = cls(request_id, placement, admission, Decoding(request_id))
        placement.requests.append(request)
        return request


def _mark_retrieved(admission: asyncio.Future[None]) -> None:
    if not admission.cancelled():
        admission.exception()
