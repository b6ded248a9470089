"""The `ttnn` mesh over a library that takes notes: order, once, whatever fails."""

from __future__ import annotations

import subprocess
import sys
import threading
from typing import Any

import pytest

from device_service.mesh.factory import make_mesh
from device_service.mesh.host_queue import QueueClosed
from device_service.mesh.ttnn_mesh import TtnnMesh, reason
from device_service.options import TTOptions
from tests.support.ttnn_host import (
    Board,
    ClusterType,
    FabricConfig,
    FabricReliabilityMode,
    HostTtnn,
    RecordingTtnn,
    TouchesDevice,
)
from ttserve.errors import StartupError

SET = (
    "fabric",
    FabricConfig.FABRIC_1D,
    {"reliability_mode": FabricReliabilityMode.STRICT_INIT},
)
OPEN = ("open", (1, 8), {"trace_region_size": 50_000_000})
DISABLE: tuple[Any, ...] = ("fabric", FabricConfig.DISABLED, {})
CLOSED = [
    ("profiler", "mesh"),
    ("close", "left"),
    ("close", "right"),
    ("close", "mesh"),
    DISABLE,
]


@pytest.fixture
def ttnn() -> RecordingTtnn:
    return RecordingTtnn(8, ClusterType.T3K)


def opened(ttnn: RecordingTtnn) -> TtnnMesh:
    mesh = TtnnMesh(ttnn, TTOptions())
    mesh.open()
    assert ttnn.board is not None
    ttnn.board.submeshes += [Board("left", (1, 4), []), Board("right", (1, 4), [])]
    return mesh


@pytest.mark.feature(35)
@pytest.mark.edge(57)
def test_opened_in_order_and_closed_once_in_the_reverse_order(
    ttnn: RecordingTtnn,
) -> None:
    mesh = opened(ttnn)
    assert ttnn.calls == [SET, OPEN]
    assert mesh.device is ttnn.board
    assert (mesh.kind, mesh.grid) == ("ttnn", (1, 8))
    mesh.close()
    mesh.close()
    assert ttnn.calls == [SET, OPEN, *CLOSED]
    with pytest.raises(RuntimeError, match="not open"):
        _ = mesh.device


@pytest.mark.feature(35)
@pytest.mark.edge(57)
@pytest.mark.parametrize("broken", ["profiler", "close left", "close mesh", "close"])
def test_what_fails_while_closing_keeps_nothing_else_open(
    ttnn: RecordingTtnn, broken: str, caplog: pytest.LogCaptureFixture
) -> None:
    mesh = opened(ttnn)
    ttnn.failing.add(broken)
    mesh.close()
    assert ttnn.calls == [SET, OPEN, *CLOSED]
    assert f"{broken.split()[0]} is broken" in caplog.text
    assert "backtrace" not in caplog.text


@pytest.mark.feature(35)
def test_a_failed_open_resets_the_fabric(ttnn: RecordingTtnn) -> None:
    ttnn.failing.add("open")
    mesh = TtnnMesh(ttnn, TTOptions())
    with pytest.raises(StartupError) as failed:
        mesh.open()
    assert str(failed.value) == "ttnn cannot open 1 x 8 devices: open is broken"
    mesh.close()
    assert ttnn.calls == [SET, OPEN, DISABLE]


@pytest.mark.feature(35)
def test_a_fabric_that_cannot_be_set_is_reset_and_nothing_is_opened(
    ttnn: RecordingTtnn,
) -> None:
    ttnn.failing.add("fabric")  # and resetting fails too
    mesh = TtnnMesh(ttnn, TTOptions())
    with pytest.raises(StartupError, match="fabric is broken"):
        mesh.open()
    assert ttnn.calls == [SET, DISABLE]


@pytest.mark.feature(34, 35)
def test_an_axis_that_the_product_has_not_is_said(ttnn: RecordingTtnn) -> None:
    def refuse(**axis: Any) -> None:
        raise RuntimeError("TT_THROW @ b.cpp:2\ninfo:\nROW is not supported\n")

    ttnn.DispatchCoreConfig = refuse  # type: ignore[assignment]
    mesh = TtnnMesh(ttnn, TTOptions(dispatch_core_axis="row"))
    with pytest.raises(StartupError) as failed:
        mesh.open()
    assert str(failed.value) == "ttnn cannot open 1 x 8 devices: ROW is not supported"
    mesh.close()
    assert ttnn.calls == []


@pytest.mark.feature(30)
def test_one_device_never_hears_of_a_fabric() -> None:
    ttnn = RecordingTtnn(1, ClusterType.N150)
    mesh = TtnnMesh(ttnn, TTOptions(fabric_config="FABRIC_1D", trace_mode="none"))
    mesh.open({"config": FabricConfig.FABRIC_2D})
    mesh.close()
    assert [call[0] for call in ttnn.calls] == ["open", "profiler", "close"]


@pytest.mark.feature(31, 32)
def test_the_fabric_of_the_model_is_set(ttnn: RecordingTtnn) -> None:
    mesh = TtnnMesh(ttnn, TTOptions(fabric_reliability_mode="RELAXED_INIT"))
    mesh.open({"config": FabricConfig.FABRIC_2D, "num_planes": 1})
    mesh.close()
    relaxed = FabricReliabilityMode.RELAXED_INIT
    assert ttnn.calls[0] == (
        "fabric",
        FabricConfig.FABRIC_2D,
        {"reliability_mode": relaxed, "num_planes": 1},
    )


def test_a_mesh_opens_once_and_the_next_one_again(ttnn: RecordingTtnn) -> None:
    mesh = opened(ttnn)
    with pytest.raises(RuntimeError, match="the mesh is open"):
        mesh.open()
    mesh.close()
    ttnn.calls.clear()
    again = opened(ttnn)
    again.close()
    assert ttnn.calls == [SET, OPEN, *CLOSED]


def test_a_mesh_that_was_never_opened_closes(ttnn: RecordingTtnn) -> None:
    TtnnMesh(ttnn, TTOptions()).close()
    assert ttnn.calls == []


def test_what_was_found(ttnn: RecordingTtnn) -> None:
    mesh = opened(ttnn)
    assert mesh.found() == (
        "cluster T3K, wormhole_b0, 8 devices",
        "open 1 x 8: 0, 1, 2, 3, 4, 5, 6, 7",
        "fabric config FABRIC_1D, reliability_mode STRICT_INIT",
    )
    mesh.close()


class Broken:
    def wait(self) -> None:
        raise RuntimeError("the link is down")


def test_events_are_waited_for_in_their_order(ttnn: RecordingTtnn) -> None:
    mesh = opened(ttnn)
    first, second, called = threading.Event(), threading.Event(), threading.Event()
    watched = [mesh.watch(event) for event in (first, second)]
    mesh.on_done(watched[1], called.set)
    second.set()
    assert not mesh.is_done(watched[1])  # the devices are at the first
    first.set()
    mesh.synchronize(watched[1])
    assert called.wait(5)
    spans = [mesh.span(event) for event in watched]
    assert spans[0][1] <= spans[1][0]
    failed = mesh.watch(Broken())
    with pytest.raises(RuntimeError, match="the link is down"):
        mesh.synchronize(failed)
    mesh.close()
    with pytest.raises(QueueClosed):
        mesh.watch(first)


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (
            "TT_THROW @ a.cpp:1: tt::exception\ninfo:\nno ring\nbacktrace:\n--- x",
            "no ring",
        ),
        ("plain", "plain"),
        ("info:", "info:"),
        ("", "RuntimeError"),
    ],
)
def test_the_line_that_says_why(message: str, said: str) -> None:
    assert reason(RuntimeError(message)) == said


def test_the_factory_hands_ttnn_in(
    monkeypatch: pytest.MonkeyPatch, ttnn: RecordingTtnn
) -> None:
    monkeypatch.setitem(sys.modules, "ttnn", ttnn)
    options: dict[str, Any] = {"mesh_device": "(2,2)", "visible_devices": "4,5,6,7"}
    mesh = make_mesh("ttnn", options)
    assert (mesh.kind, mesh.grid) == ("ttnn", (2, 2))
    assert ttnn.calls == []


@pytest.mark.feature(1)
def test_without_ttnn_the_way_out_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ttnn", None)
    with pytest.raises(StartupError, match=r"does not import \(.*use --mesh cpu$"):
        make_mesh("ttnn", {})


def test_the_strict_stand_in_refuses_devices() -> None:
    with pytest.raises(TouchesDevice, match=r"ttnn\.get_num_devices"):
        TtnnMesh(HostTtnn(), TTOptions())


def test_the_mesh_imports_without_torch_and_vllm() -> None:
    code = (
        "import sys; sys.modules.update(torch=None, vllm=None, ttnn=None, numpy=None);"
        "import device_service.mesh.ttnn_mesh"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
