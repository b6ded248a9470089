"""Every shape once, in the contract's order (1.6), before a model serves."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from device_service.mesh.placement import Placement
from device_service.models.contract import (
    Adapter,
    CapturesDeviceGrammar,
    WarmUpDecodeCall,
)


@dataclass(frozen=True, slots=True)
class DeviceSampling:
    """What the device will sample, as warm-up tells the adapter."""

    prefill: bool = False
    decode: bool = False
    grammar: bool = False


class WarmUp:
    """One warm-up of a loaded model with its KV cache. Used once.

    Nothing may be compiled or allocated once a trace exists, so all plain runs
    come first, and prefill is captured before decode.
    """

    def __init__(
        self,
        model: Adapter,
        kv_cache: Any,
        placement: Placement,
        sampling: DeviceSampling,
        progress: Callable[[str], None],
    ) -> None:
        self._model = model
        self._kv_cache = kv_cache
        self._placement = placement
        self._sampling = sampling
        self._progress = progress

    def run(self) -> bool:
        """Warm up, then capture; whether a mask can be applied on the device."""
        mode = self._placement.trace_mode
        grammar = self._sampling.grammar
        self._prefill(enable_trace=False)
        self._decode(enable_trace=False, grammar=grammar)
        if hasattr(self._model, "already_warmed_up_prefill"):
            self._model.already_warmed_up_prefill = False
        prepared = None
        if mode.prefill:
            prepared = self._prepare_grammar() if grammar else None
            self._prefill(enable_trace=True)
            if prepared is not None:
                prepared.capture_prepared_device_grammar_decode_trace()
            grammar = prepared is not None
        if mode.decode:
            self._decode(
                enable_trace=True, grammar=grammar, variants=prepared is not None
            )
        return grammar

    def _prepare_grammar(self) -> CapturesDeviceGrammar | None:
        """The model, if it will capture traces that sample under a mask."""
        model = self._model
        if not isinstance(model, CapturesDeviceGrammar):
            return None
        ready = model.prepare_device_grammar_decode_trace_warmup(
            kv_cache=self._kv_cache,
            max_batch_size=self._placement.rows,
            num_blocks=self._placement.page_table_width,
        )
        return model if ready else None

    def _prefill(self, *, enable_trace: bool) -> None:
        began = time.monotonic()
        self._model.warmup_model_prefill(
            kv_cache=self._kv_cache,
            enable_trace=enable_trace,
            can_sample_on_device=self._sampling.prefill,
        )
        self._say("prefill", began, enable_trace=enable_trace)

    def _decode(
        self, *, enable_trace: bool, grammar: bool, variants: bool = False
    ) -> None:
        began = time.monotonic()
        call: WarmUpDecodeCall = {
            "kv_cache": self._kv_cache,
            "enable_trace": enable_trace,
            "max_batch_size": self._placement.rows,
            "num_blocks": self._placement.page_table_width,
            "can_sample_on_device": self._sampling.decode,
        }
        if self._sampling.grammar:
            call["can_sample_device_grammar"] = grammar
            call["sampling_trace_variants_prepared"] = variants
        self._model.warmup_model_decode(**call)
        self._say("decode", began, enable_trace=enable_trace)

    def _say(self, phase: str, began: float, *, enable_trace: bool) -> None:
        verb = "captured" if enable_trace else "warmed up"
        self._progress(f"{phase} {verb} in {time.monotonic() - began:.1f} s")
