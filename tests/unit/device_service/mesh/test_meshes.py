"""Making meshes, their grids, and what the sim mesh does on demand."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch

from device_service.mesh.cpu import CpuMesh
from device_service.mesh.factory import make_mesh
from device_service.mesh.grid import grid_of
from device_service.mesh.host_queue import QueueClosed
from device_service.mesh.interface import MeshPoisoned
from device_service.mesh.sim import SimMesh, SimProfile, SimStepFailed
from ttserve.errors import StartupError

MakeSim = Callable[..., SimMesh]


@pytest.fixture
def make_sim() -> Iterator[MakeSim]:
    meshes: list[SimMesh] = []

    def make(**profile: Any) -> SimMesh:
        mesh = SimMesh(profile=SimProfile.parse(profile))
        mesh.open()
        meshes.append(mesh)
        return mesh

    yield make
    for mesh in meshes:
        mesh.close()


@pytest.mark.feature(27)
@pytest.mark.parametrize(
    ("name", "grid"),
    [
        (None, (1, 1)),
        ("N300", (1, 2)),
        ("T3K", (1, 8)),
        ("TG", (8, 4)),
        ("(2, 4)", (2, 4)),
    ],
)
def test_grids(name: str | None, grid: tuple[int, int]) -> None:
    assert grid_of(name) == grid


@pytest.mark.feature(27)
@pytest.mark.parametrize("name", ["", "N9000", "(0,1)", "(1,2", "1x8"])
def test_bad_grids(name: str) -> None:
    with pytest.raises(StartupError, match="MESH_DEVICE"):
        grid_of(name)


def test_the_factory_makes_what_is_asked_for() -> None:
    cpu = make_mesh("cpu", {"mesh_device": "T3K"})
    sim = make_mesh("sim", {"sim": {"decode_ms": 1}})
    assert isinstance(cpu, CpuMesh)
    assert isinstance(sim, SimMesh)
    assert (cpu.kind, cpu.grid, sim.kind, sim.grid) == ("cpu", (1, 8), "sim", (1, 1))
    assert sim.profile.decode_ms == 1


@pytest.mark.parametrize(
    ("kind", "options", "named"),
    [
        ("gpu", {}, "'gpu'"),
        ("ttnn", {}, "ttnn"),
        ("cpu", {"sim": {}}, "tt.sim"),
        ("sim", {"sim": {"decode": 1}}, "'decode'"),
        ("sim", {"sim": {"decode_ms": -1}}, "decode_ms"),
        ("sim", {"sim": {"decode_ms": True}}, "decode_ms"),
        ("sim", {"sim": {"fail_steps": 3}}, "fail_steps"),
        ("sim", {"sim": {"fail_steps": [0]}}, "fail_steps"),
        ("sim", {"sim": {"poison_step": 1.5}}, "poison_step"),
    ],
)
def test_the_factory_refuses(kind: str, options: dict[str, Any], named: str) -> None:
    with pytest.raises(StartupError, match=named):
        make_mesh(kind, options)


def test_the_cpu_mesh_works_in_inference_mode() -> None:
    mesh = CpuMesh()
    mesh.open()
    assert mesh.submit(torch.is_inference_mode_enabled).result()
    mesh.close()
    mesh.close()
    with pytest.raises(QueueClosed):
        mesh.submit(lambda: None)


def test_a_mesh_that_was_never_opened_closes() -> None:
    mesh = CpuMesh()
    mesh.close()
    with pytest.raises(QueueClosed):
        mesh.submit(lambda: None)


def test_events_of_a_mesh(make_sim: MakeSim) -> None:
    mesh = make_sim()
    done = threading.Event()
    event = mesh.submit_step(lambda: 3, 0.0)
    mesh.on_done(event, done.set)
    mesh.synchronize(event)
    assert done.wait(5)
    assert mesh.is_done(event)
    began, ended = mesh.span(event)
    assert began <= ended


def test_steps_take_their_time(make_sim: MakeSim) -> None:
    mesh = make_sim(decode_ms=5, prefill_ms=2, prefill_us_per_token=100)
    profile = mesh.profile
    assert profile.decode_seconds() == pytest.approx(0.005)
    assert profile.prefill_seconds(30) == pytest.approx(0.005)
    submitted = time.monotonic()
    tasks = [mesh.submit_step(lambda: None, 0.005) for _ in range(20)]
    tasks[-1].result()
    ended = [task.span()[1] - submitted for task in tasks]
    # No step ends early, and late wake-ups do not add up over the queue.
    assert all(end >= 0.005 * (n + 1) for n, end in enumerate(ended))
    assert ended[-1] < 0.1 + 0.05


def test_work_is_hidden_in_the_time_of_the_step(make_sim: MakeSim) -> None:
    task = make_sim().submit_step(lambda: time.sleep(0.02), 0.03)
    submitted = time.monotonic()
    task.result()
    assert time.monotonic() - submitted < 0.045


def test_steps_fail_by_number(make_sim: MakeSim) -> None:
    mesh = make_sim(fail_steps=[2, 4])
    written: list[int] = []
    tasks = [mesh.submit_step(partial(written.append, n), 0.0) for n in range(1, 6)]
    failures = [type(task.exception()) for task in tasks]
    none = type(None)
    assert failures == [none, SimStepFailed, none, SimStepFailed, none]
    assert written == [1, 3, 5]


def test_a_step_poisons_the_mesh(make_sim: MakeSim) -> None:
    mesh = make_sim(poison_step=1)
    with pytest.raises(MeshPoisoned):
        mesh.synchronize(mesh.submit_step(lambda: None, 0.0))


def test_a_step_hangs_until_released(make_sim: MakeSim) -> None:
    mesh = make_sim(hang_step=1)
    task = mesh.submit_step(lambda: "late", 0.0)
    time.sleep(0.02)
    assert not task.done()
    mesh.release()
    assert task.result() == "late"


def test_closing_releases_a_hanging_step(make_sim: MakeSim) -> None:
    mesh = make_sim(hang_step=1)
    task = mesh.submit_step(lambda: "late", 0.0)
    mesh.close()
    assert task.done()
