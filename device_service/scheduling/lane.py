"""One lane: its rows, its queue and its blocks.

A mesh without lane data parallelism is one lane; there is no other mode. A
lane plans its share of a prefill step or of a decode step, never of both
(contract 2.2). Planning changes state: rows are given, blocks allocated and
`num_computed_tokens` advanced, as vLLM's scheduler does; `settle` and
`release` follow when the outcome is applied.
"""

from __future__ import annotations

import bisect
import heapq
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from operator import attrgetter

from vllm.v1.request import RequestStatus

from device_service.kv.lane_kv import LaneKV
from device_service.records import EventKind, PlannedRow, PrefillReport
from device_service.scheduling.waiting import WaitingQueue
from device_service.sequence import Sequence


@dataclass(frozen=True, slots=True)
class LaneLimits:
    """What a lane may put into one step.

    `max_batched_tokens` bounds the tokens of a prefill step,
    `long_prefill_threshold` those of one prompt in it (0: no bound).
    """

    rows: int
    max_batched_tokens: int
    long_prefill_threshold: int
    chunked_prefill: bool
    max_model_len: int


class Lane:
    """Rows, queue and blocks of one lane. Engine thread only."""

    def __init__(
        self,
        number: int,
        limits: LaneLimits,
        kv: LaneKV,
        *,
        clock: Callable[[], float],
        on_row_left: Callable[[int], None],
    ) -> None:
        """`on_row_left(merged_row)` is told before a request loses its row.

        `running` is in the order in which requests are served, so that whoever
        must give way has no share in a step yet. `moves` counts how often a row
        was taken or left. `preempted` are those that no plan has named yet.
        """
        self.number = number
        self._first_row = number * limits.rows
        self.limits = limits
        self.kv = kv
        self.waiting = WaitingQueue()
        self.running: list[Sequence] = []
        self.moves = 0
        self.preempted: list[str] = []
        self._free_rows = list(range(limits.rows))
        self._clock = clock
        self._on_row_left = on_row_left

    # -- what the phase decision asks --------------------------------------

    @property
    def load(self) -> int:
        """How busy the lane is, for assignment (contract 2.5)."""
        return 4 * len(self.waiting) + len(self.running)

    @property
    def wants_prefill(self) -> bool:
        """Whether a prefill step could move something forward (contract 2.5)."""
        if any(sequence.is_prefilling for sequence in self.running):
            return True
        return bool(self._free_rows) and self.waiting.first_ready() is not None

    @property
    def can_decode(self) -> bool:
        """Whether some row holds a request past its prompt."""
        return any(not sequence.is_prefilling for sequence in self.running)

    @property
    def is_short_of_blocks(self) -> bool:
        """Whether a decode step needs more blocks than are free."""
        rows = sum(
            sequence.row is not None and self.kv.is_full(sequence.request, sequence.row)
            for sequence in self.running
        )
        return rows * self.kv.groups > self.kv.free_blocks

    def merged_row(self, row: int) -> int:
        """The row of all lanes' grid that a row of this lane is."""
        return self._first_row + row

    def holds(self, merged_row: int) -> bool:
        """Whether a row of all lanes' grid is one of this lane's."""
        return self._first_row <= merged_row < self._first_row + self.limits.rows

    # -- planning ----------------------------------------------------------

    def plan_prefill(self) -> list[PlannedRow]:
        """Continue partial prompts, then admit waiting requests (contract 2.1)."""
        budget = self.limits.max_batched_tokens
        preempted_before = len(self.preempted)
        planned: dict[str, PlannedRow] = {}
        prefilling = deque(s for s in self.running if s.is_prefilling)
        while prefilling and budget > 0:
            sequence = prefilling.popleft()
            num_tokens = self._chunk(sequence.tokens_to_run, budget)
            if not self._extend(sequence, num_tokens, prefilling):
                break
            planned[sequence.request_id] = self._schedule(sequence, num_tokens)
            budget -= num_tokens
        if len(self.preempted) == preempted_before:
            self._admit(budget, planned)
        return list(planned.values())

    def plan_decode(self) -> list[PlannedRow]:
        """One token for every row past its prompt; partial prompts stand still."""
        planned: list[PlannedRow] = []
        decoding = deque(s for s in self.running if not s.request.is_prefill_chunk)
        while decoding:
            sequence = decoding.popleft()
            if sequence.is_spoken_for:
                continue
            if not self._extend(sequence, 1, decoding):
                break
            planned.append(self._schedule(sequence, 1))
        return planned

    def _admit(self, budget: int, planned: dict[str, PlannedRow]) -> None:
        while self._free_rows and budget > 0:
            sequence = self.waiting.first_ready()
            if sequence is None:
                return
            request = sequence.request
            hit = self.kv.find_prefix(request)
            wanted = request.num_tokens - hit.num_tokens
            num_tokens = self._chunk(wanted, budget)
            if num_tokens < wanted and not self.limits.chunked_prefill:
                return
            others = bool(planned) or bool(self.running)
            row = self._free_rows[0]
            if not self.kv.admit(
                request, hit, num_tokens, row, others_scheduled=others
            ):
                return
            self._place(sequence, hit.num_tokens)
            planned[sequence.request_id] = self._schedule(sequence, num_tokens)
            budget -= num_tokens

    def _chunk(self, wanted: int, budget: int) -> int:
        threshold = self.limits.long_prefill_threshold
        if threshold and self.limits.chunked_prefill:
            wanted = min(wanted, threshold)
        return min(wanted, budget)

    def _extend(
        self, sequence: Sequence, num_tokens: int, candidates: deque[Sequence]
    ) -> bool:
        """Make room, preempting from the end of `candidates` as long as it takes.

        `candidates` are the requests of this phase that come after this one;
        none has a share in the step yet, so a plan never has to be taken back.
        The request itself gives way when nobody is left.
        """
        assert sequence.row is not None
        while not self.kv.extend(sequence.request, num_tokens, sequence.row):
            victim = candidates.pop() if candidates else sequence
            # Steps in flight were drained before: their rows must not move.
            assert victim.request.num_in_flight_tokens == 0
            self._preempt(victim)
            if victim is sequence:
                return False
        return True

    def _place(self, sequence: Sequence, cached_tokens: int) -> None:
        """Move a request from the queue into the lowest free row."""
        request = sequence.request
        sequence.row = heapq.heappop(self._free_rows)
        self.moves += 1
        self.waiting.remove(sequence)
        bisect.insort(self.running, sequence, key=attrgetter("order"))
        if request.num_preemptions == 0:
            sequence.prefill_report = PrefillReport(
                prompt_tokens=request.num_tokens, cached_tokens=cached_tokens
            )
        request.status = RequestStatus.RUNNING
        request.num_computed_tokens = cached_tokens
        request.is_prefill_chunk = True
        now = self._clock()
        sequence.events.append((EventKind.SCHEDULED, now))
        if sequence.scheduled_at is None:
            sequence.scheduled_at = now

    def _schedule(self, sequence: Sequence, num_tokens: int) -> PlannedRow:
        """Count the tokens as computed and describe the row's share of the step."""
        request = sequence.request
        assert sequence.row is not None
        start = request.num_computed_tokens
        end = request.num_computed_tokens = start + num_tokens
        request.num_in_flight_tokens += num_tokens
        emits = end == request.num_tokens + request.num_output_placeholders
        request.is_prefill_chunk = not emits
        if emits:
            request.num_output_placeholders += 1
        row = self._first_row + sequence.row
        return PlannedRow(
            request.request_id, self.number, row, start, num_tokens, emits
        )

    def take_preempted(self) -> list[str]:
        """Who has been preempted since this was asked last, for whatever reason."""
        taken, self.preempted = self.preempted, []
        return taken

    def preempt_all(self) -> int:
        """Take every running request back to the queue; how many there were.

        None of them may have a share in a step that is in flight.
        """
        running = list(self.running)
        for sequence in running:
            self._preempt(sequence)
        return len(running)

    def _preempt(self, sequence: Sequence) -> None:
        """Back to the queue; the resume replays prompt and output (contract 2.1)."""
        request = sequence.request
        self._vacate(sequence)
        request.status = RequestStatus.PREEMPTED
        request.num_computed_tokens = 0
        request.is_prefill_chunk = False
        request.num_preemptions += 1
        sequence.events.append((EventKind.PREEMPTED, self._clock()))
        self.preempted.append(request.request_id)
        self.waiting.add(sequence)

    def _vacate(self, sequence: Sequence) -> None:
        assert sequence.row is not None
        self.kv.free(sequence.request, sequence.row)
        self._leave_row(sequence)

    def _leave_row(self, sequence: Sequence) -> None:
        assert sequence.row is not None
        self._on_row_left(self.merged_row(sequence.row))
        heapq.heappush(self._free_rows, sequence.row)
        self.moves += 1
        sequence.row = None
        self.running.remove(sequence)

    # -- recordings --------------------------------------------------------

    def put_back(self, sequence: Sequence, published_blocks: int) -> None:
        """A request of the picture, in its row if it has one."""
        if sequence.row is None:
            self.waiting.add(sequence)
            return
        self._free_rows.remove(sequence.row)  # as new it is sorted, so still a heap
        bisect.insort(self.running, sequence, key=attrgetter("order"))
        self.kv.restore_row(sequence.request, sequence.row, published_blocks)

    # -- outcomes ----------------------------------------------------------

    def settle(self, sequence: Sequence, row: PlannedRow) -> None:
        """The row's share of a step succeeded: its full blocks may be shared."""
        sequence.steps += 1
        request = sequence.request
        request.num_in_flight_tokens -= row.num_tokens
        if row.emits:
            request.num_output_placeholders -= 1
        assert sequence.row is not None
        self.kv.publish(request, sequence.row)

    def release(self, sequence: Sequence) -> None:
        """Take back what a finished request held: its row or its place in the queue."""
        if sequence.row is None:
            self.waiting.remove(sequence)
        else:
            self._vacate(sequence)

    def discard(self, sequence: Sequence) -> None:
        """As `release`, for a request whose step failed: its blocks are worthless."""
        assert sequence.row is not None
        self.kv.discard(sequence.request, sequence.row)
        self._leave_row(sequence)
