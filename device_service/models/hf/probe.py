"""One forward of two tokens, to learn what a model keeps and whether it pages.

It finds what no config says reliably: which layers keep keys and values, in
what shapes, and whether all of its attention goes through the functions that
the paged cache needs.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface

from device_service.models.contract import KVLayer
from device_service.models.hf.attention import (
    ATTENTION_NAME,
    UnservableAttention,
    paged_attention,
    paged_mask,
)
from device_service.models.hf.paged_cache import ProbeLayer, paged_cache
from device_service.models.hf.step import prefill_step, running

PROBE_NAME = "ttserve_probe"
FORWARD_FAILURES = (
    AttributeError,
    LookupError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
)
"""What a forward raises that meets a cache or a mask it was not written for."""


@dataclass(slots=True)
class _Seen:
    attentions: int = 0
    causal: list[bool] = field(default_factory=list)


_SEEN: ContextVar[_Seen] = ContextVar("probe")


def probe(model: Any, layer_count: int) -> list[KVLayer | None]:
    """What each layer keeps, None where it keeps nothing of its own.

    Raises UnservableAttention.
    """
    AttentionInterface.register(PROBE_NAME, _attention)
    AttentionMaskInterface.register(PROBE_NAME, _mask)
    layers = [ProbeLayer() for _ in range(layer_count)]
    seen = _run(model, layers)
    kept = [None if layer.seen is None else _describe(*layer.seen) for layer in layers]
    keepers = sum(layer is not None for layer in kept)
    if keepers == 0:
        raise UnservableAttention("it keeps no keys and values")
    if seen.attentions < keepers or not seen.causal:
        raise UnservableAttention("its attention does not go through transformers'")
    if not all(seen.causal):
        raise UnservableAttention("its attention is not causal")
    return kept


def _run(model: Any, layers: list[ProbeLayer]) -> _Seen:
    step = prefill_step(torch.zeros(1, dtype=torch.int64), 0, 2, 2)
    seen = _Seen()
    token = _SEEN.set(seen)
    model.set_attn_implementation(PROBE_NAME)
    try:
        with running(step), torch.no_grad():
            model(
                input_ids=torch.zeros(1, 2, dtype=torch.int64),
                position_ids=step.positions,
                cache=paged_cache(layers),
                use_cache=True,
                logits_to_keep=1,
            )
    except FORWARD_FAILURES as error:
        raise UnservableAttention(
            f"its forward pass fails ({type(error).__name__}: {error})"
        ) from error
    finally:
        model.set_attn_implementation(ATTENTION_NAME)
        _SEEN.reset(token)
    return seen


def _describe(keys: torch.Tensor, values: torch.Tensor) -> KVLayer:
    """Keys [B, heads, S, size]; values may have another size, not other heads."""
    if keys.shape[1] != values.shape[1]:
        raise UnservableAttention("keys and values have different heads")
    return KVLayer(keys.shape[1], keys.shape[3], values.shape[3], keys.dtype)


def _attention(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, None]:
    _SEEN.get().attentions += 1
    return paged_attention(*args, **kwargs)


def _mask(**kwargs: Any) -> torch.Tensor | None:
    mask = paged_mask(**kwargs)
    _SEEN.get().causal.append(mask is None or not bool(mask[..., 0, 1].any()))
    return mask
