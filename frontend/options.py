"""vLLM's server options: which a frontend honours, which it refuses and why.

Every option keeps vLLM's name. Those on `ACCEPTED` go to vLLM's own parser;
`REFUSED` and everything that configures the engine is an error at start, so
nothing is accepted and ignored. `check_complete` compares the two lists with
the installed vLLM. Nothing here imports vLLM: the lists are needed before it.
"""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterable
from pathlib import Path

ACCEPTED: dict[str, str] = {
    # Chat and tools.
    "chat_template": "file with a chat template, instead of the model's",
    "chat_template_content_format": "how a template sees content: auto, string, openai",
    "trust_request_chat_template": "let requests bring a chat template",
    "default_chat_template_kwargs": "JSON object given to every chat template",
    "response_role": "role of generated messages (assistant)",
    "enable_auto_tool_choice": "let the model decide whether to call a tool",
    "tool_call_parser": "how to find tool calls in the output, for example hermes",
    "tool_parser_plugin": "Python file that registers another tool parser",
    "exclude_tools_when_tool_choice_none": "hide tools when tool_choice is none",
    "tool_server": "tool servers of the Responses API, HOST:PORT[,HOST:PORT...]",
    # Responses.
    "return_tokens_as_token_ids": "show tokens in logprobs as token_id:N",
    "enable_prompt_tokens_details": "report cached prompt tokens in usage",
    "enable_force_include_usage": "report usage in every response",
    "enable_per_request_metrics": "report timings in every response",
    "sse_keep_alive_interval": "seconds between comments on idle streams (15; 0: none)",
    "stream_interval": "tokens per streamed chunk (1)",
    "enable_tokenizer_info_endpoint": "serve GET /tokenizer_info",
    "fingerprint_mode": "system_fingerprint: custom, full, hash or none",
    "fingerprint_value": "the text for --fingerprint-mode custom",
    # HTTP.
    "root_path": "path prefix that a proxy strips",
    "allowed_origins": "CORS: JSON list of origins",
    "allowed_methods": "CORS: JSON list of methods",
    "allowed_headers": "CORS: JSON list of headers",
    "allow_credentials": "CORS: allow credentials",
    "middleware": "import path of another ASGI middleware; may be repeated",
    "enable_request_id_headers": "answer with X-Request-Id (always done)",
    "disable_fastapi_docs": "do not serve /openapi.json and /docs",
    "enable_offline_docs": "serve /docs without a CDN",
    # Logs and metrics.
    "enable_log_requests": "log every request",
    "enable_log_outputs": "log every output (with --enable-log-requests)",
    "enable_log_deltas": "log every streamed delta (with --enable-log-outputs)",
    "max_log_len": "longest prompt in a log line",
    "log_error_stack": "log a stack trace with error responses",
    "disable_log_stats": "keep no request statistics",
    "otlp_traces_endpoint": "where to send OpenTelemetry traces",
    "show_hidden_metrics_for_version": "show metrics that a vLLM version hid",
    # Processing.
    "renderer_num_workers": "threads for templates and tokenization (1)",
}
"""Options that vLLM's parser reads for us, with what `--help` says of them."""

EARLY = frozenset(
    {
        "host",
        "port",
        "uds",
        "api_key",
        "ssl_keyfile",
        "ssl_certfile",
        "ssl_ca_certs",
        "ssl_cert_reqs",
        "ssl_ciphers",
        "enable_ssl_refresh",
        "uvicorn_log_level",
        "disable_uvicorn_access_log",
        "disable_access_log_for_endpoints",
        "log_config_file",
        "shutdown_timeout",
    }
)
"""Options that `config.py` reads itself: the port answers before vLLM is loaded."""

_NOT_SERVED = "only text generation is served"
_SUPERVISED = "start several frontends instead (tt-serve --frontends N)"

REFUSED: dict[str, str] = {
    "model_tag": "the model comes from the device service",
    "config": "write the options on the command line",
    "headless": _SUPERVISED,
    "api_server_count": _SUPERVISED,
    "data_parallel_supervisor_port": _SUPERVISED,
    "dp_supervisor_probe_interval_s": _SUPERVISED,
    "dp_supervisor_probe_timeout_s": _SUPERVISED,
    "dp_supervisor_probe_failure_threshold": _SUPERVISED,
    "grpc": "the device service has a gRPC port: Device.Generate",
    "lora_modules": "LoRA adapters are not served",
    "enable_server_load_tracking": "see vllm:num_requests_running at /metrics",
    "cohere_is_reasoning_model": "Cohere's API is not served",
    "cohere_format": "Cohere's API is not served",
    "tokens_only": "Device.Generate takes and gives token ids",
    "enable_scale_out": "Device.Generate takes and gives token ids",
    "enable_flash_late_interaction": _NOT_SERVED,
    "h11_max_incomplete_event_size": "HTTP is parsed by httptools, not by h11",
    "h11_max_header_count": "HTTP is parsed by httptools, not by h11",
}
"""Server options of vLLM that are not ours, with what to say."""

_OWNED_BY_DEVICE_SERVICE = (
    "it belongs to the device service, which serves it to every frontend: give it "
    "to tt-device-service"
)


def refusal(argument: str) -> str:
    """One line about an argument that names no accepted option."""
    option = option_name(argument)
    reason = REFUSED.get(option if argument.startswith("-") else "model_tag")
    if reason is None and {option, option.removeprefix("no_")} & engine_options():
        reason = _OWNED_BY_DEVICE_SERVICE
    if reason is None:
        return f"unknown option {argument.partition('=')[0]} (see --help)"
    return f"{argument.partition('=')[0]} is not for a frontend: {reason}"


def option_name(argument: str) -> str:
    """`--api-key=x` and `--api-key.part` are about `api_key`."""
    return argument.lstrip("-").partition("=")[0].partition(".")[0].replace("-", "_")


def engine_options() -> set[str]:
    """vLLM's engine options, read from its source: importing it takes seconds."""
    package = importlib.util.find_spec("vllm")
    if package is None or not package.submodule_search_locations:
        return set()
    source = Path(package.submodule_search_locations[0]) / "engine" / "arg_utils.py"
    return {
        field.target.id
        for node in ast.parse(source.read_bytes()).body
        if isinstance(node, ast.ClassDef) and node.name.endswith("EngineArgs")
        for field in node.body
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name)
    }


def flag(option: str) -> str:
    """The command-line spelling of an option."""
    return "--" + option.replace("_", "-")


def check_complete(server_options: Iterable[str]) -> list[str]:
    """Name what vLLM's server options and the three lists do not share.

    The accepted list also holds options of vLLM's engine arguments that mean
    something to a frontend only; those are allowed to be missing here.
    """
    known = ACCEPTED.keys() | EARLY | REFUSED.keys()
    return sorted(set(server_options) - known)
