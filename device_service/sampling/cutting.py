"""Temperature, min_p, top_k and top_p: which tokens may still be drawn.

Each of the three cuts keeps the tokens from some value upwards, so all three are
one threshold on the sorted logits of a row, and mostly that threshold lies among
its best few hundred. `shortlist` looks for it there; rows that it cannot decide
are looked at again in a longer list, and what even that leaves open is cut over
the whole vocabulary with vLLM's own function. How far a row goes depends on the
row alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from vllm.v1.sample.ops.topk_topp_sampler import apply_top_k_top_p

from device_service.sampling.recipe import Knobs
from device_service.sampling.reductions import top_columns

# Widths of the lists. A top_k of up to 256 and room for ties at its edge; then
# what top_p takes of a model that has many ideas.
WIDTHS = (288, 4096)


@dataclass(frozen=True, slots=True)
class Shortlist:
    """The best columns of the rows that they decide, best first.

    `values` are scaled logits, -inf where cut; rows are parallel to `decided`,
    which gives their places. `undecided` are the places of the other rows.
    """

    values: torch.Tensor
    token_ids: torch.Tensor
    decided: list[int]
    undecided: list[int]


def shortlist(logits: torch.Tensor, knobs: Knobs, width: int) -> Shortlist:
    """Cut rows of raw logits, looking at their best `width` columns only.

    Tokens that tie at the threshold are all kept, as vLLM keeps them at top_k.
    """
    width = min(width, logits.shape[1])
    values, token_ids = top_columns(logits, width)
    values = values / knobs.temperature[:, None]
    best, worst = values[:, :1], values[:, -1:]
    kth = values.gather(1, (knobs.top_k[:, None] - 1).clamp(max=width - 1))
    floor = torch.where(knobs.top_k[:, None] <= width, kth, -torch.inf)
    floor = torch.maximum(floor, best + knobs.min_p[:, None].log())
    values = values.masked_fill(values < floor, -torch.inf)

    exhaustive = (worst < floor) | (worst == -torch.inf) | (width == logits.shape[1])

    # A row that only top_p cuts needs the mass of the whole vocabulary.
    only_top_p = (knobs.top_k == logits.shape[1]) & (knobs.min_p == 0.0)
    whole = only_top_p & ~exhaustive[:, 0]
    mass = values.logsumexp(dim=1, keepdim=True)
    if bool(whole.any()):
        scaled = logits[whole] / knobs.temperature[whole, None]
        mass[whole] = scaled.logsumexp(dim=1, keepdim=True)

    # A token stays while the mass above it is less than top_p.
    mass_above = (values - mass).exp().cumsum(dim=1, dtype=torch.float64)
    mass_above = mass_above.roll(1, dims=1)
    mass_above[:, 0] = 0.0
    top_p = knobs.top_p[:, None]
    kept = ((mass_above < top_p) | (top_p >= 1.0)).sum(dim=1, keepdim=True)
    floor = torch.maximum(floor, values.gather(1, (kept - 1).clamp(min=0)))
    values = values.masked_fill(values < floor, -torch.inf)
    decided = exhaustive[:, 0] | (whole & (worst < floor)[:, 0])
    places = decided.nonzero()[:, 0]
    return Shortlist(
        values[places],
        token_ids[places],
        places.tolist(),
        (~decided).nonzero()[:, 0].tolist(),
    )


def cut_whole(scaled: torch.Tensor, knobs: Knobs) -> torch.Tensor:
    """Cut rows of scaled logits over the whole vocabulary; may write to them."""
    cut_min_p(scaled, knobs.min_p)
    return cut_sorted(scaled, knobs)


def cut_min_p(scaled: torch.Tensor, min_p: torch.Tensor) -> None:
    """Forbid, in place, tokens less probable than min_p times the best one."""
    if bool((min_p > 0).any()):
        floor = scaled.amax(dim=1, keepdim=True) + min_p[:, None].log()
        scaled.masked_fill_(scaled < floor, -torch.inf)


def cut_sorted(scaled: torch.Tensor, knobs: Knobs) -> torch.Tensor:
    """Cut by top_k and top_p with vLLM's own function, which sorts the rows."""
    return apply_top_k_top_p(scaled, knobs.top_k, knobs.top_p)
