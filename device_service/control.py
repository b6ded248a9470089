"""Pause, single steps, resume: what the Inspector may do to the engine."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field

from device_service.records import StepRecord


@dataclass(slots=True)
class _Run:
    """Steps that somebody asked for while the engine is paused."""

    remaining: int
    answer: Future[list[StepRecord]]
    records: list[StepRecord] = field(default_factory=list)


class StepControl:
    """Says whether the engine may plan its next step. Engine thread only."""

    def __init__(self) -> None:
        self.paused = False
        self._run: _Run | None = None

    @property
    def may_plan(self) -> bool:
        """Whether a step may be planned now."""
        return not self.paused or (self._run is not None and self._run.remaining > 0)

    @property
    def steps_allowed(self) -> int | None:
        """Steps that a run has left; None without a run."""
        return None if self._run is None else self._run.remaining

    def pause(self) -> None:
        """Plan nothing until `resume`, but for the steps of a run."""
        self.paused = True

    def resume(self) -> None:
        """Plan again; a run that is under way is answered with what it has."""
        self.paused = False
        self._answer()

    def run(self, count: int, answer: Future[list[StepRecord]]) -> None:
        """Allow `count` steps; replaces a run that is under way, which is answered."""
        self._answer()
        self._run = _Run(count, answer)

    def planned(self) -> None:
        """A step was planned."""
        if self._run is not None:
            self._run.remaining -= 1

    def applied(self, record: StepRecord) -> None:
        """A step was applied."""
        if self._run is not None:
            self._run.records.append(record)

    def nothing_to_do(self) -> None:
        """Nothing is in flight and nothing was planned: a run is through."""
        self._answer()

    def _answer(self) -> None:
        run, self._run = self._run, None
        if run is not None and run.answer.set_running_or_notify_cancel():
            run.answer.set_result(run.records)
