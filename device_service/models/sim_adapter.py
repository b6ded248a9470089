"""The adapter of the `sim` mesh: the model contract over a token function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from device_service.mesh.host_queue import Task
from device_service.mesh.sim import SimMesh
from device_service.models.buckets import powers_of_two
from device_service.models.contract import KVLayer, KVShape, TTSamplingParams
from device_service.models.resident import Inputs
from device_service.models.sampling_adapter import Output, SamplingAdapter, decode_order
from device_service.models.sim_cache import SimCache
from device_service.models.sim_logits import SimLogits
from device_service.models.sim_tokens import SimVocabulary
from ttserve.errors import StartupError


class SimAdapter(SamplingAdapter):
    """Says what `expected_tokens` says, as long as it is called rightly."""

    model_capabilities = {
        "supports_chunked_prefill": True,
        "supports_prefix_caching": True,
        "supports_async_decode": True,
        "supports_sample_on_device": True,
        "supports_device_grammar": True,
        "supports_compact_host_logits": True,
        "supports_selective_host_readback": True,
        "max_device_top_k": 32,
    }
    decode_input_update_contract = 1

    def __init__(
        self, mesh: SimMesh, vocabulary: SimVocabulary, rows: int, lanes: int
    ) -> None:
        super().__init__(mesh, vocabulary.size)
        self._mesh = mesh
        self._lanes = lanes
        self._rows_per_lane = rows // lanes
        self._logits = SimLogits(vocabulary)
        self.tt_supported_decode_batch_sizes = powers_of_two(self._rows_per_lane)

    @classmethod
    def initialize_vllm_model(
        cls,
        hf_config: Any,
        mesh_device: SimMesh,
        max_batch_size: int,
        *,
        max_seq_len: int,
        tt_data_parallel: int,
        optimizations: str | None,
    ) -> SimAdapter:
        """There are no weights: the config's vocabulary is all it takes."""
        mean = mesh_device.profile.mean_output_tokens
        vocabulary = SimVocabulary.of(hf_config, mean)
        if mean is not None and vocabulary.eos is None:
            raise StartupError(
                "tt.sim.mean_output_tokens needs an eos_token_id in the model's config"
            )
        return cls(mesh_device, vocabulary, max_batch_size, tt_data_parallel)

    def kv_layers(self) -> Sequence[KVLayer]:
        """16 bytes a token: the hash, and its share of the block's sums."""
        return [KVLayer(1, 1, 1, torch.int64)]

    def allocate_kv_cache_per_layer(
        self, per_layer_specs: list[tuple[KVShape, torch.dtype, int]]
    ) -> SimCache:
        """One cache; layers have nothing of their own."""
        (num_blocks, _, block_size, _), _, _ = per_layer_specs[0]
        return SimCache(self._lanes, num_blocks, block_size)

    def warmup_model_prefill(
        self, *, kv_cache: SimCache, enable_trace: bool, can_sample_on_device: bool
    ) -> None:
        """Nothing to warm."""

    def warmup_model_decode(  # noqa: PLR0913 - the contract's keywords
        self,
        *,
        kv_cache: SimCache,
        enable_trace: bool,
        max_batch_size: int,
        num_blocks: int,
        can_sample_on_device: bool,
        can_sample_device_grammar: bool = False,
        sampling_trace_variants_prepared: bool = False,
    ) -> None:
        """Nothing to warm."""

    def prefill_forward(  # noqa: PLR0913 - the contract's keywords
        self,
        *,
        tokens: torch.Tensor,
        page_table: torch.Tensor,
        kv_cache: SimCache,
        enable_trace: bool,
        prompt_lens: np.ndarray,
        start_pos: Any,
        empty_slots: list[int],
        sampling_params: TTSamplingParams | None = None,
        read_from_device: bool = True,
    ) -> Any:
        """Hash each row's chunk into its blocks."""
        starts = np.asarray(start_pos).tolist()
        ends = np.asarray(prompt_lens).tolist()
        lanes = np.array(empty_slots) // self._rows_per_lane
        ids = tokens.numpy().astype(np.int64)
        tables = page_table.numpy().astype(np.int64)
        tables += (lanes * kv_cache.num_blocks)[:, None]

        choose = self._prefill_choice(sampling_params, ends)

        def work() -> Output:
            digests = [
                kv_cache.extend(tables[row], start, ids[row, start:end])
                for row, (start, end) in enumerate(zip(starts, ends, strict=True))
            ]
            found = np.array(digests, dtype=np.uint64)
            return choose(self._logits.after(found))

        count = sum(ends) - sum(starts)
        task = self._mesh.submit_step(work, self._mesh.profile.prefill_seconds(count))
        return self._answer(task, wait=read_from_device)

    def decode_forward(
        self,
        *,
        tokens: torch.Tensor,
        start_pos: torch.Tensor,
        page_table: torch.Tensor,
        kv_cache: SimCache,
        enable_trace: bool,
        read_from_device: bool,
        **options: Any,
    ) -> Any:
        """Hash one token per occupied row."""
        batch = len(start_pos)
        rows_per_lane = batch // self._lanes
        inputs = Inputs(tokens.numpy()[:, 0], start_pos.numpy(), page_table.numpy())

        def forward(inputs: Inputs) -> torch.Tensor:
            rows = np.flatnonzero(inputs.positions >= 0)
            digests = np.zeros(batch, dtype=np.uint64)
            if len(rows):
                tables = inputs.tables[rows].astype(np.int64)
                tables += (rows // rows_per_lane * kv_cache.num_blocks)[:, None]
                digests[rows] = kv_cache.advance(
                    tables,
                    inputs.positions[rows].astype(np.int64),
                    inputs.tokens[rows].astype(np.int64),
                )
            return self._logits.after(digests)

        def submit(work: Callable[[], Output]) -> Task[Output]:
            return self._mesh.submit_step(work, self._mesh.profile.decode_seconds())

        output = self._decode(decode_order(inputs, **options), forward, submit)
        return self._answer(output, wait=read_from_device)
