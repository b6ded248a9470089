"""What a short list decides is what cutting the whole vocabulary gives."""

from __future__ import annotations

import random

import pytest
import torch

from device_service.sampling.cutting import cut_whole, shortlist
from device_service.sampling.recipe import Knobs
from tests.unit.device_service.sampling.batches import random_logits

VOCAB = 700
ROWS = 400


def random_knobs(seed: int) -> Knobs:
    """All combinations of cuts, most of them near the width of the lists."""
    chance = random.Random(seed)
    return Knobs(
        torch.tensor([chance.choice([0.3, 1.0, 2.0]) for _ in range(ROWS)]),
        torch.tensor([chance.choice([2, 9, 16, 30, 90, VOCAB]) for _ in range(ROWS)]),
        torch.tensor([chance.choice([0.1, 0.6, 0.9, 1.0]) for _ in range(ROWS)]),
        torch.tensor([chance.choice([0.0, 1e-4, 0.02, 0.3]) for _ in range(ROWS)]),
    )


@pytest.mark.parametrize("width", [16, 64, 1000])
@pytest.mark.parametrize("seed", [1, 2])
def test_decided_rows_keep_what_vllm_keeps(seed: int, width: int) -> None:
    knobs = random_knobs(seed)
    logits = random_logits(seed, ROWS, VOCAB)
    logits[::5, 20:] = -torch.inf  # as under a grammar
    whole = cut_whole(logits / knobs.temperature[:, None], knobs)
    best = shortlist(logits, knobs, width)
    assert sorted(best.decided + best.undecided) == list(range(ROWS))
    for values, token_ids, place in zip(
        best.values, best.token_ids, best.decided, strict=True
    ):
        kept = token_ids[values.isfinite()].sort().values
        assert torch.equal(kept, whole[place].isfinite().nonzero()[:, 0])
        assert torch.equal(
            values[values.isfinite()], whole[place, kept].sort(descending=True).values
        )
    # The list is not so modest that it decides nothing.
    assert len(best.decided) > ROWS * (0.5 if width < 1000 else 0.99)
    if width > VOCAB:
        assert not best.undecided


def test_a_row_is_left_open_exactly_where_the_list_ends_too_soon() -> None:
    logits = -torch.arange(VOCAB, dtype=torch.float32).repeat(5, 1) * 0.001
    off = [VOCAB, 1.0, 0.0]
    cuts = [[15, 1.0, 0.0], [16, 1.0, 0.0], [VOCAB, 0.01, 0.0], [VOCAB, 0.5, 0.0], off]
    knobs = Knobs(
        torch.ones(5),
        torch.tensor([int(cut[0]) for cut in cuts]),
        torch.tensor([cut[1] for cut in cuts]),
        torch.tensor([cut[2] for cut in cuts]),
    )
    best = shortlist(logits, knobs, 16)
    # Sixteen of sixteen: more tokens might tie with the last one.
    assert best.decided == [0, 2]
    assert best.undecided == [1, 3, 4]


def test_tokens_that_tie_at_the_edge_are_all_kept() -> None:
    logits = torch.zeros(2, VOCAB)
    logits[:, :12] = 5.0
    logits[0, :3] = 6.0
    knobs = Knobs(
        torch.ones(2),
        torch.tensor([5, VOCAB]),
        torch.tensor([1.0, 0.2]),
        torch.zeros(2),
    )
    best = shortlist(logits, knobs, 100)
    assert best.decided == [0, 1]
    assert best.values.isfinite().sum(dim=1).tolist() == [12, 12]
