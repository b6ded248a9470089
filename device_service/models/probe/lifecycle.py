"""The order of calls in the life of an adapter (contract 1.1, 1.6)."""

from __future__ import annotations

import enum
import threading

from device_service.models.probe.breach import Judge


class WarmUpStage(enum.Enum):
    """How far warm-up has come; each is entered from one before it."""

    NONE = 0
    PREFILL = 1
    DECODE = 2
    GRAMMAR_PREPARED = 3
    PREFILL_TRACED = 4
    GRAMMAR_CAPTURED = 5
    DECODE_TRACED = 6


_BEFORE = {
    WarmUpStage.PREFILL: {WarmUpStage.NONE},
    WarmUpStage.DECODE: {WarmUpStage.PREFILL},
    WarmUpStage.GRAMMAR_PREPARED: {WarmUpStage.DECODE},
    WarmUpStage.PREFILL_TRACED: {WarmUpStage.DECODE, WarmUpStage.GRAMMAR_PREPARED},
    WarmUpStage.GRAMMAR_CAPTURED: {WarmUpStage.PREFILL_TRACED},
    WarmUpStage.DECODE_TRACED: {
        WarmUpStage.DECODE,
        WarmUpStage.PREFILL_TRACED,
        WarmUpStage.GRAMMAR_CAPTURED,
    },
}


class Lifecycle:
    """Where an adapter is in its life, and which thread serves."""

    def __init__(self) -> None:
        self._stage = WarmUpStage.NONE
        self._reached: set[WarmUpStage] = set()
        self._allocated = False
        self._serving = False
        self._released = False
        self._thread: int | None = None

    @property
    def warmed_up(self) -> bool:
        """Whether decode shapes were run before serving."""
        return WarmUpStage.DECODE in self._reached

    @property
    def serving(self) -> bool:
        """Whether a step has been submitted."""
        return self._serving

    def allocate(self, judge: Judge) -> None:
        """The KV cache is allocated once, before warm-up."""
        self._alive(judge)
        judge.expect(not self._allocated, "1.1", "the KV cache is allocated twice")
        self._allocated = True

    def enable_grammar(self, judge: Judge) -> None:
        """Before the KV cache is there."""
        self._alive(judge)
        judge.expect(not self._allocated, "1.1", "comes after the KV cache")

    def warm_up(self, judge: Judge, stage: WarmUpStage) -> None:
        """The next stage of warm-up."""
        self._alive(judge)
        judge.expect(self._allocated, "1.1", "comes before the KV cache")
        judge.expect(not self._serving, "1.6", "comes after the first step")
        judge.expect(
            self._stage in _BEFORE[stage],
            "1.6",
            f"{stage.name} comes after {self._stage.name}",
        )
        self._stage = stage
        self._reached.add(stage)

    def step(self, judge: Judge) -> None:
        """A call of serving: one thread makes them all."""
        self._alive(judge)
        judge.expect(self._allocated, "1.1", "comes before the KV cache")
        self._serving = True
        self.same_thread(judge)

    def same_thread(self, judge: Judge) -> None:
        """A call that only the engine thread may make."""
        self._alive(judge)
        here = threading.get_ident()
        if self._thread is None and self._serving:
            self._thread = here
        judge.expect(
            self._thread in (None, here), "1", "comes from a second engine thread"
        )

    def trace(self, judge: Judge, *, prefill: bool, enable_trace: bool) -> None:
        """Only what was captured is replayed, and it always is."""
        if not self.warmed_up:
            return
        stage = WarmUpStage.PREFILL_TRACED if prefill else WarmUpStage.DECODE_TRACED
        captured = stage in self._reached
        judge.expect(
            enable_trace is captured,
            "1.6",
            f"enable_trace is {enable_trace}, but the trace was "
            f"{'captured' if captured else 'never captured'}",
        )

    def release(self, judge: Judge) -> None:
        """The last call of all."""
        self._alive(judge)
        self._released = True

    def _alive(self, judge: Judge) -> None:
        judge.expect(
            not self._released, "1.12", "comes after release_persistent_capture"
        )
