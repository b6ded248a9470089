"""The requests that this frontend has open in the device service."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from frontend.codec.outputs import Decoding
from ttserve.errors import TTServeError


@dataclass(frozen=True, slots=True)
class OpenRequest:
    """A submission that has not ended.

    `admission` is done when the device service has accepted it, and holds the
    error when it was rejected or its session was lost before.
    """

    handle: int
    request_id: str
    admission: asyncio.Future[None]
    decoding: Decoding


class OpenRequests:
    """Open requests by handle and by id; handles are never used again.

    Event loop only. It must be empty whenever no HTTP request runs.
    """

    def __init__(self) -> None:
        self._by_handle: dict[int, OpenRequest] = {}
        self._by_id: dict[str, OpenRequest] = {}
        self._last_handle = 0

    def __len__(self) -> int:
        return len(self._by_handle)

    def add(self, request_id: str) -> OpenRequest:
        """Open a request under a handle of its own."""
        self._last_handle += 1
        request = OpenRequest(
            handle=self._last_handle,
            request_id=request_id,
            admission=asyncio.get_running_loop().create_future(),
            decoding=Decoding(request_id),
        )
        # Whoever waits for it may have been cancelled: then nobody asks.
        request.admission.add_done_callback(_mark_retrieved)
        self._by_handle[request.handle] = request
        self._by_id[request_id] = request
        return request

    def find(self, handle: int) -> OpenRequest | None:
        """The open request with this handle."""
        return self._by_handle.get(handle)

    def find_decoding(self, handle: int) -> Decoding | None:
        """What the decoder knows of the open request with this handle."""
        request = self._by_handle.get(handle)
        return None if request is None else request.decoding

    def close(self, handle: int) -> OpenRequest | None:
        """Forget a request that has ended."""
        request = self._by_handle.pop(handle, None)
        if request is not None:
            self._by_id.pop(request.request_id, None)
        return request

    def close_ids(self, request_ids: Iterable[str]) -> list[int]:
        """Forget requests by id; return the handles of those that were open."""
        found = [self._by_id[name] for name in request_ids if name in self._by_id]
        for request in found:
            self.close(request.handle)
        return [request.handle for request in found]

    def open_handles(self) -> list[int]:
        """All of them, oldest first."""
        return list(self._by_handle)

    def accept(self, handle: int) -> None:
        """The device service has a request in its queue."""
        request = self._by_handle.get(handle)
        if request is not None and not request.admission.done():
            request.admission.set_result(None)

    def reject(self, handle: int, error: TTServeError) -> None:
        """The device service refused a request."""
        request = self.close(handle)
        if request is not None and not request.admission.done():
            request.admission.set_exception(error)

    def fail_all(self, error: TTServeError) -> list[str]:
        """Close everything; return the ids of requests that had been accepted.

        The others hear of it through their admission.
        """
        accepted = []
        for handle in list(self._by_handle):
            request = self._by_handle[handle]
            if request.admission.done():
                accepted.append(request.request_id)
                self.close(handle)
            else:
                self.reject(handle, error)
        return accepted


def _mark_retrieved(admission: asyncio.Future[None]) -> None:
    if not admission.cancelled():
        admission.exception()
