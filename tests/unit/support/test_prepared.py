"""Forks of a prepared process are what `python -m` would be, and end with it."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.support.frontend_process import wait_for
from tests.support.prepared import COMMANDS, Forked, Prepared, Process, start

PROGRAM = "tests.unit.support.run_code"
SLEEP = "import time; print('up', flush=True); time.sleep(600)"
SECONDS = 60.0
FIRST_SECONDS = 110.0  # imports, on a busy machine

Start = Callable[..., Forked]

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="nothing is forked")


@pytest.fixture(scope="module")
def prepared() -> Iterator[Prepared]:
    made = Prepared(PROGRAM)
    yield made
    made.close()


@pytest.fixture
def fork(prepared: Prepared, tmp_path: Path) -> Iterator[Start]:
    """Starts a fork that runs code, and writes to the files out and err."""
    with contextlib.ExitStack() as cleanup:

        def begin(*words: str, by: Prepared = prepared) -> Forked:
            out, err = (tmp_path / name for name in ("out", "err"))
            with out.open("wb") as output, err.open("wb") as errors:
                made = by.fork(words, output.fileno(), errors.fileno())
            cleanup.callback(made.wait, SECONDS)
            cleanup.callback(made.kill)
            return made

        yield begin


def command_of(process: Process) -> list[str]:
    return Path(f"/proc/{process.pid}/cmdline").read_text().split("\0")[1:-1]


def is_fork(process: Process) -> bool:
    return "tests.support.prepared_main" in command_of(process)


def state_of(pid: int) -> str:
    """T for one that is stopped, Z or nothing for one that has ended."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except FileNotFoundError:
        return ""
    return text.rpartition(")")[2].split()[0]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("module", "options"),
    [
        ("device_service", ["--mesh", "sim", "--listen", "127.0.0.1:0"]),
        ("frontend", ["--device-service", "127.0.0.1:1", "--port", "0"]),
    ],
)
def test_a_command_runs_in_a_fork(
    module: str, options: list[str], tmp_path: Path
) -> None:
    """Its imports start no thread, and nothing else forbids it either."""
    assert ("-m", module) in COMMANDS
    log = tmp_path / "log"
    with log.open("wb") as file:
        fd = file.fileno()
        process = start(["-m", module, *options], stdout=fd, stderr=fd)
    try:
        wait_for(lambda: "listening on" in log.read_text(), FIRST_SECONDS)
        assert is_fork(process), log.read_text()
        process.terminate()
        assert process.wait(SECONDS) == 0
        assert "Traceback" not in log.read_text()
    finally:
        process.kill()
        process.wait(SECONDS)


@pytest.mark.parametrize(
    ("options", "variable"),
    [
        (["--log-format", "json"], ""),
        (["--log-format=json"], ""),
        (["--config=file"], ""),
        ([], "VLLM_LOGGING_LEVEL"),
        ([], "OTEL_SERVICE_NAME"),
        ([], "SOMETHING"),
    ],
)
def test_what_imports_may_heed_makes_it_a_process_of_its_own(
    options: list[str],
    variable: str,
    fork: Start,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if variable:
        monkeypatch.setenv(variable, "changed")
    process = fork(SLEEP, *options)
    wait_for(lambda: (tmp_path / "out").read_text() == "up\n", SECONDS)
    assert command_of(process) == ["-m", PROGRAM, SLEEP, *options]


def test_it_has_the_files_the_environment_and_the_words_of_its_start(
    fork: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MESH_DEVICE", "T3K")
    says = (
        "import os, sys;"
        "print(sys.argv[2:], sys.stdin.read(), os.environ['MESH_DEVICE']);"
        "print(__name__, os.listdir('/proc/self/fd'), file=sys.stderr);"
        "sys.exit(7)"
    )
    fork(SLEEP)
    assert fork(says, "a", "b").wait(SECONDS) == 7
    assert (tmp_path / "out").read_text() == "['a', 'b']  T3K\n"
    # 3 is the directory that is being read.
    expected = "__main__ ['0', '1', '2', '3']\n"
    assert (tmp_path / "err").read_text() == expected


def test_it_runs_where_it_was_started(
    fork: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3]))
    assert fork("import os; print(os.getcwd())").wait(SECONDS) == 0
    assert (tmp_path / "out").read_text() == f"{tmp_path}\n"


def test_an_error_is_told_as_ever(fork: Start, tmp_path: Path) -> None:
    assert fork("1 / 0").wait(SECONDS) == 1
    assert "ZeroDivisionError: division by zero" in (tmp_path / "err").read_text()


def test_forks_draw_differently(fork: Start, tmp_path: Path) -> None:
    drawn = set()
    for _ in range(2):
        assert fork("import random; print(random.random())").wait(SECONDS) == 0
        drawn.add((tmp_path / "out").read_text())
    assert len(drawn) == 2


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_signal_becomes_its_status(
    number: signal.Signals, fork: Start, tmp_path: Path
) -> None:
    process = fork(SLEEP)
    wait_for(lambda: (tmp_path / "out").read_text() == "up\n", SECONDS)
    assert process.poll() is None
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.01)
    process.send_signal(number)
    assert process.wait(SECONDS) == process.poll() == process.returncode == -number
    process.send_signal(number)  # nobody gets it


def test_a_stopped_one_goes_on_and_can_be_killed(fork: Start) -> None:
    process = fork(SLEEP)
    process.send_signal(signal.SIGSTOP)
    wait_for(lambda: state_of(process.pid) == "T", SECONDS)
    assert process.poll() is None
    process.send_signal(signal.SIGCONT)
    wait_for(lambda: state_of(process.pid) != "T", SECONDS)
    process.send_signal(signal.SIGSTOP)
    process.kill()
    assert process.wait(SECONDS) == -signal.SIGKILL


def test_forks_end_with_the_prepared_process(fork: Start) -> None:
    prepared = Prepared(PROGRAM)
    process = fork(SLEEP, by=prepared)
    assert state_of(process.pid) not in ("", "Z")
    prepared.process.kill()
    assert process.wait(SECONDS) == -signal.SIGKILL
    prepared.close()
    wait_for(lambda: state_of(process.pid) in ("", "Z"), SECONDS)


def test_nothing_outlives_an_owner_that_is_killed() -> None:
    owner = (
        "from tests.support.prepared import Prepared\n"
        f"prepared = Prepared({PROGRAM!r})\n"
        f"fork = prepared.fork([{SLEEP!r}], 1, 2)\n"
        "print(prepared.process.pid, fork.pid, flush=True)\n"
        "fork.wait()"
    )
    command = [sys.executable, "-c", owner]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = {process.stdout.readline().strip() for _ in range(2)}
        process.kill()
    (pids,) = lines - {"up"}
    left = [int(pid) for pid in pids.split()]
    wait_for(lambda: {state_of(pid) for pid in left} <= {"", "Z"}, SECONDS)
