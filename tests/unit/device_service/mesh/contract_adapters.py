"""Adapters that follow the model contract and record how they are called."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from device_service.mesh.host_mesh import HostMesh

VOCABULARY = 7


def row_logits(rows: int) -> torch.Tensor:
    """Logits [rows, 1, V] in which row r has r everywhere."""
    return torch.arange(rows).float().view(-1, 1, 1).expand(-1, 1, VOCABULARY).clone()


class OldAdapter:
    """The least that the contract asks for: it blocks, and all layers are alike."""

    model_capabilities: dict[str, Any] = {}

    def __init__(self, mesh: HostMesh, rows: int) -> None:
        self.mesh = mesh
        self.rows = rows
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.fails: Exception | None = None

    @classmethod
    def initialize_vllm_model(
        cls,
        hf_config: Any,
        mesh_device: HostMesh,
        max_batch_size: int,
        *,
        max_seq_len: int,
        tt_data_parallel: int,
        optimizations: str | None,
    ) -> OldAdapter:
        model = cls(mesh_device, max_batch_size)
        model.note(
            "initialize",
            hf_config=hf_config,
            lanes=tt_data_parallel,
            optimizations=optimizations,
        )
        return model

    def note(self, name: str, **arguments: Any) -> None:
        self.calls.append((name, arguments))
        if self.fails is not None:
            raise self.fails

    def last(self, name: str) -> dict[str, Any]:
        return [arguments for called, arguments in self.calls if called == name][-1]

    def names(self) -> list[str]:
        return [name for name, _ in self.calls]

    def allocate_kv_cache(
        self, kv_cache_shape: Any, dtype: torch.dtype, num_layers: int
    ) -> str:
        self.note("allocate", shape=kv_cache_shape, dtype=dtype, layers=num_layers)
        return "cache"

    def warmup_model_prefill(self, **arguments: Any) -> None:
        self.note("warm prefill", **arguments)

    def warmup_model_decode(self, **arguments: Any) -> None:
        self.note("warm decode", **arguments)

    def prefill_forward(self, **arguments: Any) -> Any:
        self.note("prefill", **arguments)
        return row_logits(len(arguments["tokens"])), None

    def decode_forward(self, **arguments: Any) -> Any:
        self.note("decode", **arguments)
        return row_logits(len(arguments["tokens"]))


class NewAdapter(OldAdapter):
    """Decodes asynchronously, knows buckets, reload commands and every hook."""

    model_capabilities = {"supports_compact_host_logits": True}
    decode_input_update_contract = 1
    tt_supported_decode_batch_sizes: Sequence[int] = (1, 4, 16)
    already_warmed_up_prefill = True
    reads = 0

    def allocate_kv_cache_per_layer(self, per_layer_specs: Any) -> str:
        self.note("allocate per layer", specs=per_layer_specs)
        return "cache"

    def decode_forward(self, **arguments: Any) -> Any:
        self.note("decode", **arguments)
        return self.mesh.submit(lambda: row_logits(len(arguments["tokens"])))

    def read_decode_output(self, tt_out: Any, *, async_read: bool) -> Any:
        return tt_out, [tt_out, self.mesh.submit(lambda: None)]

    def process_decode_output_host(
        self, tt_out: Any, *, is_tokens: bool, sample_rows: list[int]
    ) -> Any:
        self.reads += 1
        return tt_out.result()[sample_rows], None

    def release_request(self, slot: int) -> None:
        self.note("release", slot=slot)

    def release_persistent_capture(self) -> None:
        self.note("release captures")
