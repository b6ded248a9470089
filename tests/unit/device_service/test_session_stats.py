"""What sessions are told of the scheduler adds up to what there is."""

from __future__ import annotations

from tests.support.rig import ListSink
from tests.unit.device_service.conftest import RigMaker


def test_a_session_whose_requests_wait_is_told_how_many(make_rig: RigMaker) -> None:
    rig = make_rig(rows=2)
    busy, queued = ListSink(), ListSink()
    for _ in range(2):
        rig.submit([1, 2, 3], 20, sink=busy, session_number=1)
    rig.run(4)
    for _ in range(3):
        rig.submit([4, 5], 4, sink=queued, session_number=2)
    rig.run(3)
    newest = [sink.deliveries[-1].stats for sink in (busy, queued)]
    assert [(s.running, s.waiting) for s in newest] == [(2, 0), (0, 3)]
    # Once is enough: nothing has changed since.
    rig.run(3)
    assert len(queued.deliveries) == 1
    rig.run()
    assert [(s.running, s.waiting) for s in (busy.deliveries[-1].stats,)] == [(0, 0)]
    last = queued.deliveries[-1].stats
    assert (last.running, last.waiting) == (0, 0)
