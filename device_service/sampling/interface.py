"""What the engine needs from host sampling and from structured output."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import torch
from vllm.v1.request import Request

from device_service.records import Sampled, SamplingRow
from device_service.sampling.site import SitePolicy
from ttserve.errors import TTServeError


class TokenSampler(Protocol):
    """Chooses tokens from logits. Engine thread."""

    def sample(
        self,
        logits: torch.Tensor,
        rows: Sequence[SamplingRow],
        bitmask: np.ndarray | None,
    ) -> Sampled:
        """Choose one token per row.

        logits: float32 [len(rows), V], may be written to. bitmask: int32
        [len(rows), ceil(V / 32)], bit set = allowed, or None.
        """

    def best(self, logits: torch.Tensor) -> Sampled | None:
        """The best token of every row, for rows that want nothing else.

        The usual batch, and while it is sampled the mesh waits. None when
        `sample` has to look: configured processors want to see every row, or
        some row's logits are not finite.
        """

    def release(self, request_id: str) -> None:
        """Forget a request's sampling state (finished or preempted for good)."""


class GrammarKeeper(Protocol):
    """Compiles grammars off the engine thread and keeps their state."""

    def start(
        self,
        request: Request,
        on_ready: Callable[[str, TTServeError | None], None],
    ) -> None:
        """Begin to compile; `on_ready(request_id, error)` comes from any thread."""

    def bitmask(self, requests: Sequence[Request]) -> np.ndarray | None:
        """Rows of allowed tokens, in the order of `requests`; all ones for a
        request without grammar; None when no request has one. Engine thread;
        the array is the caller's to keep.
        """

    def accept(self, request: Request, token_id: int) -> bool:
        """Advance the request's grammar; False means that it cannot. Engine thread."""

    def release(self, request_id: str) -> None:
        """Drop the request's grammar. Engine thread. Unknown ids are ignored."""

    @property
    def live(self) -> int:
        """Grammars held or being compiled for live requests."""


@dataclass(frozen=True, slots=True)
class HostSampling:
    """Who chooses tokens on the host, and when it is the host that does."""

    sampler: TokenSampler
    grammars: GrammarKeeper
    site: SitePolicy
