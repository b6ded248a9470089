"""A loaded model on an open mesh, driven through the model contract.

Start-up is a chain of steps, each handing over what the next one needs, so
that whoever sizes the KV pool can decide in between:

    adapter = resolve_adapter(architecture, mesh_kind)    # models.registry
    capabilities = Capabilities.of(adapter)               # models.capabilities
    mesh = make_mesh(kind, options); mesh.open()          # mesh.factory
    model = load_model(adapter, mesh, spec)
    blocks = ... model.bytes_per_block ...                # the caller's decision
    driver = model.allocate(num_blocks, max_model_len)
    driver.warm_up(progress)
    ...
    driver.close(); mesh.close()
"""

from __future__ import annotations

import enum
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from device_service.batch.inputs import DecodeInput, PrefillInput
from device_service.mesh.interface import Mesh, StepHandle


class TraceMode(enum.Enum):
    """Which calls may replay captured traces; `cpu` and `sim` have none."""

    ALL = "all"
    DECODE_ONLY = "decode_only"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """What a model is loaded with.

    `hf_config` is not changed: the adapter gets a copy that carries path,
    dtype and revision. `rows_per_lane` is `max_num_seqs`; the adapter sees
    lanes * rows_per_lane rows. `max_model_len` is the limit before fitting.
    """

    hf_config: Any
    model_path: str
    dtype: torch.dtype
    max_model_len: int
    block_size: int
    rows_per_lane: int
    lanes: int = 1
    trace_mode: TraceMode = TraceMode.ALL
    optimizations: str | None = None
    revision: str | None = None


def load_model(adapter: type[Any], mesh: Mesh, spec: LoadSpec) -> LoadedModel:
    """Load weights through the adapter onto an open mesh.

    Blocks for as long as loading takes. Raises StartupError, one line, when
    the model cannot be served.
    """
    raise NotImplementedError


class LoadedModel:
    """Weights are in place, no KV cache yet."""

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one KV block over all layers, in ONE lane's pool.

        A pool of `num_blocks` costs lanes * num_blocks * bytes_per_block.
        """
        raise NotImplementedError

    def allocate(self, num_blocks: int, max_model_len: int) -> AdapterDriver:
        """Allocate `num_blocks` per lane (null block included), zero-filled.

        `max_model_len` is the limit after fitting. Called once.
        """
        raise NotImplementedError


class AdapterDriver:
    """`interface.Driver` over an adapter that follows the model contract."""

    @property
    def page_table_width(self) -> int:
        """W, the columns of a page table."""
        raise NotImplementedError

    def warm_up(self, progress: Callable[[str], None]) -> None:
        """Run each shape once, in the contract's order; `progress` gets a line each."""
        raise NotImplementedError

    def decode_rows(self, highest_row: int) -> int:
        """Rows of the decode batch that covers merged row `highest_row`."""
        raise NotImplementedError

    def prefill(self, step: PrefillInput) -> StepHandle:
        """Submit a prefill step; adapter errors come out of the handle."""
        raise NotImplementedError

    def decode(self, step: DecodeInput) -> StepHandle:
        """Submit a decode step; adapter errors come out of the handle."""
        raise NotImplementedError

    def release_row(self, row: int) -> None:
        """A request left its row."""
        raise NotImplementedError

    def close(self) -> None:
        """Release captures once, while the mesh is still open; safe to call twice."""
        raise NotImplementedError
