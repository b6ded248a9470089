"""Any adapter class, with the contract checked around it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from device_service.models.capabilities import Capabilities
from device_service.models.contract import WarmUpDecodeCall, WarmUpPrefillCall
from device_service.models.probe.breach import ContractBreach, Judge
from device_service.models.probe.facts import Facts
from device_service.models.probe.hooks import OPTIONAL_HOOKS
from device_service.models.probe.lifecycle import Lifecycle, WarmUpStage
from device_service.models.probe.outputs import Outputs
from device_service.models.probe.reloads import Reloads
from device_service.models.probe.slots import Slots
from device_service.models.probe.steps import (
    check_cache,
    check_decode,
    check_keywords,
    check_prefill,
)


def probed(adapter: type[Any]) -> type[Any]:
    """A class that behaves as `adapter` does and checks every call of it.

    It has the hooks that `adapter` has, and `release_request` and
    `release_persistent_capture` always, to know when a request leaves. A breach
    raises ContractBreach out of the call, and stays in `breaches` of the
    instance in case somebody takes the exception for a step's failure. `made`
    lists the instances.
    """
    namespace = {"adapter": adapter, "made": []}
    return _ProbedType(adapter.__name__, (Probe,), namespace)


class _ProbedType(type):
    """Class attributes that the probe has no say in are the adapter's."""

    adapter: type[Any]

    def __getattr__(cls, name: str) -> Any:
        return getattr(type.__getattribute__(cls, "adapter"), name)


class Probe(metaclass=_ProbedType):
    """Stands between a caller and an adapter's instance."""

    adapter: type[Any]
    made: list[Probe]

    def __init__(self, model: Any, facts: Facts) -> None:
        self.made.append(self)
        self.model = model
        self.facts = facts
        self.lifecycle = Lifecycle()
        self.slots = Slots(facts)
        self.reloads = Reloads(facts.contract)
        self.decodes = Outputs(facts, reads=hasattr(model, "read_decode_output"))
        self.prefills = Outputs(facts, reads=hasattr(model, "read_prefill_output"))
        self.deferred: Any = None
        self.breaches: list[ContractBreach] = []

    @classmethod
    def initialize_vllm_model(
        cls,
        hf_config: Any,
        mesh_device: Any,
        max_batch_size: int,
        *,
        max_seq_len: int,
        tt_data_parallel: int,
        optimizations: str | None,
    ) -> Probe:
        """Load the adapter."""
        judge = Judge("initialize_vllm_model")
        judge.expect(
            max_batch_size > 0 and max_batch_size % tt_data_parallel == 0,
            "1.3",
            f"{max_batch_size} rows cannot be shared among {tt_data_parallel} lanes",
        )
        judge.expect(
            optimizations in (None, "performance", "accuracy"),
            "1.3",
            f"optimizations is {optimizations!r}",
        )
        model = cls.adapter.initialize_vllm_model(
            hf_config,
            mesh_device,
            max_batch_size,
            max_seq_len=max_seq_len,
            tt_data_parallel=tt_data_parallel,
            optimizations=optimizations,
        )
        facts = Facts(
            capabilities=Capabilities.of(cls.adapter),
            contract=getattr(cls.adapter, "decode_input_update_contract", 0),
            rows=max_batch_size,
            lanes=tt_data_parallel,
            max_seq_len=max_seq_len,
            vocabulary=hf_config.get_text_config().vocab_size,
            windows=hasattr(cls.adapter, "get_kv_cache_spec"),
        )
        hooks = {
            name: hook for name, hook in OPTIONAL_HOOKS.items() if hasattr(model, name)
        }
        # Hooks are looked for on the instance, so only now is it known which.
        made: Probe = _ProbedType(cls.__name__, (cls,), hooks)(model, facts)
        return made

    def __getattr__(self, name: str) -> Any:
        if name == "model":  # not yet there, while an instance is being made
            raise AttributeError(name)
        return getattr(self.model, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "already_warmed_up_prefill":
            setattr(self.model, name, value)
        else:
            object.__setattr__(self, name, value)

    def judged(self, call: str, check: Callable[[Judge], Any]) -> Any:
        """What `check` answers; a breach is kept before it is raised."""
        try:
            return check(Judge(call))
        except ContractBreach as breach:
            self.breaches.append(breach)
            raise

    # ------------------------------------------------------------------- warm-up

    def warmup_model_prefill(self, **call: Any) -> None:
        """Contract 1.6."""

        def check(judge: Judge) -> None:
            check_keywords(judge, call, WarmUpPrefillCall, "1.6")
            check_cache(judge, self.facts, call)
            self.lifecycle.warm_up(
                judge,
                WarmUpStage.PREFILL_TRACED
                if call["enable_trace"]
                else WarmUpStage.PREFILL,
            )

        self.judged("warmup_model_prefill", check)
        self.model.warmup_model_prefill(**call)

    def warmup_model_decode(self, **call: Any) -> None:
        """Contract 1.6."""

        def check(judge: Judge) -> None:
            check_keywords(judge, call, WarmUpDecodeCall, "1.6")
            check_cache(judge, self.facts, call)
            judge.expect(
                call["max_batch_size"] == self.facts.rows,
                "1.6",
                f"max_batch_size is {call['max_batch_size']}, not {self.facts.rows}",
            )
            self.lifecycle.warm_up(
                judge,
                WarmUpStage.DECODE_TRACED
                if call["enable_trace"]
                else WarmUpStage.DECODE,
            )
            self.facts.width = call["num_blocks"]

        self.judged("warmup_model_decode", check)
        self.model.warmup_model_decode(**call)

    # --------------------------------------------------------------------- steps

    def prefill_forward(self, **call: Any) -> Any:
        """Contract 1.7."""

        def check(judge: Judge) -> Any:
            self._begin(judge, prefill=True, enable_trace=call.get("enable_trace"))
            return check_prefill(judge, self.facts, self.slots, call)

        step = self.judged("prefill_forward", check)
        self.reloads.prefill()
        output = self.model.prefill_forward(**call)
        self.judged(
            "prefill_forward",
            lambda judge: self.prefills.submitted(judge, step.of(output)),
        )
        return output

    def decode_forward(self, **call: Any) -> Any:
        """Contract 1.8."""

        def check(judge: Judge) -> Any:
            self._begin(judge, prefill=False, enable_trace=call.get("enable_trace"))
            return check_decode(
                judge, self.facts, self.slots, self.reloads, call, self._sizes()
            )

        step = self.judged("decode_forward", check)
        output = self.model.decode_forward(**call)
        self.reloads.accepted(call, step.tables, step.layout)
        for row, position in step.positions.items():
            self.slots.advance(row, position)
        submitted = step.submitted.of(output)
        if "defer_device_sampling" in call:
            self.deferred = submitted
        else:
            self.judged(
                "decode_forward", lambda judge: self.decodes.submitted(judge, submitted)
            )
        return output

    def _begin(self, judge: Judge, *, prefill: bool, enable_trace: Any) -> None:
        self.lifecycle.step(judge)
        self.lifecycle.trace(judge, prefill=prefill, enable_trace=enable_trace)
        self.decodes.may_submit(judge)
        self.prefills.may_submit(judge)
        judge.expect(
            self.deferred is None, "1.11", "comes before the deferred step was sampled"
        )

    def _sizes(self) -> frozenset[int] | None:
        """Numbers of rows that a decode may have; None if none was warmed up."""
        if not self.lifecycle.warmed_up:
            return None
        facts = self.facts
        buckets = getattr(self.model, "tt_supported_decode_batch_sizes", ())
        usable = {size for size in buckets if size <= facts.rows_per_lane}
        return frozenset({facts.rows, *(size * facts.lanes for size in usable)})

    # ---------------------------------------------------------------- life cycle

    def release_request(self, slot: int) -> None:
        """Contract 1.12."""

        def check(judge: Judge) -> None:
            self.lifecycle.same_thread(judge)
            self.slots.release(judge, slot)

        self.judged("release_request", check)
        if hasattr(self.model, "release_request"):
            self.model.release_request(slot)

    def release_persistent_capture(self) -> None:
        """Contract 1.12."""
        self.judged("release_persistent_capture", self.lifecycle.release)
        if hasattr(self.model, "release_persistent_capture"):
            self.model.release_persistent_capture()
