"""Groups of devices: how they are split, and the process that looks for them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from device_service.mesh.device_groups import (
    DeviceGroup,
    Finder,
    TimeLimits,
    discover,
    find_on_this_machine,
    split,
)
from device_service.mesh.ttnn_settings import grid_on
from tests.support import group_finders
from tests.support.ttnn_host import Board, ClusterType, RecordingTtnn, create_submeshes
from ttserve.errors import StartupError

# A process needs its interpreter and our modules, on a machine that others use.
PATIENT = TimeLimits(answer=60.0, join=20.0)


def t3k() -> RecordingTtnn:
    return RecordingTtnn(8, ClusterType.T3K)


def galaxy() -> RecordingTtnn:
    return RecordingTtnn(32, ClusterType.GALAXY)


def ids(groups: list[DeviceGroup]) -> list[tuple[int, ...]]:
    return [group.device_ids for group in groups]


@pytest.mark.feature(93)
def test_one_group_for_each_rank() -> None:
    assert split(t3k(), create_submeshes, 2, "T3K") == [
        DeviceGroup((0, 1, 2, 3), (1, 4)),
        DeviceGroup((4, 5, 6, 7), (1, 4)),
    ]


@pytest.mark.feature(93)
def test_what_was_opened_is_closed() -> None:
    ttnn = t3k()
    split(ttnn, create_submeshes, 2, None)
    assert [call[:2] for call in ttnn.calls] == [
        ("open", (1, 8)),
        ("close", "group 0"),
        ("close", "group 1"),
        ("close", "mesh"),
    ]
    ttnn = t3k()
    with pytest.raises(StartupError, match="8 devices for 3 groups"):
        split(ttnn, create_submeshes, 3, None)
    assert [call[:2] for call in ttnn.calls] == [("open", (1, 8)), ("close", "mesh")]


@pytest.mark.feature(94)
def test_four_groups_of_a_wormhole_galaxy_have_their_order() -> None:
    ttnn = galaxy()
    groups = split(ttnn, create_submeshes, 4, "TG")
    assert ttnn.calls[0][1] == (4, 8)
    # The rows of the grid, the last but first in the second place: 0, 2, 3, 1.
    assert [group.device_ids[0] for group in groups] == [0, 16, 24, 8]
    assert {group.grid for group in groups} == {(1, 8)}


@pytest.mark.edge(53)
@pytest.mark.feature(94)
def test_other_splits_stay_as_they_are() -> None:
    assert [it[0] for it in ids(split(galaxy(), create_submeshes, 2, "TG"))] == [0, 16]
    ttnn = galaxy()
    assert [it[0] for it in ids(split(ttnn, create_submeshes, 4, None))] == [
        *(0, 8, 16, 24)
    ]
    assert ttnn.calls[0][1] == (1, 32)
    blackhole = RecordingTtnn(32, ClusterType.BLACKHOLE_GALAXY)
    blackhole.arch_name = "blackhole"
    groups = split(blackhole, create_submeshes, 4, "BH-Galaxy")
    assert blackhole.calls[0][1] == (4, 8)
    assert [it[0] for it in ids(groups)] == [0, 8, 16, 24]


def fewer(mesh: Board, count: int) -> list[Board]:
    return create_submeshes(mesh, count)[1:]


def empty(mesh: Board, count: int) -> list[Board]:
    return [Board("empty", (1, 0), [])] + fewer(mesh, count)


def shared(mesh: Board, count: int) -> list[Board]:
    return [mesh] * count


@pytest.mark.edge(49)
@pytest.mark.feature(93)
@pytest.mark.parametrize(
    ("create", "says"),
    [
        (fewer, "made 1 groups of devices for 2 device services"),
        (empty, r"empty or share devices \(; 4,5,6,7\)"),
        (shared, r"empty or share devices \(0,1,2,3,4,5,6,7; 0,"),
    ],
)
def test_a_rank_without_devices_of_its_own_is_an_error(create: Any, says: str) -> None:
    with pytest.raises(StartupError, match=says) as caught:
        split(t3k(), create, 2, None)
    assert "\n" not in str(caught.value)


def test_a_group_that_no_process_can_open_alone() -> None:
    ttnn = t3k()
    ttnn.devices_per_board = 2
    with pytest.raises(StartupError, match="no device that the host reaches"):
        split(ttnn, create_submeshes, 8, None)


def test_a_mesh_that_does_not_open_is_one_line() -> None:
    ttnn = t3k()
    ttnn.failing.add("open")
    with pytest.raises(StartupError, match="into 2 groups: open is broken") as caught:
        split(ttnn, create_submeshes, 2, "T3K")
    assert "\n" not in str(caught.value)


@pytest.mark.feature(95)
def test_a_group_binds_to_exactly_its_grid() -> None:
    """Contract 2.18: the grid of a group that is visible is the group's."""
    environment = DeviceGroup((4, 0, 2, 6, 1, 3, 5, 7), (2, 4)).environment()
    visible, grid = environment["TT_VISIBLE_DEVICES"], environment["MESH_DEVICE"]
    assert visible == "4,0,2,6,1,3,5,7"
    assert grid_on(8, grid, visible) == (2, 4)


@pytest.mark.feature(93)
@pytest.mark.timeout(200)
def test_a_process_of_its_own_answers(capfd: pytest.CaptureFixture[str]) -> None:
    groups = discover(4, "T3K", PATIENT, group_finders.on_t3k)
    assert [group.device_ids for group in groups] == [(0, 1), (2, 3), (4, 5), (6, 7)]
    said = capfd.readouterr()
    assert said.out == ""
    assert "not an answer" in said.err


@pytest.mark.feature(93)
@pytest.mark.timeout(200)
@pytest.mark.parametrize(
    ("find", "count", "says"),
    [
        (group_finders.crashing, 2, "ended without an answer, exit code -9"),
        (group_finders.failing, 2, "groups of devices failed: 'a hole'"),
        (group_finders.on_t3k, 3, "8 devices for 3 groups"),
        (find_on_this_machine, 2, "the ttnn package does not import"),
    ],
)
def test_a_process_that_finds_nothing_is_one_line(
    find: Finder, count: int, says: str
) -> None:
    with pytest.raises(StartupError, match=says) as caught:
        discover(count, None, PATIENT, find)
    assert "\n" not in str(caught.value)


@pytest.mark.feature(93)
@pytest.mark.timeout(200)
def test_a_process_that_hangs_is_killed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pid_file = tmp_path / "pid"
    monkeypatch.setenv(group_finders.PID_FILE, str(pid_file))
    limits = TimeLimits(answer=15.0, join=0.1)
    with pytest.raises(StartupError, match="took longer than 15 s"):
        discover(2, None, limits, group_finders.hanging)
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)
