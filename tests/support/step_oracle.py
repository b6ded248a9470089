"""What the records of an engine's steps must say, whatever was asked of it.

It replays the records and knows the scheduling rules as a reader of the contract
would (2.1 to 2.5), nothing of how the engine comes by its decisions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field

from device_service.records import FinishKind, Phase, RowRecord, StepRecord
from device_service.scheduling.interleave import InterleaveConfig
from tests.support.rig import Stream


@dataclass(frozen=True)
class Rules:
    """The configuration, as far as it decides about steps. `budget` None: whole."""

    lanes: int
    rows: int
    budget: int | None
    threshold: int
    interleave: InterleaveConfig
    by_priority: bool

    @property
    def chunk(self) -> float:
        """Tokens by which a prompt advances when nothing else limits it."""
        if self.budget is None:
            return math.inf
        return min(self.budget, self.threshold or self.budget)


@dataclass(eq=False)
class Asked:
    """A request, and what the records tell about it.

    arrived: number of the newest step when it came. lane: where it belongs.
    computed, made: tokens in its cache and tokens given to it, as replayed.
    decoding: past its prompt. told: places of the records that gave it a token.
    """

    stream: Stream
    expected: list[int]
    priority: int
    arrived: int
    lane: int
    aborted: bool = False
    computed: int = 0
    made: int = 0
    decoding: bool = False
    row: int | None = None
    late_rows: int = 0
    preempted_at: list[int] = field(default_factory=list)
    first_planned: int | None = None
    told: list[int] = field(default_factory=list)

    @property
    def prompt_length(self) -> int:
        return self.stream.request.num_prompt_tokens

    @property
    def max_tokens(self) -> int:
        return self.stream.request.max_tokens

    @property
    def has_all(self) -> bool:
        """Whether it has been given every token that it will get."""
        return self.made == len(self.stream.token_ids)

    def leave_row(self, place: int) -> None:
        """Preempted while the step of the record at `place` was planned."""
        self.row, self.computed, self.decoding = None, 0, False
        self.preempted_at.append(place)

    @property
    def finished(self) -> bool:
        """Whether it came to its own end."""
        finish = self.stream.finish
        return finish is not None and finish.kind is not FinishKind.ABORT


class StepOracle:
    """Holds the records of a run against the rules; every method asserts."""

    def __init__(
        self, rules: Rules, asked: Sequence[Asked], resets: Collection[int] = ()
    ) -> None:
        """`resets`: numbers of the steps after which all had to start over."""
        self._rules = rules
        self._asked = asked
        self._by_id = {it.stream.request_id: it for it in asked}
        self._resets = resets
        self._phases: list[Phase] = []

    def check(self, records: Sequence[StepRecord]) -> None:
        """Everything, over all steps of the run, which is over."""
        for place, record in enumerate(records):
            self._phases.append(record.phase)
            self._replay(place, record)
        for asked in self._asked:
            self._check_end(asked)
            self._check_gaps(asked)
        self._check_order()
        self._check_waits(records)

    # -- step by step ------------------------------------------------------

    def _replay(self, place: int, record: StepRecord) -> None:
        assert not record.error
        for name in record.preempted:
            asked = self._by_id[name]
            assert asked.row is not None
            if record.number - 1 not in self._resets:
                self._check_victim(asked, record)
            asked.leave_row(place)
        assert any(lane.rows for lane in record.lanes), "an empty step"
        for lane in record.lanes:
            taken = [row.row for row in lane.rows]
            assert len(set(taken)) == len(taken) <= self._rules.rows
            assert {row // self._rules.rows for row in taken} <= {lane.lane}
            for row in lane.rows:
                asked = self._by_id[row.request_id]
                assert asked.lane == lane.lane
                self._share(place, record.phase, asked, row)
            if self._rules.budget is not None and record.phase is Phase.PREFILL:
                assert sum(row.tokens for row in lane.rows) <= self._rules.budget

    def _check_victim(self, victim: Asked, record: StepRecord) -> None:
        """Who gives way in a phase comes after all who have a share in it."""
        if victim.decoding is not (record.phase is Phase.DECODE):
            return  # a prompt of the prefill attempt that a decode step replaced
        for row in record.lanes[victim.lane].rows:
            asked = self._by_id[row.request_id]
            assert self._order(asked) < self._order(victim)

    def _order(self, asked: Asked) -> tuple[int, int]:
        return asked.priority, self._asked.index(asked)

    def _share(self, place: int, phase: Phase, asked: Asked, row: RowRecord) -> None:
        if asked.first_planned is None:
            asked.first_planned = place
        if asked.has_all and not row.intermediate_chunk:
            # Its end came while the step was in flight; there are two at most.
            asked.late_rows += 1
            assert asked.late_rows <= 2
            assert row.produced_tokens == 0
            return
        assert asked.row in (None, row.row), "a request moved to another row"
        known = asked.prompt_length + asked.made
        end = row.start_position + row.tokens
        if phase is Phase.DECODE:
            assert asked.decoding, "a prompt in a decode step"
            assert (row.start_position, row.tokens) == (known - 1, 1)
        else:
            assert not asked.decoding, "a decoding row in a prefill step"
            newly_placed = asked.row is None
            assert newly_placed or row.start_position == asked.computed
            assert row.start_position < end <= known
            assert row.tokens <= self._rules.chunk
        asked.row, asked.computed = row.row, end
        assert row.intermediate_chunk is (end < known)
        assert row.produced_tokens == int(end == known)
        if row.produced_tokens:
            asked.made += 1
            asked.decoding = True
            asked.told.append(place)

    # -- request by request ------------------------------------------------

    def _check_end(self, asked: Asked) -> None:
        """Neither lost nor doubled nor wrong: each token of each request."""
        stream = asked.stream
        assert stream.finish is not None
        if stream.finish.kind is FinishKind.ABORT:
            assert asked.aborted
            assert stream.token_ids == asked.expected[: len(stream.token_ids)]
        else:
            assert stream.finish.error is None
            assert stream.token_ids == asked.expected
            full = len(asked.expected) == asked.max_tokens
            assert full or stream.finish.kind is FinishKind.STOP
        assert len(asked.told) == len(stream.token_ids)
        if asked.finished:
            assert len(asked.preempted_at) == stream.request.num_preemptions

    def _check_gaps(self, asked: Asked) -> None:
        """A decoding row is in every decode step, and these come in time."""
        interleave = self._rules.interleave
        for last, following in itertools.pairwise(asked.told):
            if any(last < at <= following for at in asked.preempted_at):
                continue
            between = self._phases[last + 1 : following]
            assert Phase.DECODE not in between, "left out of a decode step"
            if interleave.enabled:
                assert len(between) <= interleave.prefill_steps

    def _check_order(self) -> None:
        """First come, first served, among equals of a lane.

        Nobody gets a share before who came earlier, nor a first token, unless a
        threshold lets short prompts pass a long one.
        """
        for lane, priority in itertools.product(range(self._rules.lanes), range(3)):
            equals = [
                it for it in self._asked if it.lane == lane and it.priority == priority
            ]
            for earlier, later in itertools.combinations(equals, 2):
                if later.first_planned is not None and not earlier.aborted:
                    assert earlier.first_planned is not None
                    assert earlier.first_planned <= later.first_planned
                if later.told and not earlier.aborted and not self._rules.threshold:
                    assert earlier.told[0] <= later.told[0]

    # -- nobody starves ----------------------------------------------------

    def _check_waits(self, records: Sequence[StepRecord]) -> None:
        orderly = not self._rules.by_priority and not any(
            it.preempted_at for it in self._asked
        )
        for asked in self._asked:
            if not asked.finished:
                continue
            life = records[asked.told[-1]].number - asked.arrived
            assert life <= self._work_at_most(asked, records)
            if orderly:
                assert life <= self._turn_at_most(asked, records)

    def _work_at_most(self, asked: Asked, records: Sequence[StepRecord]) -> int:
        """Every step advances somebody, so all the work there is bounds a wait."""
        return sum(
            self._prefills(it) + it.max_tokens + 2
            for it in self._beside(asked, records)
        )

    def _turn_at_most(self, asked: Asked, records: Sequence[StepRecord]) -> int:
        """Later requests cost prefill steps at most, if nobody is preempted.

        A decode step while it waits or decodes serves an earlier one of its lane,
        or itself; others come only through the interleave policy, at most so many
        after each prefill step.
        """
        beside = self._beside(asked, records)
        prefills = sum(self._prefills(it) for it in beside)
        before = [it for it in beside if it.lane == asked.lane]
        before = before[: before.index(asked) + 1]
        decodes = sum(it.max_tokens for it in before)
        interleave = self._rules.interleave
        if interleave.enabled:
            decodes += interleave.decode_steps * (prefills + 1)
        late = 2 * sum(it.aborted for it in beside)
        return prefills + decodes + late

    def _prefills(self, asked: Asked) -> int:
        """Steps that its prompt takes, and its replays, when it comes first."""
        times = 1 + len(asked.preempted_at)
        chunk = self._rules.chunk
        longest = asked.prompt_length
        if asked.preempted_at:
            longest += asked.max_tokens
        return times * (1 if math.isinf(chunk) else math.ceil(longest / chunk))

    def _beside(self, asked: Asked, records: Sequence[StepRecord]) -> list[Asked]:
        """Who lived at any time of its life, itself included."""
        ended = records[asked.told[-1]].number
        return [
            it
            for it in self._asked
            if it.arrived <= ended
            and (not it.told or records[it.told[-1]].number >= asked.arrived)
        ]
