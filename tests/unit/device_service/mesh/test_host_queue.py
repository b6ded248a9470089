"""The queue runs work in order, one at a time, and fails only what failed."""

from __future__ import annotations

import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from device_service.mesh.host_queue import HostQueue, QueueClosed


@pytest.fixture
def queue() -> Iterator[HostQueue]:
    queue = HostQueue("test")
    yield queue
    queue.close()


def test_work_runs_in_order_on_one_thread(queue: HostQueue) -> None:
    ran: list[tuple[int, str]] = []

    def note(number: int) -> None:
        ran.append((number, threading.current_thread().name))

    tasks = [queue.submit(partial(note, number)) for number in range(50)]
    tasks[-1].result()
    assert ran == [(number, "test") for number in range(50)]


def test_a_failure_stays_with_its_task(queue: HostQueue) -> None:
    before = queue.submit(lambda: 1)
    failing = queue.submit(lambda: 1 // 0)
    after = queue.submit(lambda: 2)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            failing.result()
    assert isinstance(failing.exception(), ZeroDivisionError)
    assert (before.result(), after.result(), after.exception()) == (1, 2, None)


def test_spans_follow_each_other(queue: HostQueue) -> None:
    submitted = time.monotonic()
    first = queue.submit(lambda: time.sleep(0.02))
    second = queue.submit(lambda: time.sleep(0.02))
    second.result()
    began, ended = first.span()
    assert submitted <= began
    assert ended - began >= 0.02
    assert second.span()[0] >= ended


def test_a_span_is_not_there_before_the_work(queue: HostQueue) -> None:
    go = threading.Event()
    task = queue.submit(go.wait)
    with pytest.raises(RuntimeError, match="not run"):
        task.span()
    assert not task.done()
    go.set()
    task.result()
    assert task.done()


def test_callbacks_come_once_before_and_after_the_end(queue: HostQueue) -> None:
    go, early, late = threading.Event(), threading.Event(), []
    task = queue.submit(go.wait)
    task.on_done(early.set)
    assert not early.is_set()
    go.set()
    assert early.wait(5)
    task.result()
    task.on_done(lambda: late.append(1))
    assert late == [1]


def test_a_task_lets_go_of_what_its_work_held(queue: HostQueue) -> None:
    class Held:
        pass

    held = Held()
    gone = weakref.ref(held)
    task = queue.submit(partial(id, held))
    task.result()
    del held
    queue.submit(lambda: None).result()
    assert gone() is None


def test_closing_finishes_the_step_and_fails_the_rest() -> None:
    queue = HostQueue("test")
    started, go = threading.Event(), threading.Event()

    def hold() -> str:
        started.set()
        go.wait()
        return "held"

    holding = queue.submit(hold)
    waiting = queue.submit(lambda: "waited")
    assert started.wait(5)
    closer = threading.Thread(target=queue.close)
    closer.start()
    with pytest.raises(QueueClosed):
        while True:
            queue.submit(lambda: None)
            time.sleep(0.001)
    go.set()
    closer.join(5)
    assert holding.result() == "held"
    with pytest.raises(QueueClosed):
        waiting.result()
    queue.close()


def test_the_worker_lives_in_one_context() -> None:
    entered: list[str] = []

    @contextmanager
    def within() -> Iterator[None]:
        entered.append("in")
        yield
        entered.append("out")

    queue = HostQueue("test", within)
    queue.submit(lambda: None).result()
    queue.submit(lambda: None).result()
    queue.close()
    assert entered == ["in", "out"]
