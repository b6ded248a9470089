"""The real server over the real engine, on its thread, and the sim mesh."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

from vllm.tokenizers import get_tokenizer

from device_service.admission import RequestFactory
from device_service.bundle import Bundle
from device_service.grammar import normalise_structured_outputs
from device_service.models.sim_tokens import SimVocabulary, expected_tokens
from device_service.serving import ServiceOptions
from tests.support.rig import Rig
from tests.support.wire import BUNDLE, MODEL, Endpoint
from ttserve.sim_model import sim_model_dir
from ttserve.v1 import inspector_pb2

ROWS, BLOCK, CONTEXT = 8, 16, 512
OPTIONS = ServiceOptions(silence_limit=60.0, step_control=True)


class RealService(Endpoint):
    """A device service over a rig's engine."""

    def __init__(
        self, bundle: Bundle, options: ServiceOptions, arguments: dict[str, Any]
    ) -> None:
        super().__init__(options)
        self.rig = Rig(
            sim_model_dir(),
            on_block_events=self.server.on_block_events,
            **({"rows": ROWS, "block_size": BLOCK} | arguments),
        )
        self.bundle = bundle
        self.model = replace(
            MODEL,
            vocab_size=self.rig.vocab_size,
            kv_cache=replace(MODEL.kv_cache, num_blocks=self.rig.num_blocks),
            limits=replace(MODEL.limits, max_queued_requests=200),
            scheduling=replace(MODEL.scheduling, lanes=self.rig.lanes),
            eos_token_ids=(),
        )
        self.vocabulary = SimVocabulary.of(self.rig.config.model_config.hf_config)

    async def open(self) -> None:
        factory = RequestFactory(
            self.model,
            self.rig.engine.block_hasher,
            normalise_structured_outputs,
        )
        self.rig.engine.start()
        tokenizer = get_tokenizer(sim_model_dir())
        self.server.publish(self.model, self.bundle, tokenizer)
        await self.server.open_for_requests(self.rig.engine, factory, self.rig.grammars)

    def expected(self, prompt: list[int], count: int) -> list[int]:
        return expected_tokens(prompt, count, self.vocabulary)

    async def assert_nothing_is_held(self) -> None:
        """No row, no referenced block, no grammar, no waiting request."""
        inspector = self.inspector()
        for _ in range(100):
            state = await inspector.GetState(inspector_pb2.GetStateRequest())
            free = all(lane.free_blocks == lane.total_blocks for lane in state.lanes)
            busy = any(lane.rows or lane.waiting for lane in state.lanes)
            if free and not busy and not state.grammars:
                return
            await asyncio.sleep(0.02)
        raise AssertionError(state)


@contextlib.asynccontextmanager
async def real_service(
    bundle: Bundle = BUNDLE,
    *,
    options: ServiceOptions = OPTIONS,
    rig: dict[str, Any] | None = None,
    **profile: Any,
) -> AsyncIterator[RealService]:
    """A service over the sim mesh, with this latency and these faults.

    `rig` are arguments of the `Rig`.
    """
    service = RealService(bundle, options, {"mesh_options": sim(profile)} | (rig or {}))
    await service.start()
    await service.open()
    try:
        yield service
    finally:
        await service.close()
        service.rig.engine.stop()
        assert service.rig.engine.join(10)
        service.rig.close()


def sim(profile: dict[str, Any]) -> dict[str, Any]:
    return {"sim": profile} if profile else {}
