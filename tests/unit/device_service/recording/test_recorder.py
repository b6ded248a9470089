"""What the flight recorder holds, what it does not, and what a replay says."""

from __future__ import annotations

import itertools
import os
import stat
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from device_service.codec.recording import encode
from device_service.codec.recording_entries import NotARecording, entries
from device_service.codec.recording_file import decode
from device_service.mesh.sim import SimMesh
from device_service.recording.picture import EnginePicture
from device_service.recording.recorder import (
    FEWEST_STEPS,
    RECORDING,
    STRETCHES,
    Recorder,
    Recording,
)
from device_service.recording_files import MOST_FILES, write_recording
from device_service.records import FinishKind
from device_service.replay.run import replay
from device_service.replay.show import as_object, detail, report
from device_service.scheduling.interleave import InterleaveConfig
from tests.support.rig import Rig
from tests.unit.device_service.conftest import RigMaker

SECRET = [201, 77, 133, 92, 250, 61, 7, 188]


def taken(rig: Rig) -> Recording:
    recording = rig.engine.recording("rpc")
    assert recording is not None
    return recording


def through_a_file(recording: Recording) -> Recording:
    return decode(encode(recording))


def mixed_traffic(rig: Rig) -> None:
    """Prompts in chunks that arrive while others decode."""
    for number in range(8):
        rig.submit([number + 1] * (40 + 9 * number), max_tokens=12)
        rig.run(steps=3)
    rig.run()


def varints(numbers: list[int]) -> bytes:
    """Numbers as packed protobuf fields hold them."""
    packed = b""
    for number in numbers:
        while number > 0x7F:
            packed += bytes([number & 0x7F | 0x80])
            number >>= 7
        packed += bytes([number])
    return packed


# -- what is in it ---------------------------------------------------------


def test_no_token_and_no_hash_of_one_is_in_the_file(make_rig: RigMaker) -> None:
    rig = make_rig(async_scheduling=True, site={"mode": "all"})
    stream = rig.submit(SECRET * 12, max_tokens=24)
    rig.run()
    output = stream.token_ids
    assert len(output) == 24
    data = encode(taken(rig))
    for tokens in (SECRET, output[:8]):
        assert varints(tokens) not in data
        assert bytes(tokens) not in data
        for size in (2, 4, 8):
            assert b"".join(t.to_bytes(size, "little") for t in tokens) not in data
    hashes = stream.request.block_hashes
    assert len(hashes) == 7  # 119 of 120 tokens are computed, 16 in a block
    assert not any(block_hash[:8] in data for block_hash in hashes)


def test_prefix_hits_on_outputs_replay(make_rig: RigMaker) -> None:
    """A second turn hits what the first one said, which the file does not tell."""
    rig = make_rig()
    first = rig.submit([5] * 40, max_tokens=40)
    rig.run()
    second = rig.submit([5] * 40 + first.token_ids + [6] * 10, max_tokens=4)
    rig.run()
    assert second.prefill is not None
    assert second.prefill.cached_tokens == 64
    replayed = replay(through_a_file(taken(rig)))
    assert replayed.difference is None
    starts = [row.start_position for row in replayed.steps[40].lanes[0].rows]
    assert starts == [64]


def test_the_ring_holds_the_newest_steps_and_no_more(make_rig: RigMaker) -> None:
    rig = make_rig(step_ring=64)
    for _ in range(6):
        rig.generate([1, 2, 3], max_tokens=100)
        held = taken(rig).steps
        assert held[-1].number == rig.records[-1].number
        numbers = [step.number for step in held]
        assert numbers == list(range(numbers[0], numbers[-1] + 1))
        assert len(held) <= 64 + 64 // STRETCHES * 2
    assert len(held) >= 64


def test_the_ring_is_bounded_in_bytes(make_rig: RigMaker) -> None:
    """Few steps fit, however many are wanted."""
    rig = make_rig()
    mixed_traffic(rig)
    whole = taken(rig)
    pictures: list[int] = []

    def camera() -> EnginePicture:
        pictures.append(1)
        return whole.picture

    recorder = Recorder(whole.setup, camera, 4096, max_bytes=80_000)
    for step in whole.steps * 20:
        recorder.standing()
        recorder.step(step)
    kept = recorder.recording("rpc")
    assert kept is not None
    assert 20 < len(kept.steps) < 100
    assert len(pictures) < 20 * len(whole.steps) / 5  # not one after every step


def test_a_recording_can_be_had_of_an_engine_that_hangs(make_rig: RigMaker) -> None:
    rig = make_rig(mesh_options={"sim": {"hang_step": 4}})
    rig.submit([1, 2, 3], max_tokens=9)
    rig.engine.start()
    while steps_so_far(rig) < 3:
        time.sleep(0.01)
    recording = through_a_file(taken(rig))
    assert isinstance(rig.mesh, SimMesh)
    rig.mesh.release()
    rig.engine.stop()
    assert rig.engine.join(30)
    replayed = replay(recording)
    assert replayed.difference is None
    assert replayed.running is not None
    assert (replayed.running.step, replayed.running.rows) == (4, 1)
    assert "step 4 of 1 rows was not finished" in report(replayed)


def steps_so_far(rig: Rig) -> int:
    recording = rig.engine.recording("rpc")
    return 0 if recording is None else len(recording.steps)


def test_an_endless_overlap_is_interrupted_for_a_picture(make_rig: RigMaker) -> None:
    """Nothing arrives and nothing ends: no moment comes by itself."""
    rig = make_rig(async_scheduling=True, site={"mode": "all"}, step_ring=64)
    rig.submit([1, 2, 3], max_tokens=300)
    rig.run()
    recording = through_a_file(taken(rig))
    assert recording.picture.last_number > 150
    assert recording.picture.sequences
    overlapped = [it.overlap.overlap for it in recording.steps]
    interrupted = [it.number for it in recording.steps if it.overlap == RECORDING]
    assert 1 <= len(interrupted) <= len(recording.steps) // (2 * FEWEST_STEPS) + 1
    assert sum(overlapped) >= len(overlapped) - len(interrupted) - 2
    assert replay(recording).difference is None


# -- how engines end -------------------------------------------------------


@pytest.mark.parametrize(
    ("faults", "ends_with"),
    [
        ({"poison_step": 5}, "MeshPoisoned"),
        ({"fail_steps": [4, 5]}, "SimStepFailed"),
    ],
)
def test_what_ended_an_engine_ends_its_replay(
    make_rig: RigMaker, faults: dict[str, object], ends_with: str
) -> None:
    """One row: the second request begins when the first one's step has failed."""
    rig = make_rig(rows=1, mesh_options={"sim": faults})
    for _ in range(2):
        rig.submit([1, 2, 3], max_tokens=20)
    rig.engine.start()
    error = rig.engine.died.exception(timeout=60)
    assert type(error).__name__ == ends_with
    recording = through_a_file(taken(rig))
    assert recording.end is not None
    assert recording.end.poisoned == (ends_with == "MeshPoisoned")
    replayed = replay(recording)
    assert replayed.difference is None
    assert [bool(step.error) for step in replayed.steps].count(True) == len(
        [step for step in recording.steps if step.error]
    )
    assert f"the engine had ended: {ends_with}" in report(replayed)


# -- a replay that differs -------------------------------------------------


@pytest.fixture
def interleaved(make_rig: RigMaker) -> Iterator[Recording]:
    rig = make_rig(
        rows=2, max_num_batched_tokens=32, interleave=InterleaveConfig(True, 2, 1)
    )
    mixed_traffic(rig)
    yield through_a_file(taken(rig))


def test_another_rule_shows_where_it_decides_otherwise(
    interleaved: Recording,
) -> None:
    turned_off = InterleaveConfig(enabled=False)
    setup = replace(interleaved.setup, interleave=turned_off)
    inserted = next(
        it.number for it in interleaved.steps if it.phase_reason == "interleave"
    )
    replayed = replay(replace(interleaved, setup=setup))
    assert replayed.difference is not None
    assert replayed.difference.step == inserted
    assert replayed.difference.what == "phase"
    assert replayed.difference.recorded == "decode"
    assert replayed.difference.replayed == "prefill"
    lines = report(replayed).splitlines()
    assert f"step {inserted} differs: phase" in lines
    assert "  recorded: decode" in lines
    assert "  replayed: prefill" in lines
    assert any(line.startswith(f"  {inserted - 1} prefill") for line in lines)
    assert "    replayed: prefill" in detail(replayed, inserted)
    assert as_object(replayed)["equal"] is False


def test_a_missing_arrival_is_noticed(interleaved: Recording) -> None:
    fewer = tuple(interleaved.events[:-1])
    replayed = replay(replace(interleaved, events=fewer))
    assert replayed.difference is not None


def test_a_row_that_should_have_gone_on_is_noticed(interleaved: Recording) -> None:
    """The last but one row that ended is said to have ended by itself earlier."""
    place, step = next(
        (place, it)
        for place, it in enumerate(interleaved.steps)
        if it.phase.value == "decode" and not it.lanes[0].rows[0].finish_reason
    )
    lane = step.lanes[0]
    stopped = lane.rows[0]._replace(finish_reason=FinishKind.STOP.value)
    other = replace(
        step, lanes=(replace(lane, rows=(stopped, *lane.rows[1:])), *step.lanes[1:])
    )
    steps = (*interleaved.steps[:place], other, *interleaved.steps[place + 1 :])
    replayed = replay(replace(interleaved, steps=steps))
    assert replayed.difference is not None
    assert replayed.difference.step > step.number


# -- files -----------------------------------------------------------------


def test_files_are_private_whole_and_few(
    interleaved: Recording, tmp_path: Path
) -> None:
    directory = tmp_path / "deep" / "recordings"
    written = [
        write_recording(directory, replace(interleaved, unix_seconds=1e9 + number))
        for number in range(MOST_FILES + 3)
    ]
    assert sorted(directory.iterdir()) == written[3:]
    newest = written[-1]
    assert stat.S_IMODE(newest.stat().st_mode) == 0o600
    assert newest.name.startswith("20010909T014658.000Z-")
    assert decode(newest.read_bytes()).steps == interleaved.steps


def test_a_file_that_cannot_be_replaced_leaves_nothing(
    interleaved: Recording, tmp_path: Path
) -> None:
    broken = replace(interleaved, steps=(None,))  # type: ignore[arg-type]
    with pytest.raises(AttributeError):
        write_recording(tmp_path, broken)
    assert list(tmp_path.iterdir()) == []


def test_what_a_killed_process_had_begun_is_removed(
    interleaved: Recording, tmp_path: Path
) -> None:
    path = write_recording(tmp_path, interleaved)
    begun, writing = (tmp_path / f".{path.name}.{end}" for end in ("begun", "writing"))
    begun.touch()
    writing.touch()
    os.utime(begun, (0, 0))
    newer = write_recording(tmp_path, replace(interleaved, unix_seconds=2e9))
    assert {*tmp_path.iterdir()} == {path, newer, writing}


@pytest.mark.parametrize("data", [b"", b"\x00", b"{}", b"GIF89a" * 20, b"\xff" * 64])
def test_other_files_are_no_recordings(data: bytes) -> None:
    with pytest.raises(NotARecording, match="this is no recording"):
        list(entries(data))


def test_a_file_that_is_cut_short(interleaved: Recording) -> None:
    data = encode(interleaved)
    for end in itertools.chain(range(len(data) - 1, len(data) - 40, -7), [1000]):
        with pytest.raises(NotARecording, match="cut short"):
            decode(data[:end])
