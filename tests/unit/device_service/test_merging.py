"""Merging for slow readers: nothing lost, nothing reordered, pieces bounded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from device_service.codec.outputs import step_output
from device_service.merging import Delta, PendingSteps, values_of
from device_service.records import (
    EventKind,
    Finish,
    FinishKind,
    PrefillReport,
    RequestUpdate,
    SessionStats,
    StepUpdates,
    TokenLogprobs,
)
from tests.support.attach_client import Output, unpack


def stats(**changes: int) -> SessionStats:
    values = {"running": 1, "waiting": 0, "prefix_queries": 10, "prefix_hits": 4}
    return SessionStats(kv_usage=0.5, prefix_requests=1, **(values | changes))


def step(number: int, *updates: RequestUpdate, **changes: int) -> StepUpdates:
    return StepUpdates(number, float(number), list(updates), stats(**changes))


def token(handle: int, token_id: int, top: int | None = None) -> RequestUpdate:
    logprobs = None
    if top is not None:
        ids, values = list(range(top)), [0.0] * top
        logprobs = [TokenLogprobs(-1.0, 1, ids, values)]
    return RequestUpdate(handle, [token_id], logprobs)


def add(pending: PendingSteps, update: StepUpdates) -> None:
    pending.add(update, update.updates)


def test_reader_that_keeps_up_gets_each_step() -> None:
    pending = PendingSteps()
    for number in (1, 2):
        add(pending, step(number, token(7, number)))
        piece = pending.take()
        assert piece.step_number == number
        assert piece.deltas[7].token_ids == [number]
    assert not pending
    assert pending.merged_steps == 0


def test_steps_that_pile_up_are_one() -> None:
    pending = PendingSteps()
    add(pending, step(1, token(7, 1), token(8, 1), running=2))
    add(pending, step(2, token(7, 2), running=1))
    add(pending, step(3, token(9, 1), running=3))
    assert pending.merged_steps == 2
    piece = pending.take()
    assert piece.step_number == 3
    assert piece.monotonic_seconds == 3.0
    assert {h: d.token_ids for h, d in piece.deltas.items()} == {
        7: [1, 2],
        8: [1],
        9: [1],
    }
    assert not pending


def test_gauges_are_the_newest_and_counters_add_up() -> None:
    pending = PendingSteps()
    add(pending, step(1, running=5, prefix_queries=10, prefix_hits=1))
    add(pending, step(2, running=2, prefix_queries=7, prefix_hits=2))
    merged = pending.take().stats
    assert merged is not None
    assert (merged.running, merged.prefix_queries, merged.prefix_hits) == (2, 17, 3)
    assert merged.prefix_requests == 2
    assert not pending


def test_aborted_request_leaves_the_others() -> None:
    pending = PendingSteps()
    add(pending, step(1, token(7, 1), token(8, 1)))
    pending.drop(7)
    pending.drop(99)
    assert set(pending.take().deltas) == {8}


def test_first_report_and_last_finish_survive() -> None:
    pending = PendingSteps()
    report, finish = PrefillReport(3, 1), Finish(FinishKind.LENGTH)
    first = RequestUpdate(7, [1], prefill=report, events=((EventKind.QUEUED, 0.5),))
    last = RequestUpdate(7, [3], finish=finish, events=((EventKind.PREEMPTED, 0.7),))
    for number, update in enumerate((first, token(7, 2), last)):
        add(pending, step(number, update))
    delta = pending.take().deltas[7]
    assert delta.token_ids == [1, 2, 3]
    assert delta.prefill is report
    assert delta.finish is finish
    assert delta.events == ((EventKind.QUEUED, 0.5), (EventKind.PREEMPTED, 0.7))


def test_engine_lists_are_not_touched() -> None:
    pending = PendingSteps()
    update = token(7, 1, top=2)
    add(pending, step(1, update))
    add(pending, step(2, token(7, 2, top=2)))
    assert update.token_ids == [1]
    assert update.logprobs is not None
    assert len(update.logprobs) == 1


def test_split_leaves_the_end_behind() -> None:
    delta = Delta(
        [1, 2, 3], finish=Finish(FinishKind.STOP), prefill=PrefillReport(1, 0)
    )
    head = delta.split(2)
    assert head.token_ids == [1, 2]
    assert head.prefill is not None
    assert head.finish is None
    assert delta.token_ids == [3]
    assert delta.prefill is None
    assert delta.finish is not None


def test_one_token_is_never_split() -> None:
    pending = PendingSteps()
    add(pending, step(1, token(7, 1, top=20)))
    assert pending.take(max_values=1).deltas[7].token_ids == [1]
    assert not pending


WORK = st.lists(
    st.tuples(st.integers(1, 4), st.integers(0, 99), st.sampled_from([None, 0, 3])),
    max_size=40,
)


@given(work=WORK, limit=st.integers(1, 30), reads=st.lists(st.booleans(), max_size=40))
def test_no_token_is_lost_whatever_the_reader_does(
    work: list[tuple[int, int, int | None]], limit: int, reads: list[bool]
) -> None:
    """Tokens arrive in order, each once, through columns and pieces."""
    kinds: dict[int, int | None] = {}
    pending, found = PendingSteps(), dict[int, Output]()
    expected: dict[int, list[int]] = {}
    for number, (handle, token_id, top) in enumerate(work):
        kind = kinds.setdefault(handle, top)
        expected.setdefault(handle, []).append(token_id)
        add(pending, step(number, token(handle, token_id, kind)))
        if number < len(reads) and reads[number]:
            read(pending, limit, found)
    while pending:
        read(pending, limit, found)
    assert {h: o.token_ids for h, o in found.items()} == expected
    for handle, output in found.items():
        if kinds[handle] is not None:
            assert len(output.logprobs) == len(output.token_ids)


def read(pending: PendingSteps, limit: int, found: dict[int, Output]) -> None:
    piece = pending.take(limit)
    values = [values_of(d.token_ids, d.logprobs) for d in piece.deltas.values()]
    assert sum(values) <= limit or len(values) == 1
    unpack(step_output(piece), found)
