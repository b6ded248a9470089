"""The mesh: an in-order queue behind one small interface.

Three implementations obey it: `ttnn` (hardware), `cpu` (real models through
transformers) and `sim` (no model, a latency profile). The engine never sees a
mesh: it talks to `device_service.mesh.driver.AdapterDriver`, which turns the
records of `device_service.batch.inputs` into calls of the model contract and
answers with a `StepHandle`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

if TYPE_CHECKING:
    from device_service.records import Phase


class MeshPoisoned(Exception):
    """The mesh cannot go on; everything in flight fails and the process ends."""


class Mesh(Protocol):
    """A grid of devices that runs submissions in order.

    `kind` is "cpu", "sim" or "ttnn"; `grid` is (rows, columns). `open` and
    `close` are called once each, by the same thread; `close` is safe to call
    twice. Events are opaque: an adapter makes them, the driver watches each of
    them once and waits on what `watch` answered.
    """

    @property
    def kind(self) -> str: ...

    @property
    def grid(self) -> tuple[int, int]: ...

    @property
    def device(self) -> Any:
        """What adapters get as `mesh_device`; only while the mesh is open."""

    def open(self, model_fabric: Mapping[str, Any] | None = None) -> None:
        """Open; `model_fabric` is what the model declares as `fabric_config`."""

    def close(self) -> None: ...

    def found(self) -> tuple[str, ...]:
        """What is open, in words, a line each."""

    def watch(self, event: Any) -> Any:
        """Follow an adapter's event from now on; what the methods below take."""

    def synchronize(self, event: Any) -> None:
        """Block until the event has happened; raises what the work raised."""

    def is_done(self, event: Any) -> bool:
        """Whether the event has happened, without blocking."""

    def on_done(self, event: Any, callback: Callable[[], None]) -> None:
        """Call back once, from any thread, when the event has happened."""

    def span(self, event: Any) -> tuple[float, float]:
        """When the mesh's worker began and ended the work, `time.monotonic()`."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What came back from a step.

    Rows are parallel to `sample_rows` (decode) or to the prompts (prefill, where
    those that do not emit are meaningless). logits: float32 [m, V], sampled on
    the host; or tokens: int32 [m], sampled on the device, with log probabilities
    if some row asked for them. began, ended: `time.monotonic()` of the mesh's
    work.
    """

    logits: torch.Tensor | None
    began: float
    ended: float
    tokens: npt.NDArray[np.int32] | None = None
    logprobs: DeviceLogprobs | None = None


@dataclass(frozen=True, slots=True)
class DeviceLogprobs:
    """Log probabilities from the device's sampler (contract 1.9).

    values: float32 [m, 1], those of the chosen tokens, with token_ids None; or
    [m, k], those of the k best tokens, best first, with their token_ids int32
    [m, k].
    """

    values: npt.NDArray[np.float32]
    token_ids: npt.NDArray[np.int32] | None

    def part(self, rows: Sequence[int]) -> DeviceLogprobs:
        """Those of some rows."""
        ids = None if self.token_ids is None else self.token_ids[list(rows)]
        return DeviceLogprobs(self.values[list(rows)], ids)


class StepHandle(Protocol):
    """A submitted step."""

    def is_done(self) -> bool:
        """Whether `result` would return at once."""

    def on_done(self, callback: Callable[[], None]) -> None:
        """Call back once, from any thread, when the step is done."""

    def result(self) -> StepResult:
        """Wait for the step and read it back; runs the readback exactly once.

        Engine thread. Raises what the step raised, every time it is called.
        """


class Driver(Protocol):
    """What the engine needs of a loaded model on an open mesh. Engine thread."""

    @property
    def device_grammar(self) -> bool:
        """Whether the model can apply grammar masks on the device; after warm-up."""

    @property
    def resident_inputs(self) -> bool:
        """Whether a decode step may go on from what the last one left on the
        device, so that its input need not be known on the host.
        """

    def queues(self, phase: Phase) -> bool:
        """Whether submitting a step returns before it is computed: adapters may
        block (contract 1.7, 1.9).
        """

    def decode_rows(self, highest_row: int) -> int:
        """Rows of the smallest decode bucket that covers merged row `highest_row`."""

    def prefill(self, step: Any) -> StepHandle:
        """Submit a `PrefillInput`."""

    def decode(self, step: Any) -> StepHandle:
        """Submit a `DecodeInput`.

        If it defers its sampling, the handle goes to `sample_deferred` next.
        """

    def sample_deferred(
        self, handle: StepHandle, bitmask: npt.NDArray[np.int32] | None
    ) -> StepHandle:
        """Sample a step that was submitted without its grammar masks.

        bitmask: int32 [m, ceil(V / 32)], rows parallel to `sample_rows`. A mask
        that is missing or does not fit poisons the mesh (contract 1.11).
        """

    def release_row(self, row: int) -> None:
        """A request left its row: finished or preempted (contract 1.12)."""
