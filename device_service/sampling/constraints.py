"""What changes logits before a token is chosen, served by vLLM's own sampler.

In vLLM's order: allowed ids, bad words, min_tokens, logit_bias, configured
processors, penalties, thinking budget. Only rows that ask for any of it are
handed over, unless configured processors want to see every row.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from vllm.config import VllmConfig
from vllm.v1.request import Request
from vllm.v1.sample.logits_processor import (
    BatchUpdate,
    LogitsProcessor,
    LogitsProcessors,
)
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler

from device_service.records import SamplingRow
from device_service.sampling.batch import Batch
from device_service.sampling.processors import (
    CompactBatch,
    RowGrid,
    build_processors,
    live_output,
)
from device_service.sampling.recipe import Recipe
from device_service.sampling.thinking import ThinkingBudgets

HostBatch = Batch[SamplingRow, Recipe]


class Constraints:
    """Applies the constraints of rows to their logits. Engine thread."""

    def __init__(self, config: VllmConfig, vocab_size: int, total_rows: int) -> None:
        self._vocab_size = vocab_size
        self._sampler = Sampler()
        own, configured = build_processors(config)
        self._own = own
        self._compact = CompactBatch(own)
        self.grid = RowGrid(configured, total_rows, vocab_size)
        self.thinking = ThinkingBudgets(config)
        self._prompts: dict[str, torch.Tensor] = {}

    @property
    def held(self) -> int:
        """Things held for live requests: zero when there are none."""
        return len(self._prompts) + self.thinking.held + self.grid.occupied

    def forget(self, request_id: str) -> None:
        """Drop what is held for a request; unknown ids are ignored."""
        self._prompts.pop(request_id, None)
        self.thinking.forget(request_id)
        self.grid.forget(request_id)

    def apply(self, batch: HostBatch) -> None:
        """Change the logits of rows whose requests have constraints, in place."""
        if self.grid.active:
            self.grid.update(batch.rows)
            places = list(range(len(batch.rows)))
        else:
            places = [
                place
                for place, (row, recipe) in enumerate(
                    zip(batch.rows, batch.recipes, strict=True)
                )
                if recipe.constrained
                or row.request.num_output_tokens < recipe.min_tokens
            ]
        if places:
            changed = self._constrain(batch.part(places))
            if changed is not batch.logits:
                batch.logits[places] = changed

    def _constrain(self, part: HostBatch) -> torch.Tensor:
        requests = [row.request for row in part.rows]
        self._compact.update(requests)
        processors = LogitsProcessors(self._own)
        if self.grid.active:
            processors.non_argmax_invariant.append(_GridStage(self.grid, part.rows))
        metadata = self._metadata(requests, part.recipes, processors)
        logits = self._sampler.apply_logits_processors(
            part.logits, metadata, predict_bonus_token=False
        )
        self.thinking.apply(logits, requests)
        return logits

    def _metadata(
        self,
        requests: Sequence[Request],
        recipes: Sequence[Recipe],
        processors: LogitsProcessors,
    ) -> SamplingMetadata:
        """What vLLM's sampler wants to know about these rows, draws left out."""
        params = [recipe.params for recipe in recipes]
        penalised = any(recipe.penalised for recipe in recipes)
        return SamplingMetadata(
            temperature=None,
            all_greedy=True,
            all_random=False,
            top_p=None,
            top_k=None,
            generators={},
            max_num_logprobs=None,
            no_penalties=not penalised,
            prompt_token_ids=self._padded_prompts(requests) if penalised else None,
            frequency_penalties=torch.tensor([p.frequency_penalty for p in params]),
            presence_penalties=torch.tensor([p.presence_penalty for p in params]),
            repetition_penalties=torch.tensor([p.repetition_penalty for p in params]),
            output_token_ids=[live_output(request) for request in requests],
            allowed_token_ids_mask=self._forbidden(recipes),
            bad_words_token_ids={
                place: p.bad_words_token_ids
                for place, p in enumerate(params)
                if p.bad_words_token_ids
            },
            logitsprocs=processors,
        )

    def _forbidden(self, recipes: Sequence[Recipe]) -> torch.Tensor | None:
        """Tokens outside the allow-lists, True where forbidden."""
        allowed = [recipe.params.allowed_token_ids for recipe in recipes]
        if not any(allowed):
            return None
        mask = torch.zeros(len(recipes), self._vocab_size, dtype=torch.bool)
        for place, token_ids in enumerate(allowed):
            if token_ids:
                mask[place] = True
                mask[place, token_ids] = False
        return mask

    def _padded_prompts(self, requests: Sequence[Request]) -> torch.Tensor:
        """Prompts of rows, padded with the vocabulary size, which is no token."""
        prompts = [self._prompt(request) for request in requests]
        return torch.nn.utils.rnn.pad_sequence(
            prompts, batch_first=True, padding_value=self._vocab_size
        )

    def _prompt(self, request: Request) -> torch.Tensor:
        prompt = self._prompts.get(request.request_id)
        if prompt is None:
            prompt = torch.tensor(request.prompt_token_ids or (), dtype=torch.int64)
            self._prompts[request.request_id] = prompt
        return prompt


class _GridStage(LogitsProcessor):
    """The configured processors as one stage of vLLM's sampler, for one step."""

    def __init__(self, grid: RowGrid, rows: Sequence[SamplingRow]) -> None:
        self._grid = grid
        self._rows = rows

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        """Nothing: the grid was updated before."""

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        return self._grid.apply_always(logits, self._rows)
