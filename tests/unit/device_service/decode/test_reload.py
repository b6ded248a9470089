"""Every row of the reload contract's table of transitions, and what commits it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from device_service.decode.reload import DecodeCommands, PageTable, ReloadPlanner

TABLE: PageTable = np.array([[3, 0], [4, 0]], dtype=np.int32)
GROWN: PageTable = np.array([[3, 7], [4, 0]], dtype=np.int32)


def _planner(contract: int = 1, *, resident_inputs: bool = True) -> ReloadPlanner:
    return ReloadPlanner(contract, resident_inputs=resident_inputs)


def _decode(
    planner: ReloadPlanner,
    *,
    device: bool = True,
    moved: bool = False,
    table: PageTable = TABLE,
) -> DecodeCommands:
    """Plan a decode step and let the adapter accept it."""
    commands = planner.plan(
        device_sampling=device, layout_changed=moved, page_table=table
    )
    planner.accepted(commands)
    return commands


def _said(commands: DecodeCommands) -> str:
    """The commands given: i(nputs), t(able), p(arameters), s(tate)."""
    keywords = commands.as_keywords()
    names = {
        "reload_inputs": "i",
        "reload_page_table": "t",
        "reload_sampling_params": "p",
        "reset_sampling_state": "s",
    }
    assert set(keywords) == set(names)
    return "".join(letter for name, letter in names.items() if keywords[name])


Situation = Callable[[ReloadPlanner], None]


def _first(planner: ReloadPlanner) -> None:
    """Nothing came before."""


def _after_prefill(planner: ReloadPlanner) -> None:
    _decode(planner, moved=True)
    planner.prefill_submitted()


def _after_failure(planner: ReloadPlanner) -> None:
    _decode(planner, moved=True)
    planner.step_failed()


def _after_device(planner: ReloadPlanner) -> None:
    _decode(planner, moved=True)
    _decode(planner)


def _after_host(planner: ReloadPlanner) -> None:
    _decode(planner, device=False, moved=True)
    _decode(planner, device=False)


@pytest.mark.feature(108, 112)
@pytest.mark.edge(34)
@pytest.mark.parametrize(
    ("before", "moved", "on_device", "on_host"),
    [
        pytest.param(_first, True, "ips", "i", id="first decode"),
        pytest.param(_first, False, "ips", "i", id="first decode, layout unseen"),
        pytest.param(_after_prefill, False, "ips", "i", id="prefill to decode"),
        pytest.param(_after_failure, False, "ips", "i", id="after a failed step"),
        pytest.param(_after_device, True, "ips", "i", id="a row came or went"),
        pytest.param(_after_host, False, "ips", "i", id="host before"),
        pytest.param(_after_device, False, "", "i", id="device before"),
    ],
)
def test_transitions(
    before: Situation, *, moved: bool, on_device: str, on_host: str
) -> None:
    for device, expected in ((True, on_device), (False, on_host)):
        planner = _planner()
        before(planner)
        assert _said(_decode(planner, device=device, moved=moved)) == expected


@pytest.mark.feature(108)
def test_steady_device_sampling_sends_nothing_until_a_table_grows() -> None:
    planner = _planner()
    said = [
        _said(_decode(planner, moved=moved, table=table))
        for moved, table in [
            (True, TABLE),
            (False, TABLE),
            (False, TABLE.copy()),
            (False, GROWN),
            (False, GROWN),
        ]
    ]
    assert said == ["ips", "", "", "t", ""]


def test_the_table_that_was_submitted_is_the_one_compared() -> None:
    """The caller may write into its array afterwards."""
    planner = _planner()
    table = TABLE.copy()
    _decode(planner, moved=True, table=table)
    table[0, 1] = 7
    assert _said(_decode(planner, table=table)) == "t"


def test_another_number_of_rows_is_another_layout() -> None:
    planner = _planner()
    _decode(planner, moved=True)
    wider = np.zeros((4, 2), dtype=np.int32)
    assert _said(_decode(planner, table=wider)) == "ips"


@pytest.mark.feature(113)
def test_without_trace_or_async_decode_inputs_are_sent_every_step() -> None:
    planner = _planner(resident_inputs=False)
    said = [_decode(planner, moved=True), _decode(planner), _decode(planner)]
    assert [_said(commands) for commands in said] == ["ips", "i", "i"]
    assert not any(commands.overlap_safe for commands in said)


@pytest.mark.edge(26)
@pytest.mark.feature(104)
def test_a_refused_step_is_as_if_it_had_not_been_planned() -> None:
    planner = _planner()
    _decode(planner, device=False, moved=True)
    for _ in range(2):
        refused = planner.plan(
            device_sampling=True, layout_changed=True, page_table=GROWN
        )
        assert _said(refused) == "ips"
    assert (planner.chain_valid, planner.device_sampled) == (True, False)
    assert _said(_decode(planner, device=False)) == "i"


def test_overlap_is_safe_with_at_most_new_tables() -> None:
    planner = _planner()
    assert not _decode(planner, moved=True).overlap_safe
    assert _decode(planner).overlap_safe
    assert _decode(planner, table=GROWN).overlap_safe
    planner.prefill_submitted()
    assert not _decode(planner).overlap_safe
    assert not _decode(planner, device=False).overlap_safe


@pytest.mark.feature(112)
def test_an_adapter_of_the_older_contract_is_told_of_layouts_only() -> None:
    planner = _planner(contract=0)
    assert _decode(planner, moved=True).as_keywords() == {"reset_batch": True}
    assert _decode(planner, table=GROWN).as_keywords() == {"reset_batch": False}
    assert _decode(planner, moved=True).as_keywords() == {"reset_batch": True}
    planner.prefill_submitted()
    assert _decode(planner).as_keywords() == {"reset_batch": True}
    assert _decode(planner, device=False, moved=True).as_keywords() == {}


def test_an_adapter_of_the_older_contract_decides_about_its_uploads() -> None:
    assert _decode(_planner(contract=0), moved=True).overlap_safe


def test_later_contracts_get_the_four_commands() -> None:
    assert _said(_decode(_planner(contract=2), moved=True)) == "ips"


def test_commands_that_contradict_each_other_cannot_be_made() -> None:
    made = 0
    for inputs, table, state in itertools.product((False, True), repeat=3):
        arguments: dict[str, Any] = {
            "contract": 1,
            "device_sampling": True,
            "reset_batch": False,
            "reload_inputs": inputs,
            "reload_page_table": table,
            "reload_sampling_params": False,
            "reset_sampling_state": state,
        }
        if (inputs and table) or (state and not inputs):
            with pytest.raises(ValueError, match="reload_inputs"):
                DecodeCommands(**arguments, page_table=TABLE)
        else:
            DecodeCommands(**arguments, page_table=TABLE)
            made += 1
    assert made == 4
