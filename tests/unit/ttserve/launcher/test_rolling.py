"""Rolling restarts, by real signals and processes."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path

from tests.unit.ttserve.launcher.stand_ins import (
    OBEDIENT,
    STUBBORN,
    Launched,
    is_alive,
    python,
)

Launch = Callable[..., Launched]

# Obedient, and says with which arguments it was started.
TELLS = f"import sys; print('arguments', sys.argv[1:]){OBEDIENT}"


def serving(launch: Launch, tmp_path: Path, *frontends: str) -> Launched:
    """A supervisor whose children run and can serve."""
    running = launch(
        python(OBEDIENT), frontends=[python(script) for script in frontends]
    )
    for _ in range(len(frontends) + 1):
        running.wait_for(r"\| pid \d+")
    (tmp_path / "ready").touch()
    running.wait_for(r"tt-serve *\| ready")
    return running


def test_frontends_are_replaced_one_after_the_other(
    launch: Launch, tmp_path: Path
) -> None:
    running = serving(launch, tmp_path, TELLS, TELLS)
    already = len(running.lines)
    running.signal(signal.SIGUSR2)
    running.wait_for(r"frontend0\| ending")
    running.wait_for("frontend0 is ready again")
    running.wait_for(r"frontend1\| ending")
    running.wait_for("rolling restart: done")
    said = running.lines[already:]
    assert [line.partition("| ")[2] for line in said if line.startswith("tt-")] == [
        "rolling restart: one frontend at a time",
        *("waiting for frontend0", "frontend0 is ready again"),
        *("waiting for frontend1", "frontend1 is ready again"),
        "rolling restart: done",
    ]
    while sum("arguments ['again']" in line for line in running.lines) < 2:
        running.wait_for("arguments")
    running.signal(signal.SIGTERM)
    assert running.exit_code() == 0


def test_a_frontend_that_does_not_stop_is_killed(
    launch: Launch, tmp_path: Path
) -> None:
    running = launch(python(OBEDIENT), frontends=[python(STUBBORN)], grace=0.1)
    pids = dict(
        (found[1], int(found[2]))
        for found in (running.wait_for(r"(\w+) *\| pid (\d+)") for _ in range(2))
    )
    (tmp_path / "ready").touch()
    running.wait_for(r"tt-serve *\| ready")
    running.signal(signal.SIGUSR2)
    running.wait_for("frontend0 has not stopped; killing it")
    running.wait_for("rolling restart: done")
    assert not is_alive(pids["frontend0"])
    assert is_alive(pids["device"])


def test_nothing_is_restarted_before_it_serves(launch: Launch) -> None:
    running = launch(python(OBEDIENT), frontends=[python(OBEDIENT)])
    for _ in range(2):
        running.wait_for(r"\| pid \d+")
    running.signal(signal.SIGUSR2)
    running.wait_for("not ready: nothing is restarted")
    running.signal(signal.SIGTERM)
    assert running.exit_code() == 0


def test_a_second_wish_waits_for_nothing_and_a_stop_ends_the_first(
    launch: Launch, tmp_path: Path
) -> None:
    running = launch(python(OBEDIENT), frontends=[python(STUBBORN)], grace=2.0)
    for _ in range(2):
        running.wait_for(r"\| pid \d+")
    (tmp_path / "ready").touch()
    running.wait_for(r"tt-serve *\| ready")
    running.signal(signal.SIGUSR2)
    running.wait_for("one frontend at a time")
    running.signal(signal.SIGUSR2)
    running.wait_for("a rolling restart is under way already")
    running.signal(signal.SIGTERM)
    assert running.exit_code() == 0
    assert not any("done" in line for line in running.lines)


def test_a_frontend_that_has_just_died_is_not_replaced_once_more(
    launch: Launch, tmp_path: Path
) -> None:
    """It is about to be started anyway: nobody has to end it, nor wait for its end."""
    running = launch(
        python(OBEDIENT), frontends=[python(OBEDIENT)], first_delay=1.0, grace=0.1
    )
    pids = dict(
        (found[1], int(found[2]))
        for found in (running.wait_for(r"(\w+) *\| pid (\d+)") for _ in range(2))
    )
    (tmp_path / "ready").touch()
    running.wait_for(r"tt-serve *\| ready")
    os.kill(pids["frontend0"], signal.SIGKILL)
    running.wait_for("starting it again")
    running.signal(signal.SIGUSR2)
    running.wait_for("rolling restart: done")
    restarted = running.wait_for(r"frontend0\| pid (\d+)")
    assert is_alive(int(restarted[1]))
    assert not any("not stopped" in line for line in running.lines)
