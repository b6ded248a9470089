"""From an adapter class to a driver: the chain of start-up steps.

Each step hands over what the next one needs, so that whoever sizes the KV pool
can decide in between:

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

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from device_service.kv.layers import PlannedLayer
from device_service.mesh.adapter_driver import AdapterDriver
from device_service.mesh.interface import Mesh
from device_service.mesh.placement import Placement, TraceMode
from device_service.mesh.warm_up import DeviceSampling
from device_service.models.capabilities import Capabilities
from device_service.models.contract import (
    Adapter,
    AllocatesPerLayer,
    AllocatesUniform,
    CountsShapes,
    DescribesKVLayers,
    EnablesDeviceGrammar,
    KVLayer,
    KVLayerSpec,
    KVShape,
    SamplesDeferred,
)
from ttserve.errors import StartupError

__all__ = ["AdapterDriver", "LoadSpec", "LoadedModel", "TraceMode", "load_model"]


@dataclass(frozen=True, slots=True)
class LoadSpec:
    """What a model is loaded with.

    `hf_config` is not changed: the adapter gets a copy that carries path,
    dtype and revision. `rows_per_lane` is `max_num_seqs`; the adapter sees
    lanes * rows_per_lane rows. `max_model_len` is the limit before fitting.
    `device_sampling` says what the device is to sample. `planned_layers` are those
    of a model that describes them; else they follow from `hf_config`.
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
    device_sampling: DeviceSampling = DeviceSampling()
    planned_layers: tuple[PlannedLayer, ...] = ()

    @property
    def layer_groups(self) -> tuple[int, ...]:
        """The KV group of each layer; empty where there is one for all."""
        groups = tuple(layer.group for layer in self.planned_layers)
        return groups if max(groups, default=0) else ()


def load_model(adapter: type[Any], mesh: Mesh, spec: LoadSpec) -> LoadedModel:
    """Load weights through the adapter onto an open mesh.

    Blocks for as long as loading takes. Raises StartupError, one line, when
    the model cannot be served.
    """
    hf_config = copy.deepcopy(spec.hf_config)
    # Adapters know no other way to learn these than from the config.
    hf_config.name_or_path = spec.model_path
    hf_config.dtype = spec.dtype
    hf_config._commit_hash = spec.revision  # noqa: SLF001 - transformers' own name for it
    model = adapter.initialize_vllm_model(
        hf_config,
        mesh.device,
        spec.lanes * spec.rows_per_lane,
        max_seq_len=spec.max_model_len,
        tt_data_parallel=spec.lanes,
        optimizations=spec.optimizations,
    )
    if spec.device_sampling.grammar and not _grammar_enabled(model):
        sampling = replace(spec.device_sampling, grammar=False)
        spec = replace(spec, device_sampling=sampling)
    if isinstance(model, DescribesKVLayers):
        layers = model.kv_layers()
    else:
        layers = _layers_of(hf_config, spec.dtype)
    return LoadedModel(model, Capabilities.of(adapter), mesh, spec, layers)


def _grammar_enabled(model: Adapter) -> bool:
    """Let a model that declares device grammar make room for masks (contract 1.11).

    False, if it does not after all, leaves structured output to the host.
    """
    if not isinstance(model, EnablesDeviceGrammar) or not model.enable_device_grammar():
        return False
    if not model.device_grammar_enabled or isinstance(model, SamplesDeferred):
        return model.device_grammar_enabled
    raise StartupError(
        f"{type(model).__name__} enables device grammar but has no "
        "sample_decode_on_device"
    )


class LoadedModel:
    """Weights are in place, no KV cache yet."""

    def __init__(
        self,
        model: Adapter,
        capabilities: Capabilities,
        mesh: Mesh,
        spec: LoadSpec,
        layers: Sequence[KVLayer],
    ) -> None:
        self._model = model
        self._capabilities = capabilities
        self._mesh = mesh
        self._spec = spec
        self._layers = layers

    @property
    def capabilities(self) -> Capabilities:
        """What the adapter declares."""
        return self._capabilities

    @property
    def bytes_per_block(self) -> int:
        """Bytes of one KV block over all layers, in ONE lane's pool.

        A pool of `num_blocks` costs lanes * num_blocks * bytes_per_block.
        """
        if planned := self._spec.planned_layers:
            buffers = {layer.tensor: layer.bytes_per_block for layer in planned}
            return sum(buffers.values())
        per_token = sum(layer.bytes_per_token() for layer in self._layers)
        return self._spec.block_size * per_token

    @property
    def unwarmed_shapes(self) -> int:
        """Decode shapes that came after warm-up for the first time; 0 for an adapter
        that does not count them. Any thread.
        """
        model = self._model
        return model.unwarmed_shapes if isinstance(model, CountsShapes) else 0

    def allocate(self, num_blocks: int, max_model_len: int) -> AdapterDriver:
        """Allocate `num_blocks` per lane (null block included), zero-filled.

        `max_model_len` is the limit after fitting. Called once.
        """
        spec = self._spec
        block_sizes = [layer.block_size for layer in spec.planned_layers]
        smallest = min(block_sizes, default=spec.block_size)
        placement = Placement(
            lanes=spec.lanes,
            rows_per_lane=spec.rows_per_lane,
            page_table_width=min(math.ceil(max_model_len / smallest), num_blocks),
            trace_mode=spec.trace_mode,
            layer_groups=spec.layer_groups,
        )
        kv_cache = self._allocate(num_blocks)
        return AdapterDriver(
            self._model,
            self._capabilities,
            self._mesh,
            kv_cache,
            placement,
            self._spec.device_sampling,
        )

    def _allocate(self, num_blocks: int) -> Any:
        rows, columns = self._mesh.grid
        devices = max(rows * columns // self._spec.lanes, 1)
        specs: list[KVLayerSpec]
        if planned := self._spec.planned_layers:
            specs = [
                (_planned_shape(layer, num_blocks, devices), layer.dtype, layer.tensor)
                for layer in planned
            ]
        else:
            specs = [
                (self._shape(layer, num_blocks, devices), layer.dtype, index)
                for index, layer in enumerate(self._layers)
            ]
        try:
            return self._allocate_through_contract(specs)
        except (MemoryError, RuntimeError) as error:
            gigabytes = self._spec.lanes * num_blocks * self.bytes_per_block / (1 << 30)
            raise StartupError(
                f"the KV cache of {num_blocks} blocks ({gigabytes:.2f} GiB) cannot "
                f"be allocated: {_first_line(error)}"
            ) from error

    def _allocate_through_contract(self, specs: list[KVLayerSpec]) -> Any:
        model = self._model
        if isinstance(model, AllocatesPerLayer):
            return model.allocate_kv_cache_per_layer(specs)
        if not isinstance(model, AllocatesUniform):
            raise StartupError(f"{type(model).__name__} cannot allocate a KV cache")
        shape, dtype, _ = specs[0]
        unequal = any(spec[:2] != (shape, dtype) for spec in specs)
        if unequal or self._spec.layer_groups:
            raise StartupError(
                f"{type(model).__name__} allocates only equal layers, but the "
                "model's layers differ"
            )
        return model.allocate_kv_cache(shape, dtype, len(specs))

    def _shape(self, layer: KVLayer, num_blocks: int, devices: int) -> KVShape:
        """The shape on one device of a submesh (contract 1.4)."""
        heads = _heads_per_device(layer.num_kv_heads, devices)
        return num_blocks, heads, self._spec.block_size, layer.key_size


def _planned_shape(layer: PlannedLayer, num_blocks: int, devices: int) -> KVShape:
    heads = _heads_per_device(layer.num_kv_heads, devices)
    return num_blocks, heads, layer.block_size, layer.head_size


def _heads_per_device(heads: int, devices: int) -> int:
    """KV heads on one device of a submesh (contract 1.4)."""
    return heads // min(devices, heads)


def _layers_of(hf_config: Any, dtype: torch.dtype) -> list[KVLayer]:
    """The uniform layers that a config describes."""
    text = hf_config.get_text_config()
    heads = getattr(text, "num_key_value_heads", None) or text.num_attention_heads
    size = getattr(text, "head_dim", None) or (
        text.hidden_size // text.num_attention_heads
    )
    return [KVLayer(heads, size, size, dtype)] * text.num_hidden_layers


def _first_line(error: BaseException) -> str:
    return (str(error) or type(error).__name__).splitlines()[0]
