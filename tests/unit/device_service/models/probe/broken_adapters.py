"""The simulated adapter with one fault each, of the kind that authors make."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from device_service.models.sim_adapter import SimAdapter


class IgnoresSampleRows(SimAdapter):
    """Answers the first rows, whichever were asked for."""

    def process_decode_output_host(
        self, tt_out: Any, *, is_tokens: bool, sample_rows: Any = None
    ) -> Any:
        if is_tokens or sample_rows is None:
            return super().process_decode_output_host(tt_out, is_tokens=is_tokens)
        rows = sorted(sample_rows)
        tt_out = type(tt_out)(tt_out.task, None)
        return super().process_decode_output_host(
            tt_out, is_tokens=False, sample_rows=rows
        )


class WrongVocabulary(SimAdapter):
    """Pads its logits and forgets to cut them."""

    def process_decode_output_host(self, *arguments: Any, **options: Any) -> Any:
        answer = super().process_decode_output_host(*arguments, **options)
        return torch.nn.functional.pad(answer, (0, 32))


class StartsOver(SimAdapter):
    """Takes every chunk for the beginning of a prompt."""

    def prefill_forward(self, **call: Any) -> Any:
        tokens, starts = call["tokens"].clone(), call["start_pos"]
        for row, start in enumerate(starts):
            tokens[row, : int(start)] = 0
        return super().prefill_forward(
            **call | {"tokens": tokens, "start_pos": starts * 0}
        )


class KnowsNoCommands(SimAdapter):
    """Does not take the reload commands that it declares."""

    def decode_forward(  # type: ignore[override]
        self,
        *,
        tokens: Any,
        start_pos: Any,
        page_table: Any,
        kv_cache: Any,
        enable_trace: bool,
        read_from_device: bool,
    ) -> Any:
        raise NotImplementedError


class TrustsTheHost(SimAdapter):
    """Takes tokens from the host although it is told that they are stale."""

    def decode_forward(self, **call: Any) -> Any:
        return super().decode_forward(
            **call | {"reload_inputs": True, "reload_page_table": False}
        )


class ReadsLate(SimAdapter):
    """Reads what the last step left, whichever step is asked for."""

    newest: Any = None

    def decode_forward(self, **call: Any) -> Any:
        self.newest = super().decode_forward(**call)
        return self.newest

    def process_decode_output_host(self, tt_out: Any, **options: Any) -> Any:
        if options["is_tokens"] and isinstance(self.newest, type(tt_out.task)):
            tt_out = type(tt_out)(self.newest, tt_out.rows)
        return super().process_decode_output_host(tt_out, **options)


class OneBuffer(SimAdapter):
    """Answers with the same memory every time."""

    buffer: torch.Tensor | None = None

    def process_decode_output_host(self, *arguments: Any, **options: Any) -> Any:
        answer = super().process_decode_output_host(*arguments, **options)
        if self.buffer is None or self.buffer.shape != answer.shape:
            self.buffer = torch.empty_like(answer)
        return self.buffer.copy_(answer)


class SeesItsRow(SimAdapter):
    """Lets the row decide what is drawn."""

    def decode_forward(self, **call: Any) -> Any:
        params = call.get("sampling_params")
        if params is not None:
            seeds = [
                None if seed is None else seed + row
                for row, seed in enumerate(params.seed)
            ]
            call["sampling_params"] = replace(params, seed=seeds)
        return super().decode_forward(**call)


class CannotLoad(SimAdapter):
    """Fails before there is anything to check."""

    @classmethod
    def initialize_vllm_model(cls, *_: Any, **__: Any) -> Any:
        raise OSError("no weights here")


class Plain(SimAdapter):
    """Declares nothing and has nothing to be ashamed of."""

    model_capabilities: dict[str, Any] = {}
