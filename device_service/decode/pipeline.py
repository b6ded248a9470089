"""Steps that the mesh has and the engine has not applied yet."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable
from collections.abc import Sequence as Rows
from dataclasses import dataclass

import numpy as np

from device_service.batch.decode import DecodeBuilder
from device_service.batch.prefill import build_prefill
from device_service.kv.layers import PageTables
from device_service.live import LiveRequests
from device_service.mesh.interface import Driver, StepHandle, StepResult
from device_service.records import Phase, SamplingSite, StepPlan
from device_service.sampling.interface import GrammarKeeper
from device_service.scheduling.lane import Lane
from device_service.sequence import Sequence

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class InFlight:
    """A submitted step. `sequences` and `bitmask` rows are parallel to `plan.rows`.

    `moves` is what the lanes had counted when it was planned.

    The requests are held as objects, not looked up again by id: a request that
    ends while its step is in flight must not be mistaken for a newcomer.
    """

    plan: StepPlan
    sequences: tuple[Sequence, ...]
    handle: StepHandle
    bitmask: np.ndarray | None
    padded_rows: int
    planning_began: float
    submitted: float
    moves: int


@dataclass(frozen=True, slots=True)
class Completed:
    """A step that is over: exactly one of `result` and `error` is set."""

    step: InFlight
    result: StepResult | None
    error: Exception | None


class _FailedSubmission:
    """The handle of a step that never reached the mesh."""

    def __init__(self, error: Exception) -> None:
        self._error = error

    def is_done(self) -> bool:
        return True

    def on_done(self, callback: Callable[[], None]) -> None:
        callback()

    def result(self) -> StepResult:
        raise self._error


class Pipeline:
    """Submits steps in order and hands them back in order. Engine thread only."""

    def __init__(
        self,
        lanes: Rows[Lane],
        page_tables: PageTables,
        live: LiveRequests,
        driver: Driver,
        grammars: GrammarKeeper,
        clock: Callable[[], float],
    ) -> None:
        """`page_tables`, of all rows, are the lanes' to write."""
        self._lanes = lanes
        self._page_tables = page_tables
        self._live = live
        self._driver = driver
        self._grammars = grammars
        self._clock = clock
        self._decodes = DecodeBuilder(page_tables)
        self._in_flight: deque[InFlight] = deque()

    def __len__(self) -> int:
        return len(self._in_flight)

    @property
    def newest(self) -> InFlight | None:
        """The step submitted last, if it is in flight."""
        return self._in_flight[-1] if self._in_flight else None

    def queues(self, phase: Phase) -> bool:
        """Whether `submit` returns before a step of this phase is computed."""
        return self._driver.queues(phase)

    def submit(self, plan: StepPlan, planning_began: float) -> None:
        """Build the step's input and queue it on the mesh.

        What goes wrong on the way is the step's failure, reported by `drain`
        like any other.
        """
        sequences = tuple(self._live.by_id[row.request_id] for row in plan.rows)
        padded = 0
        handle: StepHandle
        bitmask, deferred = None, False
        try:
            if plan.phase is Phase.DECODE:
                padded = self._driver.decode_rows(plan.rows[-1].row)
                step = self._decodes.build(plan, sequences, padded)
                handle = self._driver.decode(step)
                deferred = step.sampling is not None and step.sampling.deferred
            else:
                prompts = build_prefill(plan, sequences, self._page_tables)
                handle = self._driver.prefill(prompts)
            submitted = self._clock()
            # After the submission, so that masks are made while the mesh works.
            if deferred:
                handle = self._sample_deferred(plan, sequences, handle)
            elif plan.sampling.site is SamplingSite.HOST:
                bitmask = self._mask(plan, sequences)
        except Exception as error:  # noqa: BLE001 - a failed step, see docstring
            handle, submitted = _FailedSubmission(error), self._clock()
        self._in_flight.append(
            InFlight(
                plan,
                sequences,
                handle,
                bitmask,
                padded,
                planning_began,
                submitted,
                moves=sum(lane.moves for lane in self._lanes),
            )
        )

    def _sample_deferred(
        self, plan: StepPlan, sequences: tuple[Sequence, ...], handle: StepHandle
    ) -> StepHandle:
        """Give a forward that waits for its grammar masks what it waits for.

        A forward whose masks cannot be made cannot be taken back, so the mesh
        is told in any case and gives up (contract 1.11).
        """
        try:
            bitmask = self._mask(plan, sequences)
        except Exception:
            logger.exception("the grammar masks of step %d failed", plan.number)
            bitmask = None
        return self._driver.sample_deferred(handle, bitmask)

    def wait(self) -> Completed:
        """Wait for the oldest step in flight."""
        step = self._in_flight.popleft()
        try:
            return Completed(step, step.handle.result(), None)
        except Exception as error:  # noqa: BLE001 - whatever the mesh raised
            return Completed(step, None, error)

    def _mask(
        self, plan: StepPlan, sequences: tuple[Sequence, ...]
    ) -> np.ndarray | None:
        """Allowed tokens per planned row; rows of unfinished chunks are never read."""
        if not any(s.request.use_structured_output for s in sequences):
            return None
        emitting = [i for i, row in enumerate(plan.rows) if row.emits]
        compact = self._grammars.bitmask([sequences[i].request for i in emitting])
        if compact is None:
            return None
        full = np.full((len(sequences), compact.shape[1]), -1, dtype=np.int32)
        full[emitting] = compact
        return full
