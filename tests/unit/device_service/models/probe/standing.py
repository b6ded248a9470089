"""An adapter that takes everything and answers zeros, and right calls of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from device_service.models.contract import TTSamplingParams
from device_service.models.probe import Probe, probed

ROWS, WIDTH, BLOCKS, BLOCK_SIZE, VOCABULARY, LENGTH = 4, 3, 20, 4, 10, 12
CACHE = object()

STILL = {
    "reload_inputs": False,
    "reload_page_table": False,
    "reload_sampling_params": False,
    "reset_sampling_state": False,
}
RELOAD = STILL | {"reload_inputs": True}
RESET = RELOAD | {"reload_sampling_params": True, "reset_sampling_state": True}


class Standing:
    """Declares everything."""

    model_capabilities: dict[str, Any] = {
        "supports_chunked_prefill": True,
        "supports_prefix_caching": True,
        "supports_sample_on_device": True,
        "supports_device_grammar": True,
        "supports_async_decode": True,
        "supports_compact_host_logits": True,
        "supports_selective_host_readback": True,
        "max_device_top_k": 8,
    }
    decode_input_update_contract = 1
    tt_supported_decode_batch_sizes = (1, 2, 4)
    device_grammar_enabled = True

    def __init__(self) -> None:
        self.released: list[int] = []

    @classmethod
    def initialize_vllm_model(cls, *_: Any, **__: Any) -> Standing:
        return cls()

    def enable_device_grammar(self) -> bool:
        return True

    def allocate_kv_cache_per_layer(self, per_layer_specs: Any) -> object:
        return CACHE

    def warmup_model_prefill(self, **call: Any) -> None:
        pass

    def warmup_model_decode(self, **call: Any) -> None:
        pass

    def prepare_device_grammar_decode_trace_warmup(self, **call: Any) -> bool:
        return True

    def capture_prepared_device_grammar_decode_trace(self) -> None:
        pass

    def prefill_forward(self, **call: Any) -> Any:
        rows = len(call["empty_slots"])
        if "sampling_params" in call:
            return torch.zeros(rows, dtype=torch.int32)
        return torch.zeros(rows, 1, VOCABULARY)

    def decode_forward(self, **call: Any) -> Any:
        return [len(call["start_pos"])]

    def sample_decode_on_device(self, deferred_decode: Any, **call: Any) -> Any:
        return list(deferred_decode)

    def read_decode_output(self, tt_out: Any, *, async_read: bool, **_: Any) -> Any:
        return list(tt_out), []

    def process_decode_output_host(
        self, tt_out: Any, *, is_tokens: bool, sample_rows: list[int] | None = None
    ) -> Any:
        if is_tokens:
            return torch.zeros(tt_out[0], dtype=torch.int32)
        count = tt_out[0] if sample_rows is None else len(sample_rows)
        return torch.zeros(count, 1, VOCABULARY)

    def release_request(self, slot: int) -> None:
        self.released.append(slot)


def loaded(
    adapter: type[Any] = Standing, *, lanes: int = 1, allocate: bool = True
) -> Any:
    """A probe of `adapter`; `Any`, since a probe has its adapter's hooks."""
    config = SimpleNamespace(
        get_text_config=lambda: SimpleNamespace(vocab_size=VOCABULARY)
    )
    probe: Probe = probed(adapter).initialize_vllm_model(
        config,
        None,
        ROWS,
        max_seq_len=LENGTH,
        tt_data_parallel=lanes,
        optimizations=None,
    )
    if allocate:
        shape = (BLOCKS, 1, BLOCK_SIZE, 8)
        probe.allocate_kv_cache_per_layer([(shape, torch.float32, 0)])
    return probe


def warm_call(**changes: Any) -> dict[str, Any]:
    """Keywords of `warmup_model_prefill`."""
    call = {"kv_cache": CACHE, "enable_trace": False, "can_sample_on_device": True}
    return call | changes


def warm_decode_call(**changes: Any) -> dict[str, Any]:
    """Keywords of `warmup_model_decode`."""
    return warm_call(max_batch_size=ROWS, num_blocks=WIDTH) | changes


def serving(adapter: type[Any] = Standing, *, lanes: int = 1) -> Any:
    """A probe that is warmed up, with both traces captured."""
    probe = loaded(adapter, lanes=lanes)
    for enable_trace in (False, True):
        probe.warmup_model_prefill(**warm_call(enable_trace=enable_trace))
        probe.warmup_model_decode(**warm_decode_call(enable_trace=enable_trace))
    return probe


def prefill_call(**changes: Any) -> dict[str, Any]:
    """Prompts of 5 and 3 tokens into slots 0 and 2."""
    call = {
        "tokens": torch.ones(2, 5, dtype=torch.int32),
        "page_table": torch.tensor([[1, 2, 0], [3, 0, 0]], dtype=torch.int32),
        "kv_cache": CACHE,
        "enable_trace": True,
        "prompt_lens": np.array([5, 3]),
        "start_pos": np.zeros(2, dtype=np.int32),
        "empty_slots": [0, 2],
    }
    return call | changes


def decode_call(**changes: Any) -> dict[str, Any]:
    """The first token of both, sampled on the host."""
    call = {
        "tokens": torch.tensor([[7], [0], [8], [0]], dtype=torch.int32),
        "start_pos": torch.tensor([5, -1, 3, -1], dtype=torch.int32),
        "page_table": torch.tensor(
            [[1, 2, 0], [0, 0, 0], [3, 4, 0], [0, 0, 0]], dtype=torch.int32
        ),
        "kv_cache": CACHE,
        "enable_trace": True,
        "read_from_device": False,
    }
    return call | RELOAD | changes


def sampling(rows: list[int | None], **changes: Any) -> TTSamplingParams:
    """Parameters of rows with this top_k; None is a row without a request."""
    taken = [top_k is not None for top_k in rows]
    values: dict[str, list[Any]] = {
        "temperature": [0.5 if yes else 0.0 for yes in taken],
        "top_k": [1 if top_k is None else top_k for top_k in rows],
        "top_p": [0.9 if yes else 1.0 for yes in taken],
        "presence_penalty": [0.0] * len(rows),
        "frequency_penalty": [0.0] * len(rows),
        "repetition_penalty": [1.0] * len(rows),
        "seed": [None] * len(rows),
        "num_logprobs": [-2] * len(rows),
        "enable_log_probs": [False] * len(rows),
    }
    return TTSamplingParams(**values | changes)


GRID: list[int | None] = [5, None, 5, None]


def device_decode_call(**changes: Any) -> dict[str, Any]:
    """As `decode_call`, sampled on the device, everything told anew."""
    return decode_call(sampling_params=sampling(GRID), **RESET) | changes


def read(probe: Any, output: Any, *, is_tokens: bool = False, rows: Any = None) -> Any:
    """Read a decode's output back."""
    host_output, _ = probe.read_decode_output(output, async_read=True)
    chosen = {} if rows is None else {"sample_rows": rows}
    return probe.process_decode_output_host(host_output, is_tokens=is_tokens, **chosen)


def stepped(call: dict[str, Any], by: int = 1) -> dict[str, Any]:
    """The call with every live row `by` positions on."""
    positions = call["start_pos"]
    return call | {"start_pos": torch.where(positions < 0, positions, positions + by)}
