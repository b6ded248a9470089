"""Seeds repeat, and without one answers vary."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.tt.server import Server, together

PROMPT = "My favourite thing to do on a rainy day is"


def drawn(server: Server, *, times: int, **options: Any) -> list[tuple[int, ...]]:
    """The same request several times, together."""
    call = partial(server.complete, PROMPT, temperature=1.0, max_tokens=8, **options)
    return [tuple(answer.token_ids) for answer in together([call] * times)]


@pytest.mark.feature(121)
def test_a_seed_repeats(server: Server) -> None:
    together_first = drawn(server, times=4, seed=1234)
    assert len(set(together_first)) == 1
    assert drawn(server, times=1, seed=1234) == together_first[:1]


@pytest.mark.feature(121)
def test_other_seeds_differ(server: Server) -> None:
    assert len({drawn(server, times=1, seed=seed)[0] for seed in range(4)}) > 1


@pytest.mark.feature(121)
def test_without_a_seed_answers_vary(server: Server) -> None:
    assert len(set(drawn(server, times=6))) > 1


@pytest.mark.feature(122)
@pytest.mark.edge("42b")
@pytest.mark.parametrize("seed", [-7, 2**40 + 1, 2**63 - 1, -(2**63)])
def test_seeds_of_64_bits(server: Server, seed: int) -> None:
    first, second = drawn(server, times=2, seed=seed)
    assert first == second


@pytest.mark.feature(122)
@pytest.mark.edge("42b")
def test_no_bit_of_a_seed_is_lost(server: Server) -> None:
    seeds = [1, 1 + 2**32, 1 + 2**40, 1 + 2**62]
    assert len({drawn(server, times=1, seed=seed)[0] for seed in seeds}) > 1


@pytest.mark.parametrize("options", [{"temperature": 0.0}, {"top_k": 1}])
def test_greedy_never_varies(server: Server, options: dict[str, Any]) -> None:
    call = partial(server.complete, PROMPT, **({"temperature": 1.0} | options))
    answers = {tuple(answer.token_ids) for answer in together([call] * 4)}
    assert answers == {tuple(server.complete(PROMPT).token_ids)}


@pytest.mark.feature(120)
@pytest.mark.edge(37)
@pytest.mark.parametrize("top_p", [0.1, 0.9, 1.0])
def test_top_k_of_one_is_greedy(server: Server, top_p: float) -> None:
    answer = server.complete(PROMPT, temperature=1.2, top_k=1, top_p=top_p)
    assert answer.token_ids == server.complete(PROMPT).token_ids
