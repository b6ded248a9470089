"""Everything of vLLM that a frontend needs, built from what the wire said."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass

from frontend.config import FrontendConfig
from frontend.engine.client import GrpcEngineClient
from frontend.engine.llm import RemoteLLM
from frontend.engine.vllm_config import build_vllm_config
from frontend.startup import Described
from frontend.vllm_options import complete_for_model, parse_server_options
from ttserve.errors import Reason
from ttserve.v1.model_pb2 import Model


@dataclass(frozen=True, slots=True)
class Engine:
    """The client of the device service, vLLM's front half over it, its options."""

    model: Model
    client: GrpcEngineClient
    llm: RemoteLLM
    arguments: argparse.Namespace


def build(
    described: Described, config: FrontendConfig, count: Callable[[Reason], None]
) -> Engine:
    """Build the engine; takes a second or two, and needs no event loop."""
    arguments = parse_server_options(config.vllm_arguments)
    complete_for_model(arguments, described.model)
    vllm_config = build_vllm_config(described.model, described.directory, arguments)
    client = GrpcEngineClient(described.model, count)
    llm = RemoteLLM(
        vllm_config,
        client,
        log_requests=arguments.enable_log_requests,
        log_stats=not arguments.disable_log_stats,
    )
    return Engine(described.model, client, llm, arguments)
