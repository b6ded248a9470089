"""What all meshes have in common: a grid, and a worker thread for events."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

from device_service.mesh.host_queue import HostQueue, QueueClosed, Task

T = TypeVar("T")


class HostMesh:
    """`interface.Mesh` over one worker thread; its events are tasks."""

    def __init__(
        self,
        kind: str,
        grid: tuple[int, int],
        within: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self._kind = kind
        self._grid = grid
        self._within = within
        self._queue: HostQueue | None = None

    @property
    def kind(self) -> str:
        """ "cpu", "sim" or "ttnn"."""
        return self._kind

    @property
    def grid(self) -> tuple[int, int]:
        """(rows, columns)."""
        return self._grid

    @property
    def device(self) -> Any:
        """What adapters submit to: this mesh itself."""
        return self

    def open(self, model_fabric: Mapping[str, Any] | None = None) -> None:
        """Start the worker; a host has no fabric to set up."""
        if self._queue is not None:
            raise RuntimeError("the mesh is open")
        self._queue = HostQueue(f"{self._kind}-mesh", self._within)

    def close(self) -> None:
        """Finish the step in progress, fail those that wait, end the worker."""
        if self._queue is not None:
            self._queue.close()

    def found(self) -> tuple[str, ...]:
        """The grid that is pretended."""
        rows, columns = self._grid
        return (f"mesh {self._kind} stands for {rows} x {columns} devices",)

    def submit(self, work: Callable[[], T]) -> Task[T]:
        """Run `work` on the worker, after everything submitted before."""
        if self._queue is None:
            raise QueueClosed("the mesh is not open")
        return self._queue.submit(work)

    def watch(self, event: Any) -> Task[Any]:
        """Adapters of a host already make tasks."""
        task: Task[Any] = event
        return task

    def synchronize(self, event: Task[Any]) -> None:
        """Block until the task has ended; raises what it raised."""
        event.result()

    def is_done(self, event: Task[Any]) -> bool:
        """Whether the task has ended."""
        return event.done()

    def on_done(self, event: Task[Any], callback: Callable[[], None]) -> None:
        """Call back once when the task has ended."""
        event.on_done(callback)

    def span(self, event: Task[Any]) -> tuple[float, float]:
        """When the worker began and ended the task."""
        return event.span()
