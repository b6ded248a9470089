"""Readback, exactly once and in order, and what comes out of it (contract 1.9)."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from device_service.models.probe.breach import Judge
from device_service.models.probe.facts import Facts


@dataclass(frozen=True, slots=True)
class Submitted:
    """A step whose output is out. `rows` of the step, `live` ones among them.

    `transferred` are the rows chosen at the transfer, None for all.
    """

    output: Any
    rows: int
    live: frozenset[int]
    is_tokens: bool
    wants_logprobs: bool
    transferred: tuple[int, ...] | None = None

    def of(self, output: Any) -> Submitted:
        """The same step with its output."""
        return replace(self, output=output)


class Outputs:
    """The outputs of one kind of step. Any thread."""

    def __init__(self, facts: Facts, *, reads: bool) -> None:
        self._facts = facts
        self._reads = reads
        self._lock = threading.Lock()
        self._unread: Submitted | None = None
        self._unprocessed: list[Submitted] = []

    def may_submit(self, judge: Judge) -> None:
        """The last output must have been asked for before it is overwritten."""
        judge.expect(
            self._unread is None,
            "1.9",
            "comes before the last step's output was asked for",
        )

    def submitted(self, judge: Judge, step: Submitted) -> None:
        """A step was accepted."""
        if self._reads:
            self._unread = step
        else:
            self.check(judge, step, step.output, None)

    def read(
        self, judge: Judge, output: Any, sample_rows: Sequence[int] | None
    ) -> Submitted:
        """The transfer of `output` begins."""
        with self._lock:
            step, self._unread = self._unread, None
        judge.expect(
            step is not None and step.output is output,
            "1.9",
            "an output that no step left, or that was read before",
        )
        assert step is not None
        if sample_rows is not None:
            judge.expect(
                self._facts.capabilities.supports_selective_host_readback
                and not step.is_tokens,
                "1.9",
                "sample_rows needs supports_selective_host_readback and host sampling",
            )
            self._check_rows(judge, step, sample_rows)
        return step

    def transferring(
        self, step: Submitted, host_output: Any, sample_rows: Sequence[int] | None
    ) -> None:
        """The adapter answered with `host_output`."""
        rows = None if sample_rows is None else tuple(sample_rows)
        with self._lock:
            self._unprocessed.append(
                replace(step, output=host_output, transferred=rows)
            )

    def process(
        self,
        judge: Judge,
        host_output: Any,
        *,
        is_tokens: bool,
        sample_rows: Sequence[int] | None,
    ) -> Submitted:
        """A transferred output is taken, once."""
        with self._lock:
            found = [s for s in self._unprocessed if s.output is host_output]
            judge.expect(
                found, "1.9", "an output that was not read, or was processed before"
            )
            step = found[0]
            self._unprocessed.remove(step)
        judge.expect(
            is_tokens is step.is_tokens,
            "1.9",
            f"is_tokens is {is_tokens}, but the step sampled on the "
            f"{'device' if step.is_tokens else 'host'}",
        )
        if sample_rows is not None:
            judge.expect(
                self._facts.capabilities.supports_compact_host_logits and not is_tokens,
                "1.9",
                "sample_rows needs supports_compact_host_logits and host sampling",
            )
            self._check_rows(judge, step, sample_rows)
        judge.expect(
            step.transferred
            in (None, None if sample_rows is None else (*sample_rows,)),
            "1.9",
            f"rows {sample_rows} are taken, but {step.transferred} were transferred",
        )
        return step

    def check(
        self,
        judge: Judge,
        step: Submitted,
        answer: Any,
        sample_rows: Sequence[int] | None,
    ) -> None:
        """What the adapter answered has the shape it must have."""
        count = step.rows if sample_rows is None else len(sample_rows)
        if step.is_tokens and step.wants_logprobs:
            judge.expect(
                isinstance(answer, tuple) and len(answer) == 2,
                "1.9",
                "answers no pair although a row asked for logprobs",
            )
        main = answer[0] if isinstance(answer, tuple) else answer
        judge.expect(
            isinstance(main, torch.Tensor),
            "1.9",
            f"answers {type(main).__name__}, not a host tensor",
        )
        shape = tuple(main.shape)
        if step.is_tokens:
            judge.expect(
                main.numel() == count and not main.is_floating_point(),
                "1.9",
                f"answers {main.dtype} {shape}, not {count} token ids",
            )
            return
        judge.expect(
            main.is_floating_point()
            and len(shape) in (2, 3)
            and (shape[0], shape[-1]) == (count, self._facts.vocabulary),
            "1.8",
            f"answers {main.dtype} {shape}, not logits of {count} rows by "
            f"{self._facts.vocabulary} tokens",
        )

    def _check_rows(self, judge: Judge, step: Submitted, rows: Sequence[int]) -> None:
        judge.expect(
            isinstance(rows, list) and len(set(rows)) == len(rows),
            "1.9",
            f"sample_rows {rows} is not a list without repetition",
        )
        judge.expect(
            step.live.issuperset(rows),
            "1.9",
            f"sample_rows {rows} holds a row that has no part in the step",
        )
