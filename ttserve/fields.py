"""Which field of vLLM's request and output types goes where.

Every field of the four types is on exactly one of three lists, and importing
this module fails when one is not, so that a field which a new vLLM version
brings cannot be lost silently:

- *carried*: it crosses the wire, both codecs must know it;
- *local*: it means something on one side only, where it stays;
- *refused*: the device service has no use for it; a request that sets it is
  answered with 400, an output never has it. They are listed with the value
  that asks for nothing; None always does.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from vllm.sampling_params import SamplingParams, StructuredOutputsParams
from vllm.v1.engine import EngineCoreOutput, EngineCoreRequest


@dataclasses.dataclass(frozen=True)
class FieldLists:
    """The three lists of one type."""

    carried: frozenset[str]
    local: frozenset[str]
    refused: Mapping[str, object]

    def first_refused(self, value: object) -> str | None:
        """Name the first refused field that `value` sets, if there is one."""
        for name, neutral in self.refused.items():
            held = getattr(value, name)
            plain = isinstance(held, int | list | dict)
            if held is not None and not (plain and held == neutral):
                return name
        return None


SAMPLING_PARAMS = FieldLists(
    carried=frozenset(
        {
            "temperature",
            "top_p",
            "top_k",
            "min_p",
            "seed",
            "presence_penalty",
            "frequency_penalty",
            "repetition_penalty",
            "logit_bias",
            "allowed_token_ids",
            "_bad_words_token_ids",
            "thinking_token_budget",
            "max_tokens",
            "min_tokens",
            "_eos_token_id",
            "stop_token_ids",
            "_all_stop_token_ids",
            "repetition_detection",
            "logprobs",
            "logprob_token_ids",
            "structured_outputs",
            "skip_reading_prefix_cache",
        }
    ),
    local=frozenset(
        {
            # vLLM's frontend submits one child request per output.
            "n",
            # Text is the frontend's; `bad_words` crosses as token ids.
            "stop",
            "bad_words",
            "detokenize",
            "skip_special_tokens",
            "spaces_between_special_tokens",
            "include_stop_str_in_output",
            "output_text_buffer_length",
            # How the frontend hands results out.
            "output_kind",
            "stream_interval",
            "flat_logprobs",
            "skip_clone",
            # Has been applied when `_eos_token_id` was set.
            "ignore_eos",
            # Says whether to apply an engine-wide watermark; there is none.
            "watermarking",
        }
    ),
    refused={
        "prompt_logprobs": None,
        "extra_args": {},
        "routed_experts_prompt_start": 0,
        "trace_decode_token_ids": None,
    },
)

STRUCTURED_OUTPUTS_PARAMS = FieldLists(
    carried=frozenset(
        {
            "json",
            "regex",
            "choice",
            "grammar",
            "json_object",
            "structural_tag",
            "disable_additional_properties",
        }
    ),
    local=frozenset(
        {
            # Always xgrammar, on both sides.
            "_backend",
            "_backend_was_auto",
            # vLLM obeys the engine's setting, which the device service owns.
            "disable_any_whitespace",
        }
    ),
    refused={"whitespace_pattern": None},
)

ENGINE_CORE_REQUEST = FieldLists(
    carried=frozenset(
        {
            "request_id",
            "prompt_token_ids",
            "sampling_params",
            "cache_salt",
            "priority",
            "trace_headers",
            "external_req_id",
            "reasoning_ended",
            "reasoning_parser_kwargs",
        }
    ),
    local=frozenset(
        {
            # The frontend's wall clock; the device service stamps its own.
            "arrival_time",
            # vLLM's own routing between its processes.
            "client_index",
            "current_wave",
            # Labels KV events, which the device service does not publish.
            "session_id",
        }
    ),
    refused={
        "mm_features": [],
        "pooling_params": None,
        "lora_request": None,
        "data_parallel_rank": None,
        "prompt_embeds": None,
        "prompt_is_token_ids": None,
        "resumable": False,
        "abort_immediately": False,
    },
)

ENGINE_CORE_OUTPUT = FieldLists(
    carried=frozenset(
        {
            "new_token_ids",
            "new_logprobs",
            "finish_reason",
            "stop_reason",
            "events",
            "prefill_stats",
        }
    ),
    local=frozenset(
        {
            # The frontend knows them from the handle.
            "request_id",
            "trace_headers",
        }
    ),
    refused={
        "new_prompt_logprobs_tensors": None,
        "pooling_output": None,
        "kv_transfer_params": None,
        "ec_transfer_params": None,
        "routed_experts": None,
        "num_nans_in_logits": 0,
        "mm_cache_miss_hashes": None,
        "new_sampling_mask": None,
        "spec_decode_metrics": None,
    },
)


class FieldListError(ImportError):
    """The installed vLLM has fields that nobody decided about."""


def check_complete(kind: str, lists: FieldLists, fields: Iterable[str]) -> None:
    """Raise unless the three lists partition `fields`."""
    listed = [*lists.carried, *lists.local, *lists.refused]
    actual = set(fields)
    twice = sorted({name for name in listed if listed.count(name) > 1})
    missing = sorted(actual - set(listed))
    unknown = sorted(set(listed) - actual)
    if twice or missing or unknown:
        raise FieldListError(
            f"{kind}: fields on no list {missing}, on two lists {twice}, "
            f"not in the installed vLLM {unknown}"
        )


def _struct_fields(kind: Any) -> Iterable[str]:
    names: Iterable[str] = kind.__struct_fields__
    return names


check_complete("SamplingParams", SAMPLING_PARAMS, _struct_fields(SamplingParams))
check_complete(
    "StructuredOutputsParams",
    STRUCTURED_OUTPUTS_PARAMS,
    (field.name for field in dataclasses.fields(StructuredOutputsParams)),
)
check_complete(
    "EngineCoreRequest", ENGINE_CORE_REQUEST, _struct_fields(EngineCoreRequest)
)
check_complete("EngineCoreOutput", ENGINE_CORE_OUTPUT, _struct_fields(EngineCoreOutput))
