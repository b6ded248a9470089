"""An engine in one process, over a real mesh, without gRPC and without a thread.

The caller turns the crank: `rig.run()` calls `Engine.step` until nothing is
left to do, so a test is deterministic and a benchmark measures the engine and
nothing else. Everything in it is the real thing; only the session is replaced
by a list.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import torch
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.sampling_params import SamplingParams
from vllm.usage.usage_lib import UsageContext
from vllm.v1.request import Request

from device_service.assembly import EngineLimits, LaneEventSink, build_engine
from device_service.grammar import Grammars, normalise_structured_outputs
from device_service.kv.groups import layer_specs, plan_layers
from device_service.mesh.driver import LoadSpec, TraceMode, load_model
from device_service.mesh.factory import make_mesh
from device_service.mesh.warm_up import DeviceSampling
from device_service.models.probe import probed
from device_service.models.registry import resolve_adapter
from device_service.records import (
    AbortCause,
    Admitted,
    Finish,
    PrefillReport,
    StepRecord,
    StepUpdates,
    TokenLogprobs,
)
from device_service.sampling.host_sampler import HostSampler
from device_service.sampling.interface import HostSampling
from device_service.sampling.site import SitePolicy
from device_service.scheduling.interleave import InterleaveConfig
from ttserve.errors import TTServeError


class Stream:
    """What one request produced, collected as its session would see it."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.token_ids: list[int] = []
        self.logprobs: list[TokenLogprobs] = []
        self.finish: Finish | None = None
        self.prefill: PrefillReport | None = None
        self.steps: list[int] = []

    @property
    def request_id(self) -> str:
        return self.request.request_id


class ListSink:
    """A session that keeps everything."""

    def __init__(self) -> None:
        self.streams: dict[int, Stream] = {}
        self.deliveries: list[StepUpdates] = []

    def deliver(self, updates: StepUpdates) -> None:
        self.deliveries.append(updates)
        for update in updates.updates:
            stream = self.streams[update.handle]
            assert stream.finish is None, "an update after the final one"
            stream.token_ids += update.token_ids
            stream.logprobs += update.logprobs or []
            stream.finish = update.finish
            stream.prefill = update.prefill or stream.prefill
            if update.token_ids:
                stream.steps.append(updates.step_number)


class Rig:
    """A loaded model on a mesh, with an engine that the caller steps.

    `site` are fields of the `SitePolicy`: {"mode": "all"} samples on the device.
    """

    def __init__(
        self,
        model: str | Path,
        *,
        mesh: str = "sim",
        mesh_options: Mapping[str, Any] | None = None,
        rows: int = 8,
        lanes: int = 1,
        num_blocks: int | None = None,
        interleave: InterleaveConfig | None = None,
        adapter: type[Any] | None = None,
        site: Mapping[str, Any] | None = None,
        grammars: type[Grammars] = Grammars,
        trace_mode: TraceMode = TraceMode.ALL,
        on_block_events: LaneEventSink | None = None,
        step_ring: int = 4096,
        **engine_args: Any,
    ) -> None:
        defaults: dict[str, Any] = {
            "max_model_len": 512,
            "block_size": 16,
            "dtype": "float32",
            "async_scheduling": False,
        }
        args = AsyncEngineArgs(
            model=str(model),
            max_num_seqs=rows * lanes,
            num_gpu_blocks_override=num_blocks or 4096,
            **(defaults | engine_args),
        )
        self.config = args.create_engine_config(UsageContext.OPENAI_API_SERVER)
        model_config = self.config.model_config
        assert isinstance(model_config.dtype, torch.dtype)
        block_size = self.config.cache_config.block_size
        if num_blocks is None:
            num_blocks = rows * -(-model_config.max_model_len // block_size) + 1
        self.config.cache_config.num_gpu_blocks = num_blocks
        self.lanes, self.num_blocks = lanes, num_blocks
        self.vocab_size = model_config.get_vocab_size()
        self.mesh = make_mesh(mesh, dict(mesh_options or {}))
        self.mesh.open()
        chosen = adapter or resolve_adapter(model_config.architectures[0], mesh)
        kv_plan = plan_layers(self.config, layer_specs(chosen, self.config))
        checked = probed(chosen)
        loaded = load_model(
            checked,
            self.mesh,
            LoadSpec(
                hf_config=model_config.hf_config,
                model_path=str(model),
                dtype=model_config.dtype,
                max_model_len=model_config.max_model_len,
                block_size=block_size,
                rows_per_lane=rows,
                lanes=lanes,
                device_sampling=_device_sampling(site),
                planned_layers=kv_plan.layers,
                trace_mode=trace_mode,
            ),
        )
        self.driver = loaded.allocate(num_blocks, model_config.max_model_len)
        self.driver.warm_up(lambda _: None)
        (self.probe,) = checked.made
        self.grammars = grammars(self.config)
        self.sampler = HostSampler(
            self.config, self.vocab_size, rows * lanes, position_keyed_seeds=True
        )
        policy = SitePolicy(
            self.vocab_size,
            **{
                "max_device_top_k": loaded.capabilities.max_device_top_k,
                "device_grammar": self.driver.device_grammar,
            }
            | dict(site or {}),
        )
        self.engine = build_engine(
            self.config,
            EngineLimits(
                lanes=lanes,
                rows=rows,
                num_blocks=num_blocks,
                step_ring=step_ring,
                kv_groups=kv_plan.groups,
            ),
            interleave or InterleaveConfig(),
            self.driver,
            HostSampling(self.sampler, self.grammars, policy),
            on_block_events=on_block_events,
        )
        self.sink = ListSink()
        self._handles = itertools.count(1)

    def close(self) -> None:
        """Release the mesh. The adapter was called as the contract says."""
        self.driver.close()
        self.mesh.close()
        assert self.probe.breaches == []
        if self.mesh.kind == "cpu":
            assert self.probe.model.decode_shapes.unwarmed == 0

    def __enter__(self) -> Rig:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # -- requests ----------------------------------------------------------

    def submit(
        self,
        prompt: list[int],
        max_tokens: int = 8,
        *,
        sink: ListSink | None = None,
        session_number: int = 1,
        priority: int = 0,
        wait_for_grammar: bool = True,
        **sampling: Any,
    ) -> Stream:
        """Queue a request; greedy unless `sampling` says otherwise."""
        params = SamplingParams(
            max_tokens=max_tokens, **({"temperature": 0.0} | sampling)
        )
        normalise_structured_outputs(params)
        handle = next(self._handles)
        request = Request(
            request_id=f"request-{handle}",
            prompt_token_ids=list(prompt),
            sampling_params=params,
            pooling_params=None,
            arrival_time=float(handle),
            priority=priority,
        )
        sink = self.sink if sink is None else sink
        sink.streams[handle] = stream = Stream(request)
        structured = request.use_structured_output
        self.engine.submit(
            [
                Admitted(
                    request=request,
                    sink=sink,
                    session_number=session_number,
                    handle=handle,
                    external_request_id=f"external-{handle}",
                    top_logprobs=params.logprobs,
                    awaits_grammar=structured,
                )
            ]
        )
        if structured and wait_for_grammar:
            self.await_grammar(request)
        return stream

    def await_grammar(self, request: Request) -> None:
        """Compile a request's grammar and tell the engine."""
        ready: Future[TTServeError | None] = Future()
        self.grammars.start(request, lambda _, error: ready.set_result(error))
        self.engine.grammar_ready(request.request_id, ready.result(timeout=60))

    def abort(self, stream: Stream) -> None:
        """Abort a request as its client would."""
        self.engine.abort([stream.request_id], AbortCause.CLIENT)

    # -- the crank ---------------------------------------------------------

    def run(self, steps: int = 100_000) -> None:
        """Step until nothing is left to do, or `steps` times."""
        for _ in range(steps):
            if not self.engine.step():
                return

    def generate(
        self, prompt: list[int], max_tokens: int = 8, **sampling: Any
    ) -> list[int]:
        """One request, alone, to its end; its tokens."""
        stream = self.submit(prompt, max_tokens, **sampling)
        self.run()
        assert stream.finish is not None
        assert stream.finish.error is None, stream.finish.error
        return stream.token_ids

    @property
    def records(self) -> list[StepRecord]:
        """Every recorded step, oldest first."""
        return self.engine.step_log.newest(100_000)

    def assert_nothing_is_held(self) -> None:
        """No request, row, referenced block or grammar is left."""
        future = self.engine.snapshot()
        self.engine.step()
        state = future.result(timeout=0)
        for lane in state.lanes:
            assert not lane.rows
            assert not lane.waiting
            assert lane.free_blocks == lane.total_blocks
        assert state.grammars == 0
        assert state.steps_in_flight == 0


def _device_sampling(site: Mapping[str, Any] | None) -> DeviceSampling:
    mode = (site or {}).get("mode")
    on = mode is not None
    return DeviceSampling(prefill=mode == "all", decode=on, grammar=on)
