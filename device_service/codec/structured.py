"""StructuredOutput -> vLLM's StructuredOutputsParams."""

from __future__ import annotations

import json
from typing import Any

from vllm.sampling_params import StructuredOutputsParams

from ttserve.errors import invalid_field
from ttserve.v1 import generation_pb2


def structured_outputs(
    message: generation_pb2.StructuredOutput | None,
) -> StructuredOutputsParams | None:
    """The constraint that vLLM's grammar manager takes; None is none."""
    if message is None:
        return None
    kind = message.WhichOneof("constraint")
    if kind is None:
        raise invalid_field(
            "structured_output.constraint",
            "structured_output needs exactly one known constraint",
        )
    return StructuredOutputsParams(
        **_constraint(kind, message),
        disable_additional_properties=message.disable_additional_properties,
    )


def _constraint(kind: str, message: generation_pb2.StructuredOutput) -> dict[str, Any]:
    field = f"structured_output.{kind}"
    if kind == "choice":
        texts = list(message.choice.texts)
        if not texts:
            raise invalid_field(field, "choice needs at least one text")
        return {"choice": texts}
    if kind == "json_object":
        if not message.json_object:
            raise invalid_field(field, "json_object must be true where it is set")
        return {"json_object": True}
    text: str = getattr(message, kind)
    if not text.strip():
        raise invalid_field(field, f"{kind} must not be empty")
    return {"json" if kind == "json_schema" else kind: text}


def reasoning_kwargs(
    message: generation_pb2.StructuredOutput,
) -> dict[str, Any] | None:
    """Arguments for the reasoning parser; None where there are none."""
    text = message.reasoning_parser_kwargs_json
    if not text:
        return None
    try:
        kwargs = json.loads(text)
    except (ValueError, RecursionError):
        kwargs = None
    if not isinstance(kwargs, dict):
        raise invalid_field(
            "structured_output.reasoning_parser_kwargs_json",
            "reasoning_parser_kwargs_json must be a JSON object",
        )
    return kwargs
