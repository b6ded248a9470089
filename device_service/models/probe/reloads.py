"""Whether the reload commands allow what the device still has (contract 1.10)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from device_service.models.contract import TTSamplingParams
from device_service.models.probe.breach import Judge
from device_service.models.probe.tensors import Ints

COMMANDS = (
    "reload_inputs",
    "reload_page_table",
    "reload_sampling_params",
    "reset_sampling_state",
)

Layout = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class _Resident:
    """What the last accepted decode left on the device."""

    table: Ints
    layout: Layout
    sampled: bool
    params: TTSamplingParams | None


class Reloads:
    """Remembers what is resident, and judges what is left there."""

    def __init__(self, contract: int) -> None:
        self._contract = contract
        self._resident: _Resident | None = None
        self._params: TTSamplingParams | None = None
        self._chain_valid = False

    def prefill(self) -> None:
        """A prefill was submitted."""
        self._chain_valid = False

    def judge(
        self, judge: Judge, call: Mapping[str, Any], table: Ints, layout: Layout
    ) -> bool:
        """Check the commands of a decode; whether the inputs are reloaded."""
        given = [name for name in COMMANDS if name in call]
        if self._contract < 1:
            judge.expect(
                not given, "1.10", f"{given} for an adapter of input contract 0"
            )
            judge.expect(
                ("reset_batch" in call) == _samples(call),
                "1.8",
                "reset_batch goes with device sampling, and with nothing else",
            )
            self._judge_layout(judge, call, layout)
            return True
        judge.expect(
            "reset_batch" not in call, "1.10", "reset_batch for input contract 1"
        )
        judge.expect(
            len(given) == len(COMMANDS), "1.10", f"only {given} of {list(COMMANDS)}"
        )
        inputs, page_table, _, state = (call[name] for name in COMMANDS)
        judge.expect(
            not (inputs and page_table), "1.10", "reload_inputs and reload_page_table"
        )
        judge.expect(
            inputs or not state, "1.10", "reset_sampling_state without reload_inputs"
        )
        self._judge_inputs(judge, call, table, layout)
        self._judge_sampling(judge, call, layout)
        return bool(inputs)

    def accepted(self, call: Mapping[str, Any], table: Ints, layout: Layout) -> None:
        """The adapter took the decode."""
        params = call.get("sampling_params")
        self._resident = _Resident(table.copy(), layout, _samples(call), params)
        self._chain_valid = True

    def _judge_layout(
        self, judge: Judge, call: Mapping[str, Any], layout: Layout
    ) -> None:
        """Of input contract 0: whoever came or went is told of."""
        last = self._resident
        if "reset_batch" in call and (last is None or last.layout != layout):
            judge.expect(
                call["reset_batch"], "1.8", "reset_batch is False but rows changed"
            )

    def _moved(self, layout: Layout) -> bool:
        last = self._resident
        return not self._chain_valid or last is None or last.layout != layout

    def _judge_inputs(
        self, judge: Judge, call: Mapping[str, Any], table: Ints, layout: Layout
    ) -> None:
        if call["reload_inputs"]:
            return
        judge.expect(_samples(call), "1.10", "host sampling without reload_inputs")
        judge.expect(
            not self._moved(layout),
            "1.10",
            "no reload_inputs although a prefill or a change of rows came between",
        )
        last = self._resident
        assert last is not None
        judge.expect(
            last.sampled,
            "1.10",
            "no reload_inputs although the last step was sampled on the host",
        )
        judge.expect(
            last.table.shape == table.shape,
            "1.10",
            "no reload_inputs although the number of rows changed",
        )
        judge.expect(
            call["reload_page_table"] or np.array_equal(last.table, table),
            "1.10",
            "no reload_page_table although the page tables changed",
        )

    def _judge_sampling(
        self, judge: Judge, call: Mapping[str, Any], layout: Layout
    ) -> None:
        if not _samples(call):
            return
        last = self._resident
        transition = self._moved(layout) or (last is not None and not last.sampled)
        reloads, resets = call["reload_sampling_params"], call["reset_sampling_state"]
        judge.expect(
            not transition or (reloads and resets),
            "1.10",
            "sampling parameters and state are kept although rows or site changed",
        )
        judge.expect(
            reloads
            or last is None
            or call.get("sampling_params") is None
            or last.params is None
            or call["sampling_params"] == last.params,
            "1.10",
            "no reload_sampling_params although they changed",
        )


def _samples(call: Mapping[str, Any]) -> bool:
    """Whether the device samples this decode, now or once it has a mask."""
    return "sampling_params" in call or "defer_device_sampling" in call
