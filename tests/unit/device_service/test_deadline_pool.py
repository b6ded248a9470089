"""Work that hangs is given up, is counted, and holds up nobody."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future

import pytest

from device_service.deadline_pool import DeadlinePool, Job, Overrun, TooManyOverruns


class Hanging:
    """Work that ends when the test lets it."""

    def __init__(self) -> None:
        self.began = threading.Event()
        self.may_end = threading.Event()

    def __call__(self) -> str:
        self.began.set()
        assert self.may_end.wait(timeout=60)
        return "late"


@pytest.fixture
def hanging() -> Iterator[Hanging]:
    work = Hanging()
    yield work
    work.may_end.set()


def start(pool: DeadlinePool, work: Callable[[], str]) -> Future[object]:
    outcome: Future[object] = Future()
    pool.submit(Job(work, outcome.set_result))
    return outcome


def make_pool(threads: int = 2, seconds: float = 30.0, most: int = 2) -> DeadlinePool:
    return DeadlinePool(threads=threads, seconds=seconds, most_abandoned=most)


def wait_until(condition: Callable[[], bool]) -> None:
    limit = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < limit
        time.sleep(0.005)


def test_results_and_errors_come_back() -> None:
    pool = make_pool()
    assert start(pool, lambda: "done").result(30) == "done"
    error = start(pool, lambda: str(1 // 0)).result(30)
    assert isinstance(error, ZeroDivisionError)


def test_more_jobs_than_threads_are_all_done() -> None:
    pool = make_pool()
    outcomes = [start(pool, lambda i=i: str(i)) for i in range(50)]  # type: ignore[misc]
    assert [outcome.result(30) for outcome in outcomes] == [str(i) for i in range(50)]


def test_overrun_work_is_reported_once_and_its_place_given_on(hanging: Hanging) -> None:
    pool = make_pool(threads=1, seconds=0.05)
    stuck = start(pool, hanging)
    behind = start(pool, lambda: "done")
    assert isinstance(stuck.result(30), Overrun)
    assert behind.result(30) == "done"
    assert pool.abandoned == 1
    hanging.may_end.set()  # a second report would raise in its thread
    wait_until(lambda: pool.abandoned == 0)


def test_with_too_many_abandoned_new_work_is_refused(hanging: Hanging) -> None:
    pool = make_pool(threads=1, seconds=0.05, most=2)
    for _ in range(2):
        assert isinstance(start(pool, hanging).result(30), Overrun)
    assert isinstance(start(pool, lambda: "done").result(0), TooManyOverruns)
    hanging.may_end.set()
    wait_until(lambda: pool.abandoned == 0)
    assert start(pool, lambda: "done").result(30) == "done"


def test_a_cancelled_job_that_waits_never_begins(hanging: Hanging) -> None:
    pool = make_pool(threads=1)
    first = start(pool, hanging)
    begun: list[str] = []
    job = Job(lambda: begun.append("never"), lambda _: begun.append("reported"))
    pool.submit(job)
    pool.cancel(job)
    hanging.may_end.set()
    assert first.result(30) == "late"
    assert start(pool, lambda: "after").result(30) == "after"
    assert begun == []
