"""Every recording in tests/recordings replays (docs/RECORDINGS.md)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from device_service.codec.recording import encode
from device_service.codec.recording_file import decode
from device_service.recording.recorder import Recording
from device_service.replay.__main__ import main
from device_service.replay.run import replay
from device_service.replay.show import report

DIRECTORY = Path(__file__).resolve().parents[3] / "recordings"
LANES = DIRECTORY / "four-lanes-overlap-preemption.ttrec"


def read(path: Path) -> Recording:
    return decode(path.read_bytes())


@pytest.mark.parametrize(
    "path", sorted(DIRECTORY.glob("*.ttrec")), ids=lambda path: path.stem
)
def test_it_replays(path: Path) -> None:
    replayed = replay(read(path))
    assert replayed.difference is None, report(replayed)
    assert len(replayed.steps) == len(replayed.recording.steps)


def test_the_one_with_lanes_holds_what_its_name_says() -> None:
    recording = read(LANES)
    assert recording.setup.lanes == 4
    assert recording.picture.last_number > 0
    assert any(it.row is not None for it in recording.picture.sequences)
    assert sum(bool(step.preempted) for step in recording.steps) >= 5
    assert sum(step.overlap.overlap for step in recording.steps) >= 40
    reasons = {step.phase_reason for step in recording.steps}
    assert reasons >= {"interleave", "prefill_stuck", "prefill_pending"}


# -- the command -----------------------------------------------------------


def test_print_shows_every_part(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(LANES), "--print"]) == 0
    parts = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    kinds = [next(iter(part)) for part in parts]
    assert (kinds[0], kinds[1], kinds[-1]) == ("header", "picture", "end")
    recording = read(LANES)
    assert kinds.count("step") == len(recording.steps)
    assert kinds.count("event") == len(recording.events)


def test_json_and_status_of_an_equal_replay(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([str(LANES), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["equal"] is True
    assert result["difference"] is None
    assert result["replayed_steps"] == result["steps"] == len(read(LANES).steps)


def test_one_step_in_detail(capsys: pytest.CaptureFixture[str]) -> None:
    recording = read(LANES)
    step = next(it for it in recording.steps if it.preempted)
    assert main([str(LANES), "--step", str(step.number)]) == 0
    output = capsys.readouterr().out
    assert f"step {step.number}\n" in output
    assert f"preempted: {step.preempted[0]}" in output


def test_a_difference_is_status_1(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recording = read(LANES)
    place = len(recording.steps) // 2
    steps = (*recording.steps[:place], *recording.steps[place + 1 :])
    path = tmp_path / "other.ttrec"
    changed = Recording(
        setup=recording.setup,
        picture=recording.picture,
        first_look=recording.first_look,
        last_look=recording.last_look,
        events=recording.events,
        steps=steps,
        unix_seconds=recording.unix_seconds,
        reason=recording.reason,
    )
    path.write_bytes(encode(changed))
    assert main([str(path)]) == 1
    assert "differs" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "arguments", "says"),
    [
        (None, [], "No such file or directory"),
        (b"# text", [], "this is no recording"),
        (LANES.read_bytes()[:500], [], "the recording is cut short"),
        (LANES.read_bytes(), ["--step", "9"], "it has no step 9; it holds 194 to 347"),
    ],
)
def test_what_cannot_be_replayed_is_one_line(
    content: bytes | None,
    arguments: list[str],
    says: str,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    path = tmp_path / "it.ttrec"
    if content is not None:
        path.write_bytes(content)
    assert main([str(path), *arguments]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line == f"tt-replay: error: {path}: {says}"
