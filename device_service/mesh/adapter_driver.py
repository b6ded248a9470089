"""Steps of the engine as calls of the model contract."""

from __future__ import annotations

import enum
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from device_service.batch.inputs import DecodeInput, PrefillInput
from device_service.mesh.handles import RunningStep, SettledStep
from device_service.mesh.interface import Mesh, StepHandle, StepResult
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


class TraceMode(enum.Enum):
    """Which calls may replay captured traces; `cpu` and `sim` have none."""

    ALL = "all"
    DECODE_ONLY = "decode_only"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Placement:
    """How requests lie on the mesh: merged row = lane * rows_per_lane + local row."""

    lanes: int
    rows_per_lane: int
    page_table_width: int
    trace_mode: TraceMode

    @property
    def rows(self) -> int:
        """Rows of all lanes."""
        return self.lanes * self.rows_per_lane


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
        # Asked once: a protocol's check costs more than a row's share of a step.
        self._decode_reader = model if isinstance(model, ReadsDecodeOutput) else None

    @property
    def page_table_width(self) -> int:
        """W, the columns of a page table."""
        return self._placement.page_table_width

    # ---------------------------------------------------------------- start, end

    def warm_up(self, progress: Callable[[str], None]) -> None:
        """Run, then capture, every shape in the contract's order (1.6).

        Nothing may be compiled or allocated once a trace exists, so all plain
        runs come first, and prefill is captured before decode.
        """
        mode = self._placement.trace_mode
        self._warm_up_prefill(progress, enable_trace=False)
        self._warm_up_decode(progress, enable_trace=False)
        if hasattr(self._model, "already_warmed_up_prefill"):
            self._model.already_warmed_up_prefill = False
        if mode is TraceMode.ALL:
            self._warm_up_prefill(progress, enable_trace=True)
        if mode is not TraceMode.NONE:
            self._warm_up_decode(progress, enable_trace=True)

    def _warm_up_prefill(
        self, progress: Callable[[str], None], *, enable_trace: bool
    ) -> None:
        began = time.monotonic()
        self._model.warmup_model_prefill(
            kv_cache=self._kv_cache,
            enable_trace=enable_trace,
            can_sample_on_device=False,
        )
        progress(_warmed("prefill", began, enable_trace=enable_trace))

    def _warm_up_decode(
        self, progress: Callable[[str], None], *, enable_trace: bool
    ) -> None:
        began = time.monotonic()
        self._model.warmup_model_decode(
            kv_cache=self._kv_cache,
            enable_trace=enable_trace,
            max_batch_size=self._placement.rows,
            num_blocks=self._placement.page_table_width,
            can_sample_on_device=False,
        )
        progress(_warmed("decode", began, enable_trace=enable_trace))

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
            "enable_trace": self._placement.trace_mode is TraceMode.ALL,
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
            "enable_trace": self._placement.trace_mode is not TraceMode.NONE,
            "read_from_device": False,
        }
        if getattr(model, "decode_input_update_contract", 0) >= 1:
            arguments |= HOST_SAMPLING_RELOAD
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


def _warmed(phase: str, began: float, *, enable_trace: bool) -> str:
    verb = "captured" if enable_trace else "warmed up"
    return f"{phase} {verb} in {time.monotonic() - began:.1f} s"
