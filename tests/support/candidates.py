"""Launches and models about to be served, without resolving or opening anything."""

from __future__ import annotations

from typing import Any

from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.usage.usage_lib import UsageContext

from device_service.config import DeviceConfig, parse_args
from device_service.models.capabilities import Capabilities
from device_service.startup_rules import Candidate
from ttserve.sim_model import sim_model_dir

EVERYTHING = Capabilities(
    supports_chunked_prefill=True,
    supports_prefix_caching=True,
    supports_async_decode=True,
)


def launch(mesh: str, *arguments: str) -> DeviceConfig:
    return parse_args(["--mesh", mesh, *arguments], {})


def candidate(
    capabilities: Capabilities, *arguments: str, mesh: str = "sim"
) -> Candidate:
    """The simulated model under some options, as vLLM configures it."""
    config = launch(mesh, *arguments)
    overlapping = config.engine["async_scheduling"] is not False
    values: dict[str, Any] = {**config.engine, "async_scheduling": overlapping}
    engine_args = AsyncEngineArgs(**{**values, "model": str(sim_model_dir())})
    vllm_config = engine_args.create_engine_config(UsageContext.OPENAI_API_SERVER)
    return Candidate(config, vllm_config, capabilities)
