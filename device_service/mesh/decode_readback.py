"""Reading a decode step back, by the methods that the adapter has (contract 1.9)."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from device_service.mesh.handles import RunningStep, SettledStep
from device_service.mesh.interface import Mesh, StepHandle
from device_service.mesh.readback import (
    Reader,
    Results,
    reads_compact_logits,
    reads_logits,
)
from device_service.models.capabilities import Capabilities
from device_service.models.contract import Adapter, ReadsDecodeOutput

OnError = Callable[[Exception], Exception]


class DecodeReadback:
    """Queues the transfer of a step's output right after its submission.

    `began` is when the step was submitted, `on_error` what becomes of an
    exception. An adapter without `read_decode_output` answers host tensors.
    """

    def __init__(self, mesh: Mesh, model: Adapter, capabilities: Capabilities) -> None:
        self._mesh = mesh
        self._compact = capabilities.supports_compact_host_logits
        self._selective = capabilities.supports_selective_host_readback
        # Asked once: a protocol's check costs more than a row's share of a step.
        self._reader = model if isinstance(model, ReadsDecodeOutput) else None

    def logits(
        self, output: Any, rows: Sequence[int], began: float, on_error: OnError
    ) -> StepHandle:
        """Logits of `rows`, in this order, for host sampling.

        The rows are fixed here, at submission: both calls of the adapter get
        them, each where it declares that it takes them.
        """
        reader = self._reader
        if reader is None:
            results = reads_logits(rows)(output)
            return SettledStep(results.of_step(began, time.monotonic()))
        transfer = {"sample_rows": list(rows)} if self._selective else {}
        process = {"sample_rows": list(rows)} if self._compact else {}
        reads = reads_compact_logits(rows) if self._compact else reads_logits(rows)
        host_output, events = reader.read_decode_output(
            output, async_read=True, **transfer
        )

        def read() -> Results:
            return reads(
                reader.process_decode_output_host(
                    host_output, is_tokens=False, **process
                )
            )

        return RunningStep(self._mesh, events, read, on_error)

    def tokens(
        self,
        output: Any,
        reads: Reader,
        began: float,
        on_error: OnError,
        *,
        deferred: bool = False,
    ) -> StepHandle:
        """What the device sampled, as `reads` understands it.

        `deferred`: its events are those of the sampling alone, so the step began
        when its forward was submitted.
        """
        reader = self._reader
        if reader is None:
            return SettledStep(reads(output).of_step(began, time.monotonic()))
        host_output, events = reader.read_decode_output(output, async_read=True)

        def read() -> Results:
            return reads(reader.process_decode_output_host(host_output, is_tokens=True))

        started = began if deferred else None
        return RunningStep(self._mesh, events, read, on_error, started)
