"""The supervisor over real processes and real signals."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.ttserve.launcher.stand_ins import (
    DEADLINE,
    OBEDIENT,
    QUICK,
    STUBBORN,
    Launched,
    is_alive,
    python,
    start_supervisor,
    wait_until,
)
from ttserve.launcher.supervisor import Timing, Verdict, describe, judge

Launch = Callable[..., Launched]

FAILS = "import sys; print('failing'); sys.exit(int(sys.argv[1]))"
RECORDS = (
    """
import signal
signal.signal(signal.SIGUSR1, lambda *_: print("recording"))
"""
    + OBEDIENT
)
# Fails until a file has grown by one byte per start; then behaves.
RECOVERS = (
    """
import os, sys
path, failures = sys.argv[1], int(sys.argv[2])
with open(path, "ab") as f: f.write(b".")
if os.path.getsize(path) <= failures: sys.exit(1)
"""
    + OBEDIENT
)


@pytest.mark.parametrize(
    ("exit_code", "has_served", "failures", "verdict"),
    [
        (1, False, 1, Verdict.RESTART),
        (3, False, 1, Verdict.RESTART),
        (-9, False, 4, Verdict.RESTART),
        (1, False, 5, Verdict.GIVE_UP),
        (0, False, 5, Verdict.GIVE_UP),
        (2, False, 1, Verdict.GIVE_UP),
        (2, True, 1, Verdict.RESTART),
        (1, True, 500, Verdict.RESTART),
    ],
)
def test_verdict(
    *, exit_code: int, has_served: bool, failures: int, verdict: Verdict
) -> None:
    assert judge(exit_code, has_served=has_served, failures=failures) is verdict


def test_the_delay_doubles_up_to_its_limit() -> None:
    delays = [Timing().delay(failures) for failures in range(1, 8)]
    assert delays == [0.5, 1, 2, 4, 8, 10, 10]
    assert Timing().delay(5000) == 10


@pytest.mark.parametrize(
    ("exit_code", "clause"),
    [(0, "code 0"), (3, "code 3"), (-9, "killed by SIGKILL"), (-63, "signal 63")],
)
def test_an_exit_in_words(exit_code: int, clause: str) -> None:
    assert clause in describe(exit_code)


def test_a_signal_stops_the_frontends_first(launch: Launch) -> None:
    running = launch(python(OBEDIENT), frontends=[python(OBEDIENT), python(OBEDIENT)])
    for _ in range(3):
        running.wait_for(r"\| pid \d+")
    running.signal(signal.SIGTERM)
    assert running.exit_code() == 0
    endings = [line.split("|")[0].strip() for line in running.lines if "ending" in line]
    assert sorted(endings[:2]) == ["frontend0", "frontend1"]
    assert endings[2:] == ["device"]
    assert not any("starting it again" in line for line in running.lines)


def test_several_device_services_stop_after_the_frontends(launch: Launch) -> None:
    running = launch(
        python(OBEDIENT), python(OBEDIENT), frontends=[python(OBEDIENT)] * 2
    )
    for _ in range(4):
        running.wait_for(r"\| pid \d+")
    running.signal(signal.SIGTERM)
    assert running.exit_code() == 0
    endings = [line.split("|")[0].strip() for line in running.lines if "ending" in line]
    assert sorted(endings[:2]) == ["frontend0", "frontend1"]
    assert sorted(endings[2:]) == ["device0", "device1"]


def test_one_of_several_device_services_comes_back_alone(launch: Launch) -> None:
    running = launch(python(OBEDIENT), python(OBEDIENT), frontends=[python(OBEDIENT)])
    pids = {
        found[1]: int(found[2])
        for found in (running.wait_for(r"(\S+) *\| pid (\d+)") for _ in range(3))
    }
    os.kill(pids["device1"], signal.SIGKILL)
    running.wait_for("device1 was killed by SIGKILL; starting it again in 0.01 s")
    assert int(running.wait_for(r"device1 *\| pid (\d+)")[1]) != pids["device1"]
    assert is_alive(pids["device0"])
    assert is_alive(pids["frontend0"])


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_each_stop_signal_ends_in_order_with_code_0(
    launch: Launch, signum: signal.Signals
) -> None:
    running = launch(python(OBEDIENT))
    running.wait_for(r"pid")
    running.signal(signum)
    running.wait_for(f"{signum.name}: stopping")
    assert running.exit_code() == 0


def test_a_second_signal_kills(launch: Launch) -> None:
    running = launch(python(OBEDIENT), frontends=[python(STUBBORN)])
    pids = [int(running.wait_for(r"\| pid (\d+)")[1]) for _ in range(2)]
    running.signal(signal.SIGINT)
    running.wait_for("stopping")
    running.signal(signal.SIGINT)
    running.wait_for("frontend0 has not stopped; killing it")
    assert running.exit_code() == 128 + signal.SIGINT
    assert not any(is_alive(pid) for pid in pids)


def test_who_does_not_stop_within_the_grace_is_killed(launch: Launch) -> None:
    running = launch(python(STUBBORN), grace=0.1)
    pid = int(running.wait_for(r"\| pid (\d+)")[1])
    running.signal(signal.SIGTERM)
    running.wait_for("device has not stopped; killing it")
    assert running.exit_code() == 0
    assert not is_alive(pid)


def test_a_wish_for_recordings_reaches_the_device_services(
    launch: Launch, tmp_path: Path
) -> None:
    """And nobody who would be ended by it."""
    running = launch(
        python(RECORDS), python(RECORDS), frontends=[python(OBEDIENT)], grace=10.0
    )
    for _ in range(3):
        running.wait_for(r"\| pid \d+")
    running.signal(signal.SIGUSR1)
    running.wait_for("not ready: there is nothing to record")
    (tmp_path / "ready").touch()
    running.wait_for(r"tt-serve *\| ready")
    running.signal(signal.SIGUSR1)
    told = {running.wait_for(r"(device\d) *\| recording")[1] for _ in range(2)}
    assert told == {"device0", "device1"}
    running.signal(signal.SIGTERM)
    assert running.exit_code() == 0
    assert not any("starting it again" in line for line in running.lines)


def test_a_child_that_ends_is_started_again(launch: Launch) -> None:
    running = launch(python(OBEDIENT), frontends=[python(OBEDIENT)])
    pids = {
        found[1]: int(found[2])
        for found in (running.wait_for(r"(\S+) *\| pid (\d+)") for _ in range(2))
    }
    os.kill(pids["frontend0"], signal.SIGKILL)
    running.wait_for("frontend0 was killed by SIGKILL; starting it again in 0.01 s")
    assert int(running.wait_for(r"frontend0\| pid (\d+)")[1]) != pids["frontend0"]
    assert is_alive(pids["device"])


def test_the_pause_grows_with_each_failure(launch: Launch, tmp_path: Path) -> None:
    running = launch(python(RECOVERS, str(tmp_path / "starts"), "4"))
    for delay in ("0.01", "0.02", "0.04", "0.05"):
        running.wait_for(rf"device exited with code 1; starting it again in {delay} s")
    running.wait_for(r"device *\| pid")


def test_a_usage_error_at_the_start_ends_everything(launch: Launch) -> None:
    running = launch(python(FAILS, "2"), frontends=[python(OBEDIENT)])
    assert running.exit_code() == 2
    assert any("device exited with code 2; giving up" in line for line in running.lines)


def test_a_frontend_with_a_usage_error_ends_everything(launch: Launch) -> None:
    running = launch(python(OBEDIENT), frontends=[python(FAILS, "2")])
    assert running.exit_code() == 2


def test_a_device_that_never_comes_up_is_given_up(launch: Launch) -> None:
    running = launch(python(FAILS, "7"))
    assert running.exit_code() == 7
    assert sum("failing" in line for line in running.lines) == 5


def test_after_it_has_served_nothing_is_given_up(
    launch: Launch, tmp_path: Path
) -> None:
    starts = tmp_path / "starts"
    running = launch(python(OBEDIENT), frontends=[python(RECOVERS, str(starts), "0")])
    pids = {
        found[1]: int(found[2])
        for found in (running.wait_for(r"(\S+) *\| pid (\d+)") for _ in range(2))
    }
    (tmp_path / "ready").touch()
    running.wait_for(r"tt-serve *\| ready")
    for _ in range(6):
        os.kill(pids["frontend0"], signal.SIGKILL)
        pids["frontend0"] = int(running.wait_for(r"frontend0\| pid (\d+)")[1])
    running.signal(signal.SIGTERM)
    assert running.exit_code() == 0
    assert sum("| ready" in line for line in running.lines) == 1


def test_killing_the_launcher_ends_its_children(launch: Launch) -> None:
    running = launch(python(OBEDIENT), frontends=[python(OBEDIENT)])
    pids = [int(running.wait_for(r"\| pid (\d+)")[1]) for _ in range(2)]
    running.signal(signal.SIGKILL)
    wait_until(lambda: not any(is_alive(pid) for pid in pids))


def test_what_a_dead_child_left_behind_is_ended(launch: Launch) -> None:
    leaves_a_helper = """
import os, signal, time
helper = os.fork()
if helper == 0:
    while True: signal.pause()
print("pid", helper)
os._exit(1)
"""
    running = launch(python(leaves_a_helper))
    helper = int(running.wait_for(r"\| pid (\d+)")[1])
    wait_until(lambda: not is_alive(helper))
    running.wait_for("device exited with code 1; starting")
    running.signal(signal.SIGTERM)  # killed, it would leave the next one's helper
    assert running.exit_code() == 0


def test_a_command_that_is_not_there_is_said_in_one_line(launch: Launch) -> None:
    running = launch(["/nowhere/tt-device-service"])
    running.wait_for(
        r"device *\| tether: cannot run /nowhere/tt-device-service: No such"
    )
    assert running.exit_code() == 1
    assert not any("Traceback" in line for line in running.lines)


def test_a_reader_that_leaves_stops_everything() -> None:
    setup = {
        "devices": [python(OBEDIENT)],
        "frontends": [],
        "ready": "no",
        "timing": QUICK,
    }
    with start_supervisor(setup) as launcher:
        assert launcher.stdout is not None
        pid = int(launcher.stdout.readline().rpartition(" ")[2])
        launcher.stdout.close()
        os.kill(pid, signal.SIGKILL)
        assert launcher.wait(DEADLINE) == 0
