"""The result of a replay, for people and for programs."""

from __future__ import annotations

import time
from typing import Any

from device_service.recording import events
from device_service.records import StepRecord
from device_service.replay.decisions import Difference, Share, decisions, shares
from device_service.replay.run import Replayed

CONTEXT_STEPS = 3
"""Steps shown before one that differs."""

MOST_SHARES = 8
"""Rows shown of a difference."""

_WHY = {
    "fatal": "the engine died",
    "signal": "SIGUSR1",
    "rpc": "DumpRecording",
}


def report(replayed: Replayed) -> str:
    """What was replayed and how it went, in some lines."""
    lines = [_heading(replayed)]
    difference = replayed.difference
    if difference is None:
        lines.append(f"replayed {len(replayed.steps)} steps: every decision is equal")
    else:
        lines += _difference(replayed, difference)
    if replayed.running is not None:
        running = replayed.running
        lines.append(
            f"step {running.step} of {running.rows} rows was not finished when the "
            "recording was taken"
        )
    if replayed.recording.end is not None:
        lines.append(f"the engine had ended: {replayed.recording.end.error}")
    return "\n".join(lines)


def detail(replayed: Replayed, number: int) -> str:
    """One step, as it was recorded; and as it was replayed, if that differs."""
    first = replayed.recording.picture.last_number + 1
    recorded = {it.number: it for it in replayed.recording.steps}[number]
    again = {it.number: it for it in replayed.steps}.get(number)
    was = decisions(recorded, first=number == first)
    now = None if again is None else decisions(again, first=number == first)
    lines = [f"step {number}"]
    for what, value in was.items():
        lines.append(f"  {what}: {_value(value)}")
        if now is not None and now[what] != value:
            lines.append(f"    replayed: {_value(now[what])}")
    if now is None:
        lines.append("  the replay did not get here")
    return "\n".join(lines)


def as_object(replayed: Replayed) -> dict[str, Any]:
    """The result as JSON has it."""
    recording, difference = replayed.recording, replayed.difference
    steps = recording.steps
    return {
        "equal": difference is None,
        "reason": recording.reason,
        "unix_seconds": recording.unix_seconds,
        "steps": len(steps),
        "first_step": steps[0].number if steps else None,
        "last_step": steps[-1].number if steps else None,
        "requests": _requests(replayed),
        "replayed_steps": len(replayed.steps),
        "running_step": None if replayed.running is None else replayed.running.step,
        "engine_ended": None if recording.end is None else recording.end.error,
        "difference": difference
        and {
            "step": difference.step,
            "what": difference.what,
            "recorded": difference.recorded,
            "replayed": difference.replayed,
        },
    }


def _heading(replayed: Replayed) -> str:
    recording = replayed.recording
    steps, setup = recording.steps, recording.setup
    span = f" ({steps[0].number} to {steps[-1].number})" if steps else ""
    taken = time.strftime("%Y-%m-%d %H:%M:%SZ", time.gmtime(recording.unix_seconds))
    return (
        f"recording of {len(steps)} steps{span} and {_requests(replayed)} requests, "
        f"{setup.lanes} x {setup.rows} rows, taken {taken}: "
        f"{_WHY.get(recording.reason, recording.reason)}"
    )


def _requests(replayed: Replayed) -> int:
    recording = replayed.recording
    arrived = sum(
        len(seen.event.requests)
        for seen in recording.events
        if isinstance(seen.event, events.Arrivals)
    )
    return len(recording.picture.sequences) + arrived


def _difference(replayed: Replayed, difference: Difference) -> list[str]:
    before = [it for it in replayed.recording.steps if it.number < difference.step]
    lines = [f"step {difference.step} differs: {difference.what}"]
    lines += [f"  recorded: {it}" for it in _lines_of(difference.recorded)]
    lines += [f"  replayed: {it}" for it in _lines_of(difference.replayed)]
    if before:
        lines.append("equal before it:")
        lines += [f"  {_short(it)}" for it in before[-CONTEXT_STEPS:]]
    return lines


def _lines_of(value: object) -> list[str]:
    if isinstance(value, tuple) and value and isinstance(value[0], Share):
        lines = [_share(share) for share in value[:MOST_SHARES]]
        more = len(value) - MOST_SHARES
        return [*lines, f"and {more} more rows"] if more > 0 else lines
    return [_value(value)]


def _value(value: object) -> str:
    if isinstance(value, tuple):
        texts = [_share(it) if isinstance(it, Share) else str(it) for it in value]
        return ", ".join(texts) or "none"
    return str(value) if value != "" else "none"


def _share(share: Share) -> str:
    what = " chunk" if share.chunk else ""
    ended = f" ends: {share.finish}" if share.finish else ""
    return (
        f"lane {share.lane} row {share.row} {share.request_id} "
        f"[{share.start}, {share.start + share.tokens}){what}{ended}"
    )


def _short(step: StepRecord) -> str:
    overlap = "overlaps" if step.overlap.overlap else "drained"
    preempted = f", preempted {', '.join(step.preempted)}" if step.preempted else ""
    return (
        f"{step.number} {step.phase.value} ({step.phase_reason}), "
        f"{len(shares(step))} rows, {step.scheduled_tokens} tokens, "
        f"{overlap} ({step.overlap.reason}), {step.waiting} wait{preempted}"
    )
