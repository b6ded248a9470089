"""Everything of vLLM that a frontend needs, built from what the wire said."""

from __future__ import annotations

import argparse
import logging
from dataclasses import dataclass
from pathlib import Path

from vllm.envs import enable_envs_cache

from frontend.config import FrontendConfig
from frontend.engine.client import GrpcEngineClient, RequestCounter
from frontend.engine.llm import RemoteLLM, TruncationSide
from frontend.engine.vllm_config import build_vllm_config
from frontend.startup import Described
from frontend.vllm_options import complete_for_model, parse_server_options
from ttserve.errors import StartupError
from ttserve.model_info import MODEL_INFO_FILE, seed_model_info
from ttserve.text_models import register_text_models
from ttserve.v1.model_pb2 import Model

logger = logging.getLogger(__name__)

HARMONY_ARCHITECTURE = "GptOssForCausalLM"
LONGEST_REASON = 500


@dataclass(frozen=True, slots=True)
class Engine:
    """The client of the device service, vLLM's front half over it, its options."""

    model: Model
    client: GrpcEngineClient
    llm: RemoteLLM
    arguments: argparse.Namespace


def build(
    described: Described, config: FrontendConfig, counter: RequestCounter
) -> Engine:
    """Build the engine; takes a second or two, and needs no event loop."""
    arguments = parse_server_options(config.vllm_arguments)
    complete_for_model(arguments, described.model)
    _seed_model_info(described.directory)
    register_text_models([described.model.architecture])
    client = GrpcEngineClient(described.model, counter)
    try:
        llm = RemoteLLM(
            build_vllm_config(described.model, described.directory, arguments),
            client,
            log_requests=arguments.enable_log_requests,
            log_stats=not arguments.disable_log_stats,
            truncation_side=_truncation_side(described.model),
        )
    except (OSError, RuntimeError, ValueError) as error:
        logger.debug("vLLM refused the model", exc_info=True)
        reason = " ".join(str(error).split())[:LONGEST_REASON]
        raise StartupError(
            f"vLLM cannot serve {described.model.served_names[0]}: {reason}"
        ) from error
    # vLLM would read one of its variables anew for every token.
    enable_envs_cache()
    return Engine(described.model, client, llm, arguments)


def _seed_model_info(directory: Path) -> None:
    """Spare vLLM the inspection of a model class that the device service has done.

    Without it, or without a cache to write to, the start takes seconds longer.
    """
    path = directory / MODEL_INFO_FILE
    if not path.exists():
        return
    try:
        seed_model_info(path.read_bytes())
    except OSError as error:
        logger.info("cannot write to vLLM's cache: %s", error)
    except (ValueError, KeyError, TypeError) as error:
        raise StartupError(f"{MODEL_INFO_FILE} of the bundle: {error}") from error


def _truncation_side(model: Model) -> TruncationSide:
    """A harmony prompt that has to be cut loses its end, not the head of its template.

    Others are cut on the left, as vLLM does. A request may still say otherwise.
    """
    return "right" if model.architecture == HARMONY_ARCHITECTURE else "left"
