"""What the device service holds of the device: opened in order, closed in order.

    mesh -> model -> driver (with its KV cache)      close: driver, then mesh

All calls run on the device thread. Whatever has been opened is closed exactly
once, however far the start has come: a mesh that is left open can keep the next
process from opening it (contract 2.18).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, cast

import torch

from device_service.kv.memory import free_memory_bytes
from device_service.mesh.driver import (
    AdapterDriver,
    LoadedModel,
    LoadSpec,
    TraceMode,
    load_model,
)
from device_service.mesh.interface import Mesh
from device_service.mesh.warm_up import DeviceSampling
from device_service.resolve import Resolved
from ttserve.errors import StartupError

logger = logging.getLogger(__name__)


class StartGivenUp(Exception):
    """The service was told to stop while it warmed up."""


_SURPRISE = 1.1
"""How far blocks may exceed their estimated size before the operator hears it."""


class Device:
    """A mesh, and the model on it.

    Device thread only, but for `touched` and `give_up`.
    """

    def __init__(self, mesh: Mesh) -> None:
        self._mesh = mesh
        self._loaded: LoadedModel | None = None
        self._driver: AdapterDriver | None = None
        self._closed = False
        self._given_up = False
        self.touched = False

    def open(self, model_fabric: Mapping[str, Any] | None = None) -> None:
        """Open the mesh, with the fabric that the model asks for."""
        self.touched = True
        self._mesh.open(model_fabric)

    def load(self, resolved: Resolved) -> LoadedModel:
        """Load the weights. Takes as long as they are large."""
        model = resolved.vllm_config.model_config
        tt = resolved.config.tt
        spec = LoadSpec(
            hf_config=model.hf_config,
            model_path=str(resolved.source.directory),
            dtype=cast(torch.dtype, model.dtype),
            max_model_len=resolved.pool.max_model_len,
            block_size=resolved.shape.block_size,
            rows_per_lane=resolved.shape.rows_per_lane,
            lanes=resolved.shape.lanes,
            trace_mode=TraceMode(tt.trace_mode),
            optimizations=tt.optimizations,
            revision=model.revision,
            device_sampling=_device_sampling(resolved),
            planned_layers=resolved.kv_plan.layers,
        )
        return load_model(resolved.adapter, self._mesh, spec)

    def allocate(self, loaded: LoadedModel, resolved: Resolved) -> AdapterDriver:
        """Allocate the KV cache that was decided on."""
        _check_real_size(loaded, resolved)
        pool = resolved.pool
        self._loaded = loaded
        self._driver = loaded.allocate(pool.num_blocks, pool.max_model_len)
        return self._driver

    def warm_up(self) -> None:
        """Run every servable shape once.

        Raises StartGivenUp between two parts of it: to close the mesh has to
        wait for one, which may take minutes, but not for all.
        """
        assert self._driver is not None
        self._driver.warm_up(self._warmed)

    def give_up(self) -> None:
        """Warm up no further. From any thread."""
        self._given_up = True

    def unwarmed_shapes(self) -> int:
        """Decode shapes that came after warm-up for the first time. Any thread."""
        return 0 if self._loaded is None else self._loaded.unwarmed_shapes

    def close(self) -> None:
        """Release captures while the mesh is still open, then close it."""
        if self._closed:
            return
        self._closed = True
        try:
            if self._driver is not None:
                self._driver.close()
        finally:
            self._mesh.close()

    def _warmed(self, what: str) -> None:
        logger.info("%s", what)
        if self._given_up:
            raise StartGivenUp


def _device_sampling(resolved: Resolved) -> DeviceSampling:
    """What the device is to sample (contract 2.8); a mode was checked before."""
    mode = resolved.config.tt.sample_on_device_mode
    overlapped = resolved.vllm_config.scheduler_config.async_scheduling
    return DeviceSampling(
        prefill=mode == "all",
        decode=mode is not None,
        grammar=(
            mode is not None
            and resolved.capabilities.supports_device_grammar
            and not overlapped
        ),
    )


def _check_real_size(loaded: LoadedModel, resolved: Resolved) -> None:
    """Compare the blocks with the estimate that the pool was sized by.

    The pool was decided before the weights were read, so that frontends could
    be told early; only the loaded model knows the size of a block.
    """
    estimated = resolved.pool.total_bytes
    if not estimated:
        return
    count = resolved.pool.num_blocks * resolved.shape.lanes
    real = count * loaded.bytes_per_block
    if real > free_memory_bytes():
        raise StartupError(
            f"not enough memory for the KV pool: {count} blocks need "
            f"{real / (1 << 30):.2f} GiB, more than is free beside the weights; lower "
            "--kv-cache-fraction, --kv-cache-memory-bytes or --max-model-len"
        )
    if real > estimated * _SURPRISE:
        logger.warning(
            "the KV pool takes %.2f GiB, not the %.2f GiB that the model's "
            "configuration suggests",
            real / (1 << 30),
            estimated / (1 << 30),
        )
