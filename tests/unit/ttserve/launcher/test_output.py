"""Bytes of pipes into lines with a speaker."""

from __future__ import annotations

import io
import json

import pytest

from ttserve.launcher.output import LONGEST_LINE, Console, LineAssembler


def lines_of(*chunks: bytes) -> list[str]:
    assembler = LineAssembler()
    shown = [line for chunk in chunks for line in assembler.feed(chunk)]
    return shown + assembler.rest()


@pytest.mark.parametrize(
    ("chunks", "lines"),
    [
        ([b"one\ntwo\n"], ["one", "two"]),
        ([b"on", b"e\ntw", b"o"], ["one", "two"]),
        ([b"\n\n"], ["", ""]),
        ([b""], []),
        ([b"dos\r", b"\nline\r\n"], ["dos", "line"]),
        (["é".encode()[:1], "é".encode()[1:] + b"\n"], ["é"]),
        (["🙂".encode()[:3]], ["\ufffd"]),
        ([b"\xff\n"], ["\ufffd"]),
        ([b"10%\r20%\r30%\n"], ["30%"]),
        ([b"\r10%\r20%\r\n"], ["20%"]),
    ],
)
def test_lines(chunks: list[bytes], lines: list[str]) -> None:
    assert lines_of(*chunks) == lines


def test_a_progress_bar_is_shown_once_a_second() -> None:
    now = 0.0
    assembler = LineAssembler(clock=lambda: now)
    shown: list[str] = []
    for percent in range(100):
        now = percent / 8
        shown += assembler.feed(f"\r{percent}%".encode())
    assert shown == [f"{percent}%" for percent in range(0, 99, 8)]
    assert assembler.feed(b"\n") == ["99%"]


def test_a_line_without_end_does_not_grow_for_ever() -> None:
    assembler = LineAssembler()
    shown = [
        line for _ in range(20) for line in assembler.feed(b"x" * (LONGEST_LINE // 8))
    ]
    assert sum(map(len, [*shown, *assembler.rest()])) == 20 * (LONGEST_LINE // 8)
    assert shown


def test_the_speakers_are_aligned() -> None:
    stream = io.BytesIO()
    console = Console(stream, ["device", "frontend0"], colour=False)
    console.show("device", ["loading", ""])
    console.show("frontend0", ["importing"])
    console.say("ready")
    assert stream.getvalue().decode().splitlines() == [
        "device   | loading",
        "device   |",
        "frontend0| importing",
        "tt-serve | ready",
    ]


def test_colour_marks_the_speaker_only() -> None:
    stream = io.BytesIO()
    Console(stream, ["device"], colour=True).show("device", ["loading"])
    assert stream.getvalue().endswith(b"device  |\033[0m loading\n")


def test_where_parts_log_json_every_line_is_an_object_that_names_its_part() -> None:
    stream = io.BytesIO()
    console = Console(stream, ["device"], colour=True, as_json=True)
    own = {"time": "2026-01-01T00:00:00+00:00", "message": "é", "process": "x"}
    console.show("device", [json.dumps(own), "a native library speaks", "", "[1]"])
    console.say("ready")
    lines = [json.loads(line) for line in stream.getvalue().decode().splitlines()]
    assert lines[0] == own | {"process": "device"}
    said = [(line["process"], line["message"]) for line in lines[1:]]
    assert said == [
        ("device", "a native library speaks"),
        ("device", "[1]"),
        ("tt-serve", "ready"),
    ]
    assert all(line.keys() >= {"time", "level", "logger"} for line in lines[1:])
