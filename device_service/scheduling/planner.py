"""The phase scheduler: one phase for all lanes, their shares merged into a plan.

Rules: contract 2.2 to 2.5. A step is prefill-only or decode-only; prefill goes
first while any lane wants it, unless the interleave policy inserts a decode
step or prefill makes no progress.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Rows
from operator import attrgetter

from device_service.records import (
    OverlapVerdict,
    Phase,
    PlannedRow,
    SamplingVerdict,
    StepIntent,
    StepPlan,
)
from device_service.scheduling.interleave import InterleavePolicy
from device_service.scheduling.lane import Lane

SamplingRule = Callable[[Phase, Rows[PlannedRow]], SamplingVerdict]


class Planner:
    """Decides the phase and merges the lanes' shares. Engine thread only."""

    def __init__(
        self,
        lanes: Rows[Lane],
        interleave: InterleavePolicy,
        sampling_rule: SamplingRule,
    ) -> None:
        self._lanes = lanes
        self._interleave = interleave
        self._sampling_rule = sampling_rule
        self._number = 0

    @property
    def last_number(self) -> int:
        """Number of the newest planned step; 0 before the first."""
        return self._number

    @property
    def interleave_runs(self) -> tuple[int, int]:
        """Where the interleave policy stands."""
        return self._interleave.runs

    def restore(self, last_number: int, interleave_runs: tuple[int, int]) -> None:
        """Go on from a picture."""
        self._number = last_number
        self._interleave.restore(interleave_runs)

    def plan(self, overlap: OverlapVerdict) -> StepPlan | None:
        """Plan the next step, or nothing when no row can move.

        The plan names everybody who was preempted since the last one: in a prefill
        that came to nothing and for a reset of the prefix cache, too.
        """
        shares: list[PlannedRow] = []
        phase, reason = self._choose(shares)
        if not shares:
            return None
        self._number += 1
        rows = tuple(sorted(shares, key=attrgetter("row")))
        return StepPlan(
            number=self._number,
            intent=StepIntent(phase, reason, overlap),
            rows=rows,
            sampling=self._sampling_rule(phase, rows),
            preempted=tuple(
                name for lane in self._lanes for name in lane.take_preempted()
            ),
            waiting=sum(len(lane.waiting) for lane in self._lanes),
        )

    def _choose(self, shares: list[PlannedRow]) -> tuple[Phase, str]:
        """Run the lanes in one phase; fall back to decode when prefill is stuck."""
        for lane in self._lanes:
            lane.kv.begin_step()
        pending = any(lane.wants_prefill for lane in self._lanes)
        can_decode = any(lane.can_decode for lane in self._lanes)
        if not pending:
            self._decode(shares, prefill_pending=False)
            return Phase.DECODE, "no_prefill_pending"
        if can_decode and self._interleave.decode_is_due():
            self._decode(shares, prefill_pending=True)
            return Phase.DECODE, "interleave"
        for lane in self._lanes:
            shares += lane.plan_prefill()
        if shares or not can_decode:
            self._interleave.record_prefill()
            return Phase.PREFILL, "prefill_pending"
        self._decode(shares, prefill_pending=True)
        return Phase.DECODE, "prefill_stuck"

    def _decode(self, shares: list[PlannedRow], *, prefill_pending: bool) -> None:
        for lane in self._lanes:
            shares += lane.plan_decode()
        self._interleave.record_decode(prefill_pending=prefill_pending)
