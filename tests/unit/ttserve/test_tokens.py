"""Tokens: from a file or not, several at a time, never shown."""

from __future__ import annotations

import logging
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Thread

import pytest

from ttserve.errors import StartupError
from ttserve.tokens import Tokens, bearer

SECRET = "s3cr3t-of-this-test"


def replace(file: Path, text: str) -> None:
    """As an orchestrator does: another file in its place."""
    new = file.with_suffix(".new")
    new.write_text(text)
    os.replace(new, file)


def test_every_line_opens_and_the_last_is_presented(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text(f"old\n\n  {SECRET}  \n")
    tokens = Tokens(file=file, source="--token-file")
    assert tokens
    assert tokens.accept("old")
    assert tokens.accept(SECRET)
    assert not tokens.accept("ol")
    assert not tokens.accept("")
    assert tokens.newest() == SECRET


def test_a_file_is_read_again_when_it_changes(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("old")
    tokens = Tokens(file=file, source="--token-file")
    replace(file, "new")
    assert tokens.accept("new")
    assert not tokens.accept("old")
    assert tokens.newest() == "new"


@pytest.mark.parametrize("bad", ["", "two words", "é"])
def test_a_file_gone_bad_changes_nothing_and_is_said_once(
    bad: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "tokens"
    file.write_text(SECRET)
    tokens = Tokens(file=file, source="--token-file")
    replace(file, bad)
    with caplog.at_level(logging.WARNING):
        assert tokens.accept(SECRET)
        assert tokens.accept(SECRET)
    (line,) = caplog.messages
    assert f"--token-file {file}" in line
    assert SECRET not in line
    file.unlink()
    assert tokens.accept(SECRET)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "No such file"),
        ("\n\n", "holds no token"),
        ("two words", "printable ASCII"),
        ("é", "not ASCII"),
    ],
)
def test_a_bad_file_is_one_line_that_shows_no_secret(
    text: str | None, says: str, tmp_path: Path
) -> None:
    file = tmp_path / "tokens"
    if text is not None:
        file.write_text(text)
    with pytest.raises(StartupError) as raised:
        Tokens(file=file, source="--token-file")
    line = str(raised.value)
    assert line.startswith(f"--token-file {file}: ")
    assert says in line
    assert "words" not in line


def test_unset_is_false_and_opens_nothing() -> None:
    tokens = Tokens([""])
    assert not tokens
    assert not tokens.accept("")
    assert tokens.newest() is None


def test_no_secret_in_a_representation() -> None:
    assert SECRET not in repr(Tokens([SECRET]))


@pytest.mark.parametrize(
    ("header", "token"),
    [
        ("Bearer a", "a"),
        ("bearer   a ", "a"),
        ("Basic a", ""),
        ("a", ""),
        ("", ""),
        ("Bearer", ""),
    ],
)
def test_bearer(header: str, token: str) -> None:
    assert bearer(header) == token


def test_a_pipe_is_read_once(tmp_path: Path) -> None:
    """Nobody may be there to write into it again, and who reads is an event loop."""
    pipe = tmp_path / "tokens"
    os.mkfifo(pipe)
    with ThreadPoolExecutor(1) as writer:
        written = writer.submit(pipe.write_text, SECRET)
        tokens = Tokens(file=pipe, source="--token-file")
        written.result(10)
    os.utime(pipe, (1, 1))
    accepted: list[bool] = []
    asking = Thread(target=lambda: accepted.append(tokens.accept(SECRET)), daemon=True)
    asking.start()
    asking.join(10)
    assert accepted == [True]
