"""Applies the policy to what is known of each device service."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from frontend.routing.policy import Candidate, choose, load_margin
from frontend.routing.prefixes import PrefixMemory, block_hashes
from ttserve.v1.model_pb2 import Model


class Router:
    """Remembers who got what; event loop only.

    All device services serve the same model with the same rows and blocks.
    """

    def __init__(self, model: Model) -> None:
        kv_cache, scheduling = model.kv_cache, model.scheduling
        self._block_size = kv_cache.block_size if kv_cache.prefix_caching else 0
        self._max_blocks = kv_cache.num_blocks * scheduling.lanes
        self._margin = load_margin(scheduling.lanes * scheduling.rows_per_lane)
        self._memories: dict[str, PrefixMemory] = {}
        self._last_turns: dict[str, int] = {}
        self._turn = 0

    def route(
        self, loads: Mapping[str, int], token_ids: Sequence[int], salt: str = ""
    ) -> str:
        """The name of the device service that gets a prompt, one of `loads`.

        `loads` are the requests that run or wait in each that takes more; there
        must be one. What is chosen counts as sent.
        """
        hashes = (
            block_hashes(token_ids, self._block_size, salt) if self._block_size else []
        )
        chosen = choose(
            [
                Candidate(
                    name,
                    load,
                    self._memory(name).shared_blocks(hashes),
                    self._last_turns.get(name, 0),
                )
                for name, load in loads.items()
            ],
            self._margin,
        ).name
        self._memory(chosen).add(hashes)
        self._turn += 1
        self._last_turns[chosen] = self._turn
        return chosen

    def forget(self, name: str) -> None:
        """That device service is gone, and its prefix cache with it."""
        self._memories.pop(name, None)
        self._last_turns.pop(name, None)

    def _memory(self, name: str) -> PrefixMemory:
        memory = self._memories.get(name)
        if memory is None:
            memory = self._memories[name] = PrefixMemory(self._max_blocks)
        return memory
