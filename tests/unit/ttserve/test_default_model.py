"""One complete directory, whoever asks at the same time and whoever dies."""

from __future__ import annotations

import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from ttserve.default_model import Converter, Progress, ensure_model_dir, run_converter
from ttserve.errors import StartupError

WAIT_SECONDS = 30.0


def say_nothing(line: str) -> None:
    """A progress that nobody reads."""


def write_model(partial: Path, progress: Progress) -> None:
    """Stands for the real conversion, which takes half a minute."""
    (partial / "config.json").write_text("{}")
    (partial / "model.safetensors").write_bytes(b"weights")


def wait_until(condition: Callable[[], bool]) -> None:
    """Poll; fails the test if it never becomes true."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)


def contents(directory: Path) -> list[str]:
    return sorted(file.name for file in directory.iterdir())


def test_it_is_made_once(tmp_path: Path) -> None:
    directory = tmp_path / "models" / "1" / "model"
    lines: list[str] = []
    assert ensure_model_dir(directory, write_model, lines.append) == directory
    assert contents(directory) == ["config.json", "model.safetensors"]
    assert lines[0].startswith("converting")

    def fail(partial: Path, progress: Progress) -> None:
        raise AssertionError("converted again")

    lines.clear()
    assert ensure_model_dir(directory, fail, lines.append) == directory
    assert lines == []


def test_others_may_read_it(tmp_path: Path) -> None:
    def write_privately(partial: Path, progress: Progress) -> None:
        (partial / "model.safetensors").touch(mode=0o600)

    directory = ensure_model_dir(tmp_path / "model", write_privately, say_nothing)
    assert directory.stat().st_mode & 0o777 == 0o755
    assert (directory / "model.safetensors").stat().st_mode & 0o777 == 0o644


def test_of_two_at_once_one_converts_and_one_waits(tmp_path: Path) -> None:
    started, go_on = threading.Event(), threading.Event()
    conversions: list[Path] = []

    def convert(partial: Path, progress: Progress) -> None:
        conversions.append(partial)
        started.set()
        assert go_on.wait(WAIT_SECONDS)
        write_model(partial, progress)

    def ask(converter: Converter, lines: list[str]) -> threading.Thread:
        arguments = (tmp_path / "model", converter, lines.append)
        thread = threading.Thread(target=ensure_model_dir, args=arguments)
        thread.start()
        return thread

    first_lines: list[str] = []
    second_lines: list[str] = []
    first = ask(convert, first_lines)
    assert started.wait(WAIT_SECONDS)
    second = ask(convert, second_lines)
    wait_until(lambda: len(second_lines) == 1)
    assert "waiting" in second_lines[0]
    assert not (tmp_path / "model").exists()
    go_on.set()
    for thread in (first, second):
        thread.join(WAIT_SECONDS)
    assert len(conversions) == 1
    assert contents(tmp_path / "model") == ["config.json", "model.safetensors"]


def test_a_kill_half_way_leaves_nothing_that_matters(tmp_path: Path) -> None:
    """The next one takes the lock, clears the leftover and converts."""
    program = textwrap.dedent(
        """
        import sys, time
        from pathlib import Path
        from ttserve.default_model import ensure_model_dir

        def convert(partial, progress):
            (partial / "config.json").write_text("{}")
            print("half way", flush=True)
            time.sleep(600)

        ensure_model_dir(Path(sys.argv[1]), convert, lambda line: None)
        """
    )
    directory = tmp_path / "model"
    command = [sys.executable, "-c", program, str(directory)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "half way\n"
        process.send_signal(signal.SIGKILL)
    assert not directory.exists()
    assert len(list(tmp_path.glob("model.partial-*"))) == 1

    ensure_model_dir(directory, write_model, say_nothing)
    assert contents(directory) == ["config.json", "model.safetensors"]
    assert list(tmp_path.glob("model.partial-*")) == []


def test_a_failed_conversion_leaves_nothing(tmp_path: Path) -> None:
    def fail(partial: Path, progress: Progress) -> None:
        write_model(partial, progress)
        raise StartupError("the disk is full")

    with pytest.raises(StartupError, match="the disk is full"):
        ensure_model_dir(tmp_path / "model", fail, say_nothing)
    assert contents(tmp_path) == ["model.lock"]


def test_a_cache_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(StartupError, match="cannot make") as info:
        ensure_model_dir(tmp_path / "file" / "model", write_model, say_nothing)
    assert "\n" not in str(info.value)


def test_a_converter_tells_its_stages() -> None:
    lines: list[str] = []
    run_converter([sys.executable, "-c", "print('one'); print('two')"], lines.append)
    assert lines == ["one", "two"]


def test_a_converter_that_fails_is_one_line() -> None:
    program = "import sys; sys.exit('first\\nlast words')"
    with pytest.raises(StartupError, match="failed: last words$"):
        run_converter([sys.executable, "-c", program], say_nothing)


def test_a_converter_does_not_outlive_who_asked(tmp_path: Path) -> None:
    """Its stdin ends with the process that started it, even by SIGKILL."""
    ended = tmp_path / "ended"
    converter = (
        "import sys; print('up', flush=True); "
        f"sys.stdin.read(); open({str(ended)!r}, 'w')"
    )
    program = textwrap.dedent(
        f"""
        import sys
        from ttserve.default_model import run_converter
        command = [sys.executable, "-c", {converter!r}]
        run_converter(command, lambda line: print(line, flush=True))
        """
    )
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        process.send_signal(signal.SIGKILL)
    wait_until(ended.exists)
