"""What a request may constrain its output with, made ready to compile."""

from __future__ import annotations

import json
import re

from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.structured_output.backend_xgrammar import (
    has_xgrammar_unsupported_json_features,
)
from vllm.v1.structured_output.utils import (
    convert_lark_to_ebnf,
    grammar_is_likely_lark,
)

from ttserve.choices import choice_grammar
from ttserve.errors import Reason, TTServeError, unsupported

MAX_GRAMMAR_BYTES = 64 << 10
MAX_DEPTH = 100
"""Levels of objects and lists in a schema or tag. xgrammar's time grows with the
cube of the depth: half a second at 100, an hour at 2000, which 64 KiB could ask for."""
MAX_MESSAGE = 500

_NATIVE_ORIGIN = re.compile(r"^\[\d\d:\d\d:\d\d\] \S+:\d+: ")


def normalise_structured_outputs(params: SamplingParams) -> None:
    """Make a request's constraint one that xgrammar compiles, or refuse it.

    In place, as vLLM's own validation does it, which Generate callers have not
    been through. What takes time is left to the compilation.
    """
    structured = params.structured_outputs
    if structured is None:
        return
    if structured.whitespace_pattern or structured.disable_additional_properties:
        raise unsupported(
            "structured_output",
            "whitespace_pattern and disable_additional_properties need another "
            "backend than xgrammar",
        )
    text = _normal_text(structured)
    size = len(text.encode("utf-8", errors="surrogatepass"))
    if size > MAX_GRAMMAR_BYTES:
        raise refusal(
            f"the grammar has {size} bytes; at most {MAX_GRAMMAR_BYTES} are served"
        )
    if structured.json is not None:
        _check_schema(text)


def _normal_text(structured: StructuredOutputsParams) -> str:
    """The constraint's text, after rewriting it where xgrammar needs that."""
    if structured.choice is not None:
        if not structured.choice:
            raise refusal("a choice needs at least one text")
        structured.grammar = choice_grammar(structured.choice)
        structured.choice = None
        return structured.grammar
    if structured.grammar is not None:
        structured.grammar = _ebnf(structured.grammar)
        return structured.grammar
    if structured.json is not None:
        schema = structured.json
        return schema if isinstance(schema, str) else json.dumps(schema)
    if structured.regex is not None:
        if "\x00" in structured.regex:
            raise refusal("a regular expression must not contain a NUL character")
        return structured.regex
    if structured.structural_tag is not None:
        _parse(structured.structural_tag, "structural tag")
        return structured.structural_tag
    if not structured.json_object:
        raise refusal("json_object must be true where it is set")
    return ""


def _ebnf(grammar: str) -> str:
    if not grammar.strip():
        raise refusal("a grammar must not be empty")
    if len(grammar) > MAX_GRAMMAR_BYTES or not grammar_is_likely_lark(grammar):
        return grammar
    try:
        return convert_lark_to_ebnf(grammar)
    except ValueError as error:
        raise refusal(f"the Lark grammar is not EBNF: {short_text(error)}") from error


def _check_schema(text: str) -> None:
    """Refuse what xgrammar would compile without keeping it."""
    schema = _parse(text, "JSON schema")
    if isinstance(schema, dict) and has_xgrammar_unsupported_json_features(schema):
        raise refusal("the JSON schema has features that xgrammar does not support")


def _parse(text: str, what: str) -> object:
    too_deep = refusal(f"the {what} is nested deeper than {MAX_DEPTH} levels")
    try:
        parsed: object = json.loads(text)
    except ValueError as error:
        raise refusal(f"the {what} is not JSON: {short_text(error)}") from error
    except RecursionError:
        raise too_deep from None
    if _deeper_than(MAX_DEPTH, parsed):
        raise too_deep
    return parsed


def _deeper_than(most: int, parsed: object) -> bool:
    """Whether objects and lists stand in each other more than `most` levels deep."""
    level = [parsed]
    for _ in range(most + 1):
        within: list[object] = []
        for item in level:
            if isinstance(item, dict):
                within.extend(item.values())
            elif isinstance(item, list):
                within.extend(item)
        level = within
    return bool(level)


def refusal(message: str) -> TTServeError:
    """An error that names the field for every grammar that cannot be served."""
    return TTServeError(
        Reason.GRAMMAR,
        message if len(message) <= MAX_MESSAGE else message[: MAX_MESSAGE - 1] + "…",
        metadata={"field": "structured_output"},
    )


def short_text(error: BaseException) -> str:
    """What a compiler said, on one line and without where in its source."""
    text = _NATIVE_ORIGIN.sub("", " ".join(str(error).split()))
    return text or type(error).__name__
