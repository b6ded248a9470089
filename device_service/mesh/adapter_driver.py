"""Steps of the engine as calls of the model contract."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from device_service.batch.inputs import DecodeInput, PrefillInput
from device_service.decode.reload import ReloadPlanner
from device_service.mesh.decode_readback import DecodeReadback
from device_service.mesh.handles import DeferredStep, RunningStep, SettledStep
from device_service.mesh.interface import Mesh, MeshPoisoned, StepHandle
from device_service.mesh.page_tables import all_groups, per_layer
from device_service.mesh.placement import Placement
from device_service.mesh.readback import (
    Results,
    reads_logits,
    reads_tokens,
)
from device_service.mesh.sampling_params import (
    SamplingParamsMemory,
    histories,
    sampling_params,
)
from device_service.mesh.warm_up import DeviceSampling, WarmUp
from device_service.models.buckets import smallest_covering
from device_service.models.capabilities import Capabilities
from device_service.models.contract import (
    Adapter,
    PoisonsDeferred,
    ReadsDecodeOutput,
    ReadsPrefillOutput,
    ReleasesCaptures,
    ReleasesRequests,
    SamplesDeferred,
)
from device_service.records import Phase

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
        sampling: DeviceSampling,
    ) -> None:
        self._model = model
        self._mesh = mesh
        self._kv_cache = kv_cache
        self._placement = placement
        self._device_sampling = sampling
        # Without traces there is nothing that warm-up has to prepare for masks.
        self._grammar_ready = sampling.grammar and not placement.trace_mode.decode
        self._queued = {
            Phase.PREFILL: isinstance(model, ReadsPrefillOutput),
            Phase.DECODE: isinstance(model, ReadsDecodeOutput),
        }
        self._closed = False
        self._poison: MeshPoisoned | None = None
        # Rows never move, so lanes are told the same permutation every time.
        self._identity = (
            torch.arange(placement.rows, dtype=torch.int32)
            if placement.lanes > 1
            else None
        )
        self._readback = DecodeReadback(mesh, model, capabilities)
        self._params = SamplingParamsMemory()
        self._layout_pending = True
        self.resident_inputs = (
            capabilities.supports_async_decode and placement.trace_mode.decode
        )
        self.reload = ReloadPlanner(
            getattr(model, "decode_input_update_contract", 0),
            resident_inputs=self.resident_inputs,
        )

    def queues(self, phase: Phase) -> bool:
        """Whether submitting a step returns before it is computed."""
        return self._queued[phase]

    @property
    def page_table_width(self) -> int:
        """W, the columns of a page table."""
        return self._placement.page_table_width

    @property
    def device_grammar(self) -> bool:
        """Whether the model can apply grammar masks on the device; after warm-up."""
        return self._grammar_ready

    # ---------------------------------------------------------------- start, end

    def warm_up(self, progress: Callable[[str], None]) -> None:
        """Run, then capture, every shape in the contract's order (1.6)."""
        self._grammar_ready = WarmUp(
            self._model,
            self._kv_cache,
            self._placement,
            self._device_sampling,
            progress,
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
        self.reload.prefill_submitted()
        try:
            self._check_sound()
            return self._submit_prefill(step)
        except Exception as error:  # noqa: BLE001 - becomes the step's failure
            return SettledStep(self._failed(error))

    def decode(self, step: DecodeInput) -> StepHandle:
        """Submit a decode step; one that defers its sampling is a `DeferredStep`."""
        try:
            self._check_sound()
            return self._submit_decode(step)
        except Exception as error:  # noqa: BLE001 - becomes the step's failure
            return SettledStep(self._failed(error))

    def sample_deferred(
        self, handle: StepHandle, bitmask: npt.NDArray[np.int32] | None
    ) -> StepHandle:
        """Sample a deferred step under its masks; whatever fails is final."""
        if not isinstance(handle, DeferredStep):
            return handle
        try:
            return self._submit_deferred(handle, bitmask)
        except Exception as error:  # noqa: BLE001 - becomes the step's failure
            return SettledStep(self._poisoned(error))

    def release_row(self, row: int) -> None:
        """A request left its row: row and state slot are one."""
        if isinstance(self._model, ReleasesRequests):
            self._model.release_request(row)

    def _submit_prefill(self, step: PrefillInput) -> StepHandle:
        model, sampling = self._model, step.sampling
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
        arguments |= per_layer(step, self._placement)
        reads = reads_logits(None)
        if sampling is not None:
            arguments["sampling_params"] = sampling_params(sampling.rows)
            reads = reads_tokens(None, logprobs=sampling.wants_logprobs)
        if not isinstance(model, ReadsPrefillOutput):
            began = time.monotonic()
            results = reads(model.prefill_forward(**arguments))
            return SettledStep(results.of_step(began, time.monotonic()))
        arguments["read_from_device"] = False
        output = model.prefill_forward(**arguments)
        host_output, events = model.read_prefill_output(output, async_read=True)
        is_tokens = sampling is not None

        def read() -> Results:
            return reads(
                model.process_prefill_output_host(host_output, is_tokens=is_tokens)
            )

        return RunningStep(self._mesh, events, read, self._failed)

    def _submit_decode(self, step: DecodeInput) -> StepHandle:
        sampling = step.sampling
        self._layout_pending |= step.layout_changed
        commands = self.reload.plan(
            device_sampling=sampling is not None,
            layout_changed=self._layout_pending,
            page_table=all_groups(step),
        )
        if step.overlapping and not commands.overlap_safe:
            raise RuntimeError("a step that overlaps another has no input to upload")
        arguments: dict[str, Any] = {
            "tokens": step.tokens,
            "start_pos": step.positions,
            "page_table": step.page_table,
            "kv_cache": self._kv_cache,
            "enable_trace": self._placement.trace_mode.decode,
            "read_from_device": False,
            **commands.as_keywords(),
        }
        arguments |= per_layer(step, self._placement)
        if self._identity is not None:
            arguments["slot_remap"] = self._identity
        if sampling is not None:
            arguments |= histories(sampling)
            if sampling.deferred:
                arguments["defer_device_sampling"] = True
            else:
                arguments["sampling_params"] = self._params.of(sampling.rows)
        began = time.monotonic()
        output = self._model.decode_forward(**arguments)
        self.reload.accepted(commands)
        self._layout_pending = False
        if sampling is None:
            return self._readback.logits(output, step.sample_rows, began, self._failed)
        if sampling.deferred:
            return DeferredStep(output, step, began)
        reads = reads_tokens(step.sample_rows, logprobs=sampling.wants_logprobs)
        return self._readback.tokens(output, reads, began, self._failed)

    def _submit_deferred(
        self, deferred: DeferredStep, bitmask: npt.NDArray[np.int32] | None
    ) -> StepHandle:
        model, step = self._model, deferred.step
        assert step.sampling is not None
        assert isinstance(model, SamplesDeferred)
        rows = step.sample_rows
        if bitmask is None or len(bitmask) != len(rows):
            have = 0 if bitmask is None else len(bitmask)
            raise ValueError(f"grammar masks of {have} rows for a step of {len(rows)}")
        full = np.full((len(step.positions), bitmask.shape[1]), -1, dtype=np.int32)
        full[list(rows)] = bitmask
        logger.debug("sampling %d rows under grammar masks on the device", len(rows))
        output = model.sample_decode_on_device(
            deferred.payload,
            sampling_params=self._params.of(step.sampling.rows),
            grammar_bitmask=torch.from_numpy(full),
        )
        reads = reads_tokens(rows, logprobs=False)
        return self._readback.tokens(
            output, reads, deferred.began, self._poisoned, deferred=True
        )

    # ------------------------------------------------------------------ failures

    def _check_sound(self) -> None:
        if self._poison is not None:
            raise self._poison

    def _failed(self, error: Exception) -> Exception:
        """A step failed: what is resident on the device is not known any more."""
        self.reload.step_failed()
        return error

    def _poisoned(self, error: Exception) -> MeshPoisoned:
        """A deferred step cannot be sampled, here or on the host: nothing goes on."""
        if self._poison is None:
            message = f"sampling under grammar masks failed on the device: {error}"
            self._poison = MeshPoisoned(message)
            self._poison.__cause__ = error
            if isinstance(self._model, PoisonsDeferred):
                self._model.poison_deferred_device_sampling()
        return self._poison
