"""What a request's sampling parameters ask of the sampler, read once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from vllm.sampling_params import SamplingParams
from vllm.v1.request import Request

# Below this temperature vLLM samples greedily (its sampler's own constant).
GREEDY_BELOW = 1e-5


@dataclass(frozen=True, slots=True)
class Cut:
    """How a token is chosen once its logits are ready.

    `greedy` is temperature zero, or top_k 1 at any temperature: what is left to
    draw from is then the best token. `top_k` is the vocabulary when off. `cuts`
    says that some tokens are dropped before the draw.
    """

    temperature: float
    greedy: bool
    top_k: int
    top_p: float
    min_p: float
    cuts: bool

    @property
    def scales(self) -> bool:
        """Whether the temperature applies, as it does to a top_k of 1 too."""
        return self.temperature >= GREEDY_BELOW


@dataclass(frozen=True, slots=True)
class Recipe(Cut):
    """How one request's tokens are chosen on the host.

    `penalised` and `constrained` say that the logits change before the cut, as
    they also do until `min_tokens` are produced.
    """

    params: SamplingParams
    penalised: bool
    constrained: bool
    min_tokens: int


class Recipes:
    """The recipes of live requests. Engine thread."""

    def __init__(self, vocab_size: int) -> None:
        self._vocab_size = vocab_size
        self._by_request: dict[str, Recipe] = {}

    def __len__(self) -> int:
        return len(self._by_request)

    def of(self, request: Request) -> Recipe:
        """The request's recipe; made when its first token is sampled."""
        recipe = self._by_request.get(request.request_id)
        params = request.sampling_params
        if recipe is None or recipe.params is not params:
            assert params is not None
            recipe = _read(params, self._vocab_size)
            self._by_request[request.request_id] = recipe
        return recipe

    def forget(self, request_id: str) -> None:
        """Drop a request's recipe; unknown ids are ignored."""
        self._by_request.pop(request_id, None)


@dataclass(frozen=True, slots=True)
class Knobs:
    """Temperature and cuts of several rows, as columns: float32 or int64 [rows]."""

    temperature: torch.Tensor
    top_k: torch.Tensor
    top_p: torch.Tensor
    min_p: torch.Tensor

    @classmethod
    def of(cls, recipes: Sequence[Cut]) -> Knobs:
        """The knobs of rows whose temperature applies."""
        return cls(
            torch.tensor([r.temperature for r in recipes]),
            torch.tensor([r.top_k for r in recipes]),
            torch.tensor([r.top_p for r in recipes]),
            torch.tensor([r.min_p for r in recipes]),
        )


def effective_top_k(top_k: int, vocab_size: int) -> int:
    """A top_k that is off, or not below the vocabulary, is the vocabulary."""
    return top_k if 0 < top_k < vocab_size else vocab_size


def is_penalised(params: SamplingParams) -> bool:
    """Whether any penalty differs from its neutral value."""
    return (
        params.presence_penalty != 0.0
        or params.frequency_penalty != 0.0
        or params.repetition_penalty != 1.0
    )


def _read(params: SamplingParams, vocab_size: int) -> Recipe:
    top_k = effective_top_k(params.top_k, vocab_size)
    penalised = is_penalised(params)
    return Recipe(
        params=params,
        temperature=params.temperature,
        greedy=params.temperature < GREEDY_BELOW or top_k == 1,
        top_k=top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        cuts=top_k < vocab_size or params.top_p < 1.0 or params.min_p > 0.0,
        penalised=penalised,
        constrained=bool(
            penalised
            or params.logit_bias
            or params.allowed_token_ids
            or params.bad_words_token_ids
            or params.thinking_token_budget is not None
        ),
        min_tokens=params.min_tokens,
    )
