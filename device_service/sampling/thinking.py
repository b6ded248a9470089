"""Thinking budgets: end a request's reasoning after so many tokens.

vLLM's state holder indexes by row and looks at a whole batch. Here each request
has a holder of its own with one row, so that its state goes where the request
goes and nothing is left when it ends.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from vllm.config import VllmConfig
from vllm.v1.request import Request
from vllm.v1.sample.logits_processor import BatchUpdate
from vllm.v1.sample.thinking_budget_state import ThinkingBudgetStateHolder

from device_service.sampling.processors import live_output


class ThinkingBudgets:
    """Holders by request. Engine thread."""

    def __init__(self, config: VllmConfig) -> None:
        reasoning = config.reasoning_config
        self._reasoning = reasoning if reasoning and reasoning.enabled else None
        self._holders: dict[str, ThinkingBudgetStateHolder] = {}

    @property
    def served(self) -> bool:
        """Whether the model's reasoning marks are known; without them no budget."""
        return self._reasoning is not None

    @property
    def held(self) -> int:
        """Holders of live requests."""
        return len(self._holders)

    def forget(self, request_id: str) -> None:
        """Drop a request's state; unknown ids are ignored."""
        self._holders.pop(request_id, None)

    def apply(self, logits: torch.Tensor, requests: Sequence[Request]) -> None:
        """Force the end of reasoning, in place, in rows whose budget is spent."""
        for place, request in enumerate(requests):
            params = request.sampling_params
            if params is None or params.thinking_token_budget is None:
                continue
            holder = self._holder(request)
            holder.update_state([live_output(request)], None)
            holder.apply_to_logits(
                logits[place : place + 1],
                predict_bonus_token=False,
                spec_token_ids=None,
            )

    def _holder(self, request: Request) -> ThinkingBudgetStateHolder:
        holder = self._holders.get(request.request_id)
        if holder is None:
            holder = ThinkingBudgetStateHolder(
                self._reasoning,
                max_num_seqs=1,
                num_spec_tokens=0,
                device=torch.device("cpu"),
                is_pin_memory=False,
            )
            params, prompt = request.sampling_params, request.prompt_token_ids
            assert params is not None
            newcomer = (0, params, prompt, live_output(request))
            holder.sync_batch(
                BatchUpdate(batch_size=1, removed=(), added=(newcomer,), moved=())
            )
            self._holders[request.request_id] = holder
        return holder
