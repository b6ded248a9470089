"""The generic adapter of the `cpu` mesh: any decoder that transformers loads."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from device_service.mesh.cpu import CpuMesh
from device_service.models.buckets import half_steps, powers_of_two
from device_service.models.contract import KVLayer, KVShape, TTSamplingParams
from device_service.models.decode_shapes import DecodeShapes
from device_service.models.hf.attention import UnservableAttention
from device_service.models.hf.loading import load_decoder
from device_service.models.hf.packing import pack_linears
from device_service.models.hf.paged_model import PagedKV, PagedModel
from device_service.models.hf.probe import probe
from device_service.models.hf.selfcheck import check_paged, reference_logits
from device_service.models.refusals import refusal, refuse_config
from device_service.models.resident import Inputs
from device_service.models.sampling_adapter import Output, SamplingAdapter, decode_order

logger = logging.getLogger(__name__)

WARM_UP_PROMPT = 32
"""Tokens of the warm-up prefill; any length is served, so one will do."""


class TransformersAdapter(SamplingAdapter):
    """Follows the model contract; computes on the mesh's worker."""

    model_capabilities = {
        "supports_chunked_prefill": True,
        "supports_prefix_caching": True,
        "supports_async_decode": True,
        "supports_sample_on_device": True,
        "supports_device_grammar": True,
        "supports_compact_host_logits": True,
        "supports_selective_host_readback": True,
    }
    decode_input_update_contract = 1

    def __init__(
        self,
        mesh: CpuMesh,
        model: PagedModel,
        layers: Sequence[KVLayer | None],
        *,
        lanes: int,
        rows: int,
    ) -> None:
        super().__init__(mesh, model.vocab_size)
        self._mesh = mesh
        self._model = model
        self._layers = layers
        self._lanes = lanes
        self._rows_per_lane = rows // lanes
        self.decode_shapes = DecodeShapes()
        self.tt_supported_decode_batch_sizes = powers_of_two(self._rows_per_lane)

    @property
    def unwarmed_shapes(self) -> int:
        """Decode shapes that warm-up has not met."""
        return self.decode_shapes.unwarmed

    @classmethod
    def initialize_vllm_model(
        cls,
        hf_config: Any,
        mesh_device: CpuMesh,
        max_batch_size: int,
        *,
        max_seq_len: int,
        tt_data_parallel: int,
        optimizations: str | None,
    ) -> TransformersAdapter:
        """Load, probe, pack and check. `optimizations` means nothing here."""
        refuse_config(hf_config, max_seq_len)
        decoder = load_decoder(hf_config)
        try:
            layers = probe(decoder, hf_config.get_text_config().num_hidden_layers)
            reference = reference_logits(decoder)
            pack_linears(decoder)
            model = PagedModel(decoder)
            check_paged(model, layers, reference)
        except UnservableAttention as error:
            raise refusal(hf_config, str(error)) from error
        return cls(
            mesh_device,
            model,
            layers,
            lanes=tt_data_parallel,
            rows=max_batch_size,
        )

    # ------------------------------------------------------------------ KV cache

    def kv_layers(self) -> Sequence[KVLayer]:
        """What the probe found."""
        return [layer for layer in self._layers if layer is not None]

    def allocate_kv_cache_per_layer(
        self, per_layer_specs: list[tuple[KVShape, torch.dtype, int]]
    ) -> PagedKV:
        """One pool for all lanes; heads and their sizes are the probe's own."""
        (num_blocks, _, block_size, _), _, _ = per_layer_specs[0]
        return PagedKV(
            self._layers,
            lanes=self._lanes,
            num_blocks=num_blocks,
            block_size=block_size,
        )

    # ------------------------------------------------------------------- warm-up

    def warmup_model_prefill(
        self, *, kv_cache: PagedKV, enable_trace: bool, can_sample_on_device: bool
    ) -> None:
        """One short prompt into the null block; there is nothing to capture."""
        if enable_trace:
            return
        length = min(WARM_UP_PROMPT, kv_cache.block_size)
        self.prefill_forward(
            tokens=torch.zeros(1, length, dtype=torch.int32),
            page_table=torch.zeros(1, 1, dtype=torch.int32),
            kv_cache=kv_cache,
            enable_trace=False,
            prompt_lens=np.array([length]),
            start_pos=np.zeros(1, dtype=np.int32),
            empty_slots=[0],
        )

    def warmup_model_decode(  # noqa: PLR0913 - the contract's keywords
        self,
        *,
        kv_cache: PagedKV,
        enable_trace: bool,
        max_batch_size: int,
        num_blocks: int,
        can_sample_on_device: bool,
        can_sample_device_grammar: bool = False,
        sampling_trace_variants_prepared: bool = False,
    ) -> None:
        """Plain: each bucket, one block wide. Then each width, for few rows."""
        buckets = [max_batch_size]
        if self._lanes == 1:
            buckets = self.tt_supported_decode_batch_sizes
        runs = [(rows, 1) for rows in buckets]
        if enable_trace:
            self.decode_shapes.capture(buckets, num_blocks)
            few = self._lanes if self._lanes > 1 else buckets[0]
            runs = [(few, columns) for columns in half_steps(num_blocks)]
            self.decode_shapes.capture([few], num_blocks)
        for rows, columns in runs:
            self._warm_up_decode(
                kv_cache, rows, columns, num_blocks, traced=enable_trace
            )

    def _warm_up_decode(
        self, kv_cache: PagedKV, rows: int, columns: int, most: int, *, traced: bool
    ) -> None:
        """One row at the end of `columns` null blocks, the others empty."""
        began = time.monotonic()
        positions = torch.full((rows,), -1, dtype=torch.int32)
        positions[0] = columns * kv_cache.block_size - 1
        self.decode_forward(
            tokens=torch.zeros(rows, 1, dtype=torch.int32),
            start_pos=positions,
            page_table=torch.zeros(rows, most, dtype=torch.int32),
            kv_cache=kv_cache,
            enable_trace=traced,
            read_from_device=True,
        )
        took = time.monotonic() - began
        logger.info("decode of %d rows by %d blocks ran in %.2f s", rows, columns, took)

    # --------------------------------------------------------------------- steps

    def prefill_forward(  # noqa: PLR0913 - the contract's keywords
        self,
        *,
        tokens: torch.Tensor,
        page_table: torch.Tensor,
        kv_cache: PagedKV,
        enable_trace: bool,
        prompt_lens: np.ndarray,
        start_pos: Any,
        empty_slots: list[int],
        sampling_params: TTSamplingParams | None = None,
        read_from_device: bool = True,
    ) -> Any:
        """One forward per row, so that prompts do not pad or touch each other."""
        starts = np.asarray(start_pos).tolist()
        ends = np.asarray(prompt_lens).tolist()
        lanes = torch.tensor(empty_slots) // self._rows_per_lane
        tables = page_table.long() + (lanes * kv_cache.num_blocks)[:, None]
        chunks = [
            tokens[row, start:end].long()
            for row, (start, end) in enumerate(zip(starts, ends, strict=True))
        ]

        choose = self._prefill_choice(sampling_params, ends)

        def work() -> Output:
            logits = [
                self._model.prefill(kv_cache, chunk, tables[row], starts[row])
                for row, chunk in enumerate(chunks)
            ]
            with torch.inference_mode(mode=False):
                stacked = torch.stack(logits)
            return choose(stacked)

        return self._answer(self._mesh.submit(work), wait=read_from_device)

    def decode_forward(
        self,
        *,
        tokens: torch.Tensor,
        start_pos: torch.Tensor,
        page_table: torch.Tensor,
        kv_cache: PagedKV,
        enable_trace: bool,
        read_from_device: bool,
        **options: Any,
    ) -> Any:
        """All rows, at the narrowest page table that covers the longest."""
        batch = len(start_pos)
        lanes = torch.arange(batch) // (batch // self._lanes)
        tables = page_table.long() + (lanes * kv_cache.num_blocks)[:, None]
        inputs = Inputs(
            tokens[:, 0].long().numpy(), start_pos.long().numpy(), tables.numpy()
        )

        def forward(inputs: Inputs) -> torch.Tensor:
            positions = torch.from_numpy(inputs.positions).clamp(min=0)
            ids, tables = map(torch.from_numpy, (inputs.tokens, inputs.tables))
            need = int(positions.max()) // kv_cache.block_size + 1
            width = self.decode_shapes.columns(
                batch, need, tables.shape[1], replay=enable_trace
            )
            return self._model.decode(kv_cache, ids, tables, positions, width)

        output = self._decode(
            decode_order(inputs, **options), forward, self._mesh.submit
        )
        return self._answer(output, wait=read_from_device)
