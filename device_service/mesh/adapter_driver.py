"""Steps of the engine as calls of the model contract."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from device_service.batch.inputs import DecodeInput, PrefillInput
from device_service.mesh.handles import RunningStep, SettledStep
from device_service.mesh.interface import Mesh, StepHandle, StepResult
from device_service.mesh.placement import Placement
from device_service.mesh.warm_up import DeviceSampling, WarmUp
from device_service.models.buckets import smallest_covering
from device_service.models.capabilities import Capabilities
from device_service.models.contract import (
    Adapter,
    ReadsDecodeOutput,
    ReadsPrefillOutput,
    ReleasesCaptures,
    ReleasesRequests,
)

logger = logging.getLogger(__name__)


class AdapterDriver:
    """`interface.Driver` over an adapter that follows the model contract.

    Engine thread, after `warm_up` (which the starting thread calls). An
    exception from the adapter, at submission or in readback, comes out of the
    step's handle and nowhere else.
    """

    def __init__(
        self,
        model: Adapter,
        capabilities: Capabilities,
        mesh: Mesh,
        kv_cache: Any,
        placement: Placement,
    ) -> None:
        self._model = model
        self._compact = capabilities.supports_compact_host_logits
        self._mesh = mesh
        self._kv_cache = kv_cache
        self._placement = placement
        self._closed = False
        # Rows never move, so lanes are told the same permutation every time.
        self._identity = (
            torch.arange(placement.rows, dtype=torch.int32)
            if placement.lanes > 1
            else None
        )
        # Asked once: a protocol's check costs more than a row's share of a step.
        self._decode_reader = model if isinstance(model, ReadsDecodeOutput) else None

    @property
    def page_table_width(self) -> int:
        """W, the columns of a page table."""
        return self._placement.page_table_width

    # ---------------------------------------------------------------- start, end

    def warm_up(self, progress: Callable[[str], None]) -> None:
        """Run, then capture, every shape in the contract's order (1.6)."""
        WarmUp(
            self._model, self._kv_cache, self._placement, DeviceSampling(), progress
        ).run()

    def close(self) -> None:
        """Release captures once, while the mesh is still open; safe to call twice."""
        if self._closed:
            return
        self._closed = True
        if isinstance(self._model, ReleasesCaptures):
            try:
                self._model.release_persistent_capture()
            except Exception:
                logger.exception("releasing the model's captures failed")

    # --------------------------------------------------------------------- steps

    def decode_rows(self, highest_row: int) -> int:
        """Rows of the decode batch that covers merged row `highest_row`.

        With one lane the smallest of the adapter's buckets; with several, whose
        rows interleave, all rows. Row r of the batch is merged row r either way.
        """
        placement = self._placement
        if not 0 <= highest_row < placement.rows:
            raise ValueError(f"row {highest_row} is not among {placement.rows} rows")
        buckets = getattr(self._model, "tt_supported_decode_batch_sizes", None)
        if placement.lanes > 1 or not buckets:
            return placement.rows
        usable = sorted(size for size in buckets if size <= placement.rows_per_lane)
        return smallest_covering([*usable, placement.rows], highest_row + 1)

    def prefill(self, step: PrefillInput) -> StepHandle:
        """Submit a prefill step."""
        try:
            return self._submit_prefill(step)
        except Exception as error:  # noqa: BLE001 - becomes the step's failure
            return SettledStep(error)

    def decode(self, step: DecodeInput) -> StepHandle:
        """Submit a decode step."""
        try:
            return self._submit_decode(step)
        except Exception as error:  # noqa: BLE001 - becomes the step's failure
            return SettledStep(error)

    def release_row(self, row: int) -> None:
        """A request left its row: row and state slot are one."""
        if isinstance(self._model, ReleasesRequests):
            self._model.release_request(row)

    def _submit_prefill(self, step: PrefillInput) -> StepHandle:
        model = self._model
        # The contract's one oddity: numpy with one lane, torch with several.
        one_lane = self._placement.lanes == 1
        arguments: dict[str, Any] = {
            "tokens": step.tokens,
            "page_table": step.page_table,
            "kv_cache": self._kv_cache,
            "enable_trace": self._placement.trace_mode.prefill,
            "prompt_lens": step.prompt_lens.numpy(),
            "start_pos": step.start_pos.numpy() if one_lane else step.start_pos,
            "empty_slots": list(step.slots),
        }
        if not isinstance(model, ReadsPrefillOutput):
            began = time.monotonic()
            logits = _last_position(model.prefill_forward(**arguments))
            return SettledStep(StepResult(logits, began, time.monotonic()))
        arguments["read_from_device"] = False
        output = model.prefill_forward(**arguments)
        host_output, events = model.read_prefill_output(output, async_read=True)

        def read() -> torch.Tensor:
            return _last_position(
                model.process_prefill_output_host(host_output, is_tokens=False)
            )

        return RunningStep(self._mesh, events, read)

    def _submit_decode(self, step: DecodeInput) -> StepHandle:
        model = self._model
        arguments: dict[str, Any] = {
            "tokens": step.tokens,
            "start_pos": step.positions,
            "page_table": step.page_table,
            "kv_cache": self._kv_cache,
            "enable_trace": self._placement.trace_mode.decode,
            "read_from_device": False,
        }
        if getattr(model, "decode_input_update_contract", 0) >= 1:
            arguments |= HOST_SAMPLING_RELOAD
        if self._identity is not None:
            arguments["slot_remap"] = self._identity
        rows = step.sample_rows
        began = time.monotonic()
        output = model.decode_forward(**arguments)
        reader = self._decode_reader
        if reader is None:
            logits = _gather(_last_position(output), rows)
            return SettledStep(StepResult(logits, began, time.monotonic()))
        host_output, events = reader.read_decode_output(output, async_read=True)
        if self._compact:

            def read() -> torch.Tensor:
                return _last_position(
                    reader.process_decode_output_host(  # type: ignore[call-arg]
                        host_output, is_tokens=False, sample_rows=list(rows)
                    )
                )
        else:

            def read() -> torch.Tensor:
                logits = reader.process_decode_output_host(host_output, is_tokens=False)
                return _gather(_last_position(logits), rows)

        return RunningStep(self._mesh, events, read)


HOST_SAMPLING_RELOAD = {
    "reload_inputs": True,
    "reload_page_table": False,
    "reload_sampling_params": False,
    "reset_sampling_state": False,
}
"""What host sampling asks for on every decode (contract 1.10): the token was
chosen on the host, so the device's own inputs are always stale."""


def _last_position(output: Any) -> torch.Tensor:
    """Logits of each row's last position, from what the contract may answer."""
    logits: torch.Tensor = output[0] if isinstance(output, tuple) else output
    if logits.dim() == 3:
        logits = logits[:, -1, :]
    return logits.float()


def _gather(logits: torch.Tensor, rows: Sequence[int]) -> torch.Tensor:
    return logits[list(rows)]
