"""An in-order queue of work with one worker thread: the host's command queue.

Whoever makes a `HostQueue` owns it and closes it. Submissions come from any
thread and run one after the other on the worker; one that raises fails its own
task and nothing else.
"""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class QueueClosed(RuntimeError):
    """The queue was closed before the work began."""


class Task(Generic[T]):
    """One submission. Times are seconds on `time.monotonic()`."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work: Callable[[], T] | None = work
        self._future: Future[T] = Future()
        self.submitted = time.monotonic()
        self._span: tuple[float, float] | None = None

    def done(self) -> bool:
        """Whether the work has ended, well or not."""
        return self._future.done()

    def result(self) -> T:
        """Wait for the work; raises what it raised, each time."""
        return self._future.result()

    def exception(self) -> BaseException | None:
        """Wait for the work; what it raised, or None."""
        return self._future.exception()

    def on_done(self, callback: Callable[[], None]) -> None:
        """Call back once: on the worker, or here and now if the work has ended."""
        self._future.add_done_callback(lambda _: callback())

    def span(self) -> tuple[float, float]:
        """When the worker began and ended the work; only after `done`."""
        if self._span is None:
            raise RuntimeError("the work has not run")
        return self._span

    def run(self) -> None:
        """Do the work; only the worker calls this, once.

        The work is let go of first, or a finished task would keep everything
        that its closure holds.
        """
        work, self._work = self._work, None
        if work is None:
            raise RuntimeError("a task runs once")
        began = time.monotonic()
        try:
            value = work()
        except BaseException as error:  # noqa: BLE001 - the task carries it to its owner
            self._span = (began, time.monotonic())
            self._future.set_exception(error)
        else:
            self._span = (began, time.monotonic())
            self._future.set_result(value)

    def drop(self) -> None:
        """Fail work that will not run."""
        self._work = None
        now = time.monotonic()
        self._span = (now, now)
        self._future.set_exception(QueueClosed("the mesh was closed"))


class HostQueue:
    """The worker thread and its queue; open from construction to `close`.

    `within` makes a context that the worker stays in for its whole life.
    """

    def __init__(
        self,
        name: str,
        within: Callable[[], AbstractContextManager[Any]] = nullcontext,
    ) -> None:
        self._within = within
        self._tasks: queue.SimpleQueue[Task[Any] | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._closed = False
        # A daemon, so that a process that must die with a step in flight can.
        self._worker = threading.Thread(target=self._run, name=name, daemon=True)
        self._worker.start()

    def submit(self, work: Callable[[], T]) -> Task[T]:
        """Queue work behind everything submitted before; raises QueueClosed."""
        task = Task(work)
        with self._lock:
            if self._closed:
                raise QueueClosed("the mesh is closed")
            self._tasks.put(task)
        return task

    def close(self) -> None:
        """Finish the work in progress, fail what waits, end the worker.

        May be called any number of times.
        """
        with self._lock:
            if not self._closed:
                self._closed = True
                self._tasks.put(None)
        self._worker.join()

    def _run(self) -> None:
        with self._within():
            while (task := self._tasks.get()) is not None:
                if self._closed:
                    task.drop()
                else:
                    task.run()
                del task  # or the newest result would live until the next one
