"""Threads for work that may never end.

Native code cannot be interrupted. Work that is not done in time is reported as
overrun and its thread abandoned: it no longer takes a place in the pool, and its
result is dropped. Abandoned threads are counted, and new work is refused while
there are too many, so that hostile input cannot take the machine.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Generic, TypeVar

Result = TypeVar("Result")


class Overrun(Exception):
    """The work was not done in time."""


class TooManyOverruns(Exception):
    """Earlier work still runs, long past its time."""


@dataclass(frozen=True, slots=True, eq=False)
class Job(Generic[Result]):
    """`done` is called once, from some thread, with a result or an error."""

    work: Callable[[], Result]
    done: Callable[[Result | BaseException], None]


class DeadlinePool:
    """Runs jobs, so many at a time, each for so many seconds at most.

    A job's time begins when it does. Threads are daemons: nothing waits for
    them at exit. All methods may be called from any thread.
    """

    def __init__(self, *, threads: int, seconds: float, most_abandoned: int) -> None:
        self._threads = threads
        self._seconds = seconds
        self._most_abandoned = most_abandoned
        self._lock = threading.Lock()
        self._queue: deque[Job[object]] = deque()
        self._running: set[Job[object]] = set()
        self._abandoned = 0

    @property
    def abandoned(self) -> int:
        """Threads that still run although their time is over."""
        return self._abandoned

    def submit(self, job: Job[Result]) -> None:
        """Run a job when a thread is free."""
        with self._lock:
            refused = self._abandoned >= self._most_abandoned
            if not refused:
                self._queue.append(job)  # type: ignore[arg-type]
                self._begin_next()
        if refused:
            job.done(TooManyOverruns())

    def cancel(self, job: Job[Result]) -> None:
        """Do not begin a job that waits; one that runs is left to run."""
        with self._lock:
            if job in self._queue:
                self._queue.remove(job)  # type: ignore[arg-type]

    def _begin_next(self) -> None:
        """Begin jobs while threads are free. Needs the lock."""
        while self._queue and len(self._running) < self._threads:
            job = self._queue.popleft()
            self._running.add(job)
            timer = threading.Timer(self._seconds, self._expire, [job])
            timer.daemon = True
            timer.start()
            threading.Thread(
                target=self._run, args=(job, timer), name="deadline-pool", daemon=True
            ).start()

    def _run(self, job: Job[object], timer: threading.Timer) -> None:
        try:
            outcome = job.work()
        except BaseException as error:  # noqa: BLE001 - handed to the job's owner
            outcome = error
        timer.cancel()
        with self._lock:
            in_time = job in self._running
            if in_time:
                self._running.remove(job)
            else:
                self._abandoned -= 1
            self._begin_next()
        if in_time:
            job.done(outcome)

    def _expire(self, job: Job[object]) -> None:
        with self._lock:
            if job not in self._running:
                return
            self._running.remove(job)
            self._abandoned += 1
            self._begin_next()
        job.done(Overrun())
