"""Attention over gathered blocks, registered with transformers under one name.

transformers calls the mask function once per kind of mask with a rule for
(query position, key position); we apply it to our own positions, so windows,
chunks and whatever a family overlays are served without knowing the family.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import causal_mask_function

from device_service.models.hf.step import current_step

ATTENTION_NAME = "ttserve_paged"

MaskRule = Callable[..., Any]


class UnservableAttention(Exception):
    """The model's attention needs something that rows in blocks cannot give."""


def register_paged_attention() -> None:
    """Make the name known to transformers; any number of times."""
    AttentionInterface.register(ATTENTION_NAME, paged_attention)
    AttentionMaskInterface.register(ATTENTION_NAME, paged_mask)


def paged_mask(mask_function: MaskRule, **_: Any) -> torch.Tensor | None:
    """Which keys each query sees, bool [B or 1, 1, S, context].

    None for a plain causal prompt from its start, which attention knows
    without a mask.
    """
    step = current_step()
    if step.table is None and mask_function is causal_mask_function:
        return None
    batch = torch.arange(step.positions.shape[0])
    mask: torch.Tensor = mask_function(
        batch[:, None, None, None],
        torch.tensor(0),
        step.positions[:, None, :, None],
        torch.arange(step.context)[None, None, None, :],
    )
    return mask


def paged_attention(  # noqa: PLR0913 - what transformers passes
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    *,
    scaling: float | None = None,
    softcap: float | None = None,
    s_aux: torch.Tensor | None = None,
    position_bias: torch.Tensor | None = None,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """query [B, H, S, D], key [B, Hk, L, D], value [B, Hk, L, Dv] -> [B, S, H, Dv]."""
    if position_bias is not None:
        raise UnservableAttention("attention with a position bias")
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if softcap is None and s_aux is None:
        output = F.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=attention_mask,
            is_causal=attention_mask is None and query.shape[2] > 1,
            scale=scale,
            enable_gqa=query.shape[1] != key.shape[1],
        )
    else:
        scores = _scores(query, key, scale, softcap)
        output = _weighted(scores, value, attention_mask, s_aux)
    return output.transpose(1, 2), None


def _scores(
    query: torch.Tensor, key: torch.Tensor, scale: float, softcap: float | None
) -> torch.Tensor:
    """[B, H, S, L]; the heads of a group share their keys without a copy."""
    batch, heads, length, size = query.shape
    grouped = query.reshape(batch, key.shape[1], -1, size)
    scores = torch.matmul(grouped, key.transpose(2, 3)) * scale
    scores = scores.view(batch, heads, length, -1)
    return scores if softcap is None else softcap * torch.tanh(scores / softcap)


def _weighted(
    scores: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    sinks: torch.Tensor | None,
) -> torch.Tensor:
    """Softmax in float32, then the values, [B, H, S, Dv].

    A sink is one more score per head, which takes its share of the softmax and
    has no value.
    """
    batch, heads, length, context = scores.shape
    if mask is None:
        mask = torch.ones(length, context, dtype=torch.bool).tril()
    scores = scores.float().masked_fill(~mask, float("-inf"))
    if sinks is not None:
        column = sinks.float().view(1, heads, 1, 1).expand(batch, heads, length, 1)
        scores = torch.cat([scores, column], dim=-1)
    weights = scores.softmax(dim=-1)[..., :context].to(value.dtype)
    grouped = weights.reshape(batch, value.shape[1], -1, context)
    return torch.matmul(grouped, value).view(batch, heads, length, -1)
