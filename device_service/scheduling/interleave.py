"""Decode steps inside a run of prefill steps (contract 2.3)."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class InterleaveConfig:
    """How many prefill steps may follow each other, and what breaks the run."""

    enabled: bool = True
    prefill_steps: int = 2
    decode_steps: int = 1


class InterleavePolicy:
    """Counts steps and says when a decode step is due. One for all lanes."""

    def __init__(self, config: InterleaveConfig) -> None:
        self._config = config
        self._prefill_run = 0
        self._decode_run = 0

    def decode_is_due(self) -> bool:
        """Whether a decode step should go before the pending prefill.

        Asked only while prefill is pending and some row can decode.
        """
        config = self._config
        return (
            config.enabled
            and self._prefill_run >= config.prefill_steps
            and self._decode_run < config.decode_steps
        )

    def record_prefill(self) -> None:
        """A prefill step was planned, even if it held no token."""
        self._prefill_run += 1
        self._decode_run = 0

    def record_decode(self, *, prefill_pending: bool) -> None:
        """A decode step was planned, even if it held no token."""
        self._decode_run += 1
        if not prefill_pending or self._decode_run >= self._config.decode_steps:
            self._reset()

    @property
    def runs(self) -> tuple[int, int]:
        """Prefill and decode steps of the run so far."""
        return self._prefill_run, self._decode_run

    def restore(self, runs: tuple[int, int]) -> None:
        """Go on from what `runs` was."""
        self._prefill_run, self._decode_run = runs

    def _reset(self) -> None:
        self._prefill_run = 0
        self._decode_run = 0
