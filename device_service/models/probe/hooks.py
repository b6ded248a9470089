"""The probe's side of the hooks that only some adapters have.

Each function becomes a method of the probing class when the adapter has one of
that name, so that a caller who looks for a hook finds what it would have found.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from device_service.models.contract import KVLayerSpec, KVShape
from device_service.models.probe.breach import Judge
from device_service.models.probe.lifecycle import WarmUpStage
from device_service.models.probe.sampling import check_sampling_params
from device_service.models.probe.tensors import check_tensor

if TYPE_CHECKING:
    from device_service.models.probe.outputs import Outputs
    from device_service.models.probe.probed import Probe

# ---------------------------------------------------------------- KV (contract 1.4)


def _allocate_kv_cache_per_layer(
    probe: Probe, per_layer_specs: list[KVLayerSpec]
) -> Any:
    def check(judge: Judge) -> None:
        judge.expect(per_layer_specs, "1.4", "no layer")
        _note_pool(probe, judge, [shape for shape, _, _ in per_layer_specs])

    probe.judged("allocate_kv_cache_per_layer", check)
    probe.facts.kv_cache = probe.model.allocate_kv_cache_per_layer(per_layer_specs)
    return probe.facts.kv_cache


def _allocate_kv_cache(
    probe: Probe, kv_cache_shape: KVShape, dtype: torch.dtype, num_layers: int
) -> Any:
    def check(judge: Judge) -> None:
        judge.expect(
            not hasattr(probe.model, "allocate_kv_cache_per_layer"),
            "1.4",
            "the adapter has allocate_kv_cache_per_layer, which goes first",
        )
        judge.expect(num_layers > 0, "1.4", "no layer")
        _note_pool(probe, judge, [kv_cache_shape] * num_layers)

    probe.judged("allocate_kv_cache", check)
    probe.facts.kv_cache = probe.model.allocate_kv_cache(
        kv_cache_shape, dtype, num_layers
    )
    return probe.facts.kv_cache


def _note_pool(probe: Probe, judge: Judge, shapes: list[KVShape]) -> None:
    probe.lifecycle.allocate(judge)
    for shape in shapes:
        judge.expect(
            len(shape) == 4 and all(size > 0 for size in shape),
            "1.4",
            f"shape {shape} is not (blocks, heads, block size, head size)",
        )
    counts = {shape[0] for shape in shapes}
    judge.expect(len(counts) == 1, "1.4", "layers differ in their number of blocks")
    judge.expect(max(counts) > 1, "1.4", "no block beside the null block")
    sizes = {shape[2] for shape in shapes}
    facts = probe.facts
    judge.expect(
        len(sizes) == 1 or facts.windows,
        "2.20",
        "layers differ in block size without get_kv_cache_spec",
    )
    facts.layers, facts.num_blocks = len(shapes), max(counts)
    facts.block_size, facts.smallest_block = max(sizes), min(sizes)


# ---------------------------------------------------------- readback (contract 1.9)


def _reader(call: str, outputs: str) -> Callable[..., Any]:
    def read(probe: Probe, tt_out: Any, *, async_read: bool, **rows: Any) -> Any:
        kept: Outputs = getattr(probe, outputs)
        chosen = rows.get("sample_rows")

        def check(judge: Judge) -> Any:
            judge.expect(async_read is True, "1.9", "async_read is not True")
            return kept.read(judge, tt_out, chosen)

        step = probe.judged(call, check)
        answer = getattr(probe.model, call)(tt_out, async_read=async_read, **rows)
        probe.judged(
            call,
            lambda judge: judge.expect(
                isinstance(answer, tuple) and len(answer) == 2,
                "1.9",
                "answers no pair (host_out, read_events)",
            ),
        )
        kept.transferring(step, answer[0], chosen)
        return answer

    return read


def _processor(call: str, outputs: str) -> Callable[..., Any]:
    def process(probe: Probe, tt_out: Any, *, is_tokens: bool, **rows: Any) -> Any:
        kept: Outputs = getattr(probe, outputs)
        chosen = rows.get("sample_rows")
        step = probe.judged(
            call,
            lambda judge: kept.process(
                judge, tt_out, is_tokens=is_tokens, sample_rows=chosen
            ),
        )
        answer = getattr(probe.model, call)(tt_out, is_tokens=is_tokens, **rows)
        probe.judged(call, lambda judge: kept.check(judge, step, answer, chosen))
        return answer

    return process


# ---------------------------------------------------- device grammar (contract 1.11)


def _enable_device_grammar(probe: Probe) -> bool:
    probe.judged("enable_device_grammar", probe.lifecycle.enable_grammar)
    return bool(probe.model.enable_device_grammar())


def _prepare_grammar(probe: Probe, **call: Any) -> bool:
    probe.judged(
        "prepare_device_grammar_decode_trace_warmup",
        lambda judge: probe.lifecycle.warm_up(judge, WarmUpStage.GRAMMAR_PREPARED),
    )
    return bool(probe.model.prepare_device_grammar_decode_trace_warmup(**call))


def _capture_grammar(probe: Probe) -> None:
    probe.judged(
        "capture_prepared_device_grammar_decode_trace",
        lambda judge: probe.lifecycle.warm_up(judge, WarmUpStage.GRAMMAR_CAPTURED),
    )
    probe.model.capture_prepared_device_grammar_decode_trace()


def _sample_decode_on_device(
    probe: Probe,
    deferred_decode: Any,
    *,
    sampling_params: Any,
    grammar_bitmask: torch.Tensor,
) -> Any:
    call = "sample_decode_on_device"

    def check(judge: Judge) -> Any:
        probe.lifecycle.same_thread(judge)
        step, probe.deferred = probe.deferred, None
        judge.expect(
            step is not None and step.output is deferred_decode,
            "1.11",
            "not the answer of a deferred decode, or sampled before",
        )
        words = -(-probe.facts.vocabulary // 32)
        mask = check_tensor(
            judge, "1.11", "grammar_bitmask", grammar_bitmask, (step.rows, words)
        )
        taken = [row in step.live for row in range(step.rows)]
        judge.expect(
            all((mask[row] == -1).all() for row in range(step.rows) if not taken[row]),
            "1.11",
            "a row without a request is masked",
        )
        check_sampling_params(judge, probe.facts, sampling_params, taken)
        return step

    step = probe.judged(call, check)
    output = probe.model.sample_decode_on_device(
        deferred_decode,
        sampling_params=sampling_params,
        grammar_bitmask=grammar_bitmask,
    )
    probe.judged(call, lambda judge: probe.decodes.submitted(judge, step.of(output)))
    return output


OPTIONAL_HOOKS: dict[str, Callable[..., Any]] = {
    "allocate_kv_cache_per_layer": _allocate_kv_cache_per_layer,
    "allocate_kv_cache": _allocate_kv_cache,
    "read_decode_output": _reader("read_decode_output", "decodes"),
    "process_decode_output_host": _processor("process_decode_output_host", "decodes"),
    "read_prefill_output": _reader("read_prefill_output", "prefills"),
    "process_prefill_output_host": _processor(
        "process_prefill_output_host", "prefills"
    ),
    "enable_device_grammar": _enable_device_grammar,
    "prepare_device_grammar_decode_trace_warmup": _prepare_grammar,
    "capture_prepared_device_grammar_decode_trace": _capture_grammar,
    "sample_decode_on_device": _sample_decode_on_device,
}
