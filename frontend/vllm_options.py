"""vLLM's server options, read by vLLM's own parser. Imports vLLM."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Sequence
from typing import NoReturn

from vllm.entrypoints.launchers.cli_args import FrontendArgs, validate_parsed_serve_args
from vllm.entrypoints.launchers.launcher import validate_api_server_args
from vllm.exceptions import VLLMError
from vllm.tool_parsers import ToolParserManager
from vllm.utils.argparse_utils import FlexibleArgumentParser

from ttserve.errors import StartupError
from ttserve.v1.model_pb2 import Model

KEEP_ALIVE_SECONDS = 15
"""A long prefill must not let a proxy close the stream for silence."""


class _Parser(FlexibleArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise StartupError(message)


def server_option_names() -> set[str]:
    """vLLM's own list of what its server takes, besides the engine's options."""
    names = {field.name for field in dataclasses.fields(FrontendArgs)}
    return names | {"model_tag", "headless", "api_server_count", "config", "grpc"}


def parse_server_options(arguments: Sequence[str]) -> argparse.Namespace:
    """Read the accepted options; a bad value is a StartupError."""
    parser = FrontendArgs.add_cli_args(_Parser())  # type: ignore[no-untyped-call]
    _add_engine_options(parser)
    parser.set_defaults(
        sse_keep_alive_interval=KEEP_ALIVE_SECONDS,
        fingerprint_mode=None,
        # What vLLM's checks look at and a frontend does not have.
        data_parallel_multi_port_external_lb=False,
    )
    parsed: argparse.Namespace = parser.parse_args(list(arguments))
    try:
        validate_parsed_serve_args(parsed)
    except (OSError, TypeError, ValueError, VLLMError) as error:
        raise StartupError(str(error.args[0]).removeprefix("Error: ")) from error
    return parsed


def complete_for_model(arguments: argparse.Namespace, model: Model) -> None:
    """Fill in what vLLM's app takes from its arguments and we know by the wire."""
    names = list(model.served_names)
    arguments.model = names[0]
    arguments.served_model_name = names
    arguments.structured_outputs_config = argparse.Namespace(
        reasoning_parser=model.settings.reasoning_parser
    )
    if arguments.fingerprint_mode is None:
        # The same for all frontends; vLLM's would hash a temporary path.
        arguments.fingerprint_mode = "custom"
        arguments.fingerprint_value = f"ttserve-{model.fingerprint[:12]}"
    if arguments.tool_parser_plugin:
        ToolParserManager.import_tool_parser(arguments.tool_parser_plugin)
    try:
        validate_api_server_args(arguments)
    except KeyError as error:
        raise StartupError(str(error.args[0])) from error


def _add_engine_options(parser: FlexibleArgumentParser) -> None:
    """The engine options of vLLM that mean something to a frontend."""
    toggle = argparse.BooleanOptionalAction
    parser.add_argument("--enable-log-requests", action=toggle, default=False)
    parser.add_argument("--disable-log-stats", action="store_true")
    parser.add_argument("--stream-interval", type=int, default=1)
    parser.add_argument("--otlp-traces-endpoint")
    parser.add_argument("--show-hidden-metrics-for-version")
    parser.add_argument("--renderer-num-workers", type=int, default=1)
