"""A few tokens both ways, before a model serves.

A family that keeps more than keys and values, or counts positions its own way,
would be served wrongly without an error. So the logits of a short prompt are
computed once as transformers does, without a cache, and once in pages: two
chunks and a decode step beside an empty row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F

from device_service.models.contract import KVLayer
from device_service.models.hf.attention import ATTENTION_NAME, UnservableAttention
from device_service.models.hf.paged_model import PagedKV, PagedModel
from device_service.models.hf.step import prefill_step, running

LENGTH = 6
BLOCK_SIZE = 4
FLOAT32_SIMILARITY = 0.9999
OTHER_SIMILARITY = 0.9
"""Least cosine of the two. What a low precision leaves, its roundings amplified
by routing, is still far from what a wrong cache gives."""


def reference_logits(decoder: Any) -> torch.Tensor:
    """The last position's logits by the model's own attention, float32 [V]."""
    tokens = _tokens()[None]
    step = prefill_step(torch.zeros(1, dtype=torch.int64), 0, LENGTH, LENGTH)
    decoder.set_attn_implementation("eager")
    try:
        with running(step), torch.inference_mode():
            output = decoder(input_ids=tokens, use_cache=False, logits_to_keep=1)
    finally:
        decoder.set_attn_implementation(ATTENTION_NAME)
    logits: torch.Tensor = output.logits[0, -1].float()
    return logits


def check_paged(
    model: PagedModel, layers: Sequence[KVLayer | None], reference: torch.Tensor
) -> None:
    """Raise UnservableAttention unless pages give the reference's logits."""
    kv = PagedKV(layers, lanes=1, num_blocks=4, block_size=BLOCK_SIZE)
    tokens = _tokens()
    table = torch.tensor([[3, 1], [0, 0]])
    with torch.inference_mode():
        model.prefill(kv, tokens[:3], table[0], 0)
        model.prefill(kv, tokens[3:-1], table[0], 3)
        logits = model.decode(
            kv,
            torch.stack([tokens[-1], torch.tensor(0)]),
            table,
            torch.tensor([LENGTH - 1, 0]),
            width=2,
        )[0]
    similarity = float(F.cosine_similarity(logits, reference, dim=0))
    exact = model.dtype is torch.float32
    if not similarity >= (FLOAT32_SIMILARITY if exact else OTHER_SIMILARITY):
        raise UnservableAttention(
            f"in pages it gives other logits than alone (cosine {similarity:.4f})"
        )


def _tokens() -> torch.Tensor:
    """Ids that every vocabulary has and no padding id is likely to be."""
    return torch.arange(11, 11 + LENGTH)
