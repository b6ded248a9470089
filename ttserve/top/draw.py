"""One picture of a `View`, as rich draws it. Pure.

Ids and names come from strangers: `plain` keeps what would steer a terminal out.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ttserve.step_words import PHASES, SITES, WAITING_REASONS
from ttserve.top.view import View
from ttserve.v1 import inspector_pb2

KEYS = "q quit   p pause   ← → lane: {lane}"
BAR = 16
_LANES = ("Lane>", "Rows", "Held>", "Waiting>", "KV blocks", "Used>", "Free>")
_SESSIONS = ("Session>", "Frontend", "Address", "Requests>", "Merged>", "Age>")
_QUEUE = ("Waiting", "Lane>", "For", "Tokens>", "Since>", "Session>")
_ROWS = (
    *("Row>", "Request", "Does", "Prompt>", "Output>", "Computed>"),
    *("Blocks>", "Preempted>", "Session>"),
)
_STEPS = (
    *("Step>", "Phase, why", "Rows>", "Tokens>", "Sampled, why", "Overlap, why"),
    *("Gap>", "Host>", "Device>", "Readback>", "Notes"),
)
_FIXED_LINES = 2
_SECTION_LINES = 2


@dataclass(frozen=True, slots=True)
class Frame:
    """Around the picture: the address, the lane that is shown (None: all), and
    whether the view stands still. `keys` adds a line that names the keys.
    """

    address: str
    lane: int | None = None
    paused: bool = False
    keys: bool = True


@dataclass(frozen=True, slots=True)
class _Section:
    """A table. It may take one in `part` of the lines that are left; columns whose
    name ends in ">" are aligned to the right.
    """

    part: int
    columns: Sequence[str]
    rows: Sequence[Sequence[str | Text]]


def draw(view: View, frame: Frame, height: int) -> RenderableType:
    """The picture in at most `height` lines, if that is enough for one per table."""
    lanes = [lane for lane in view.state.lanes if frame.lane in (None, lane.lane)]
    held = [row for lane in lanes for row in lane.rows]
    queued = [(lane, entry) for lane in lanes for entry in lane.waiting]
    steps = islice(_steps(view, frame.lane), height)
    sections = [
        _Section(3, _LANES, [_lane(lane, view) for lane in lanes]),
        _Section(4, _SESSIONS, [_session(one) for one in view.state.sessions]),
        _Section(4, _QUEUE, [_waiting(lane, entry) for lane, entry in queued]),
        _Section(2, _ROWS, [_row(row, view) for row in held]),
        _Section(1, _STEPS, [_step(step) for step in steps]),
    ]
    shown = [section for section in sections if section.rows]
    left = height - _FIXED_LINES - frame.keys - _SECTION_LINES * len(shown)
    parts: list[RenderableType] = [_headline(view, frame), _figures(view)]
    for section in shown:
        room = max(1, left // section.part)
        left -= min(room, len(section.rows))
        parts += [Text(""), _table(section, room)]
    if frame.keys:
        lane = "all" if frame.lane is None else frame.lane
        parts.append(Text(KEYS.format(lane=lane), style="reverse"))
    return Group(*parts)


def plain(text: str) -> str:
    """Without what a terminal would obey."""
    return "".join(sign if sign.isprintable() else "?" for sign in text)


def _table(section: _Section, room: int) -> Table:
    """Where a line is too short, text is cut before numbers are."""
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    for column in section.columns:
        name = column.rstrip(">")
        if column.endswith(">"):
            table.add_column(name, justify="right", no_wrap=True)
        else:
            table.add_column(Text(name, no_wrap=True, overflow="ellipsis"))
    for row in section.rows[:room]:
        table.add_row(*map(_one_line, row))
    return table


def _one_line(cell: str | Text) -> Text:
    """One line, cut with an ellipsis; a plain string would be read as markup."""
    text = Text(cell) if isinstance(cell, str) else cell
    text.no_wrap, text.overflow = True, "ellipsis"
    return text


def _headline(view: View, frame: Frame) -> Text:
    state = view.state
    line = Text.assemble(
        ("tt-top ", "bold"), f"{frame.address}  ", no_wrap=True, overflow="ellipsis"
    )
    if state.served_names:
        line.append(f"{plain(state.served_names[0])}  ", style="bold")
        line.append(f"up {_duration(state.uptime_seconds)}  ")
    if view.trouble:
        line.append(f"▲ {plain(view.trouble)}", style="red")
    else:
        line.append("● live", style="green")
    if state.paused:
        line.append("  engine paused", style="yellow")
    if frame.paused:
        line.append("  view paused", style="yellow")
    return line


def _figures(view: View) -> Text:
    rates, lanes = view.rates(), view.state.lanes
    total = sum(lane.total_blocks for lane in lanes)
    used = total - sum(lane.free_blocks for lane in lanes)
    figures = {
        "steps/s": f"{rates.steps:.1f}",
        "tokens/s": f"{rates.tokens:.0f}",
        "decode": _percent(rates.decode),
        "overlapped": _percent(rates.overlapped),
        "device-sampled": _percent(rates.device_sampled),
        "rows": f"{sum(len(lane.rows) for lane in lanes)}"
        f"/{sum(lane.total_rows for lane in lanes)}",
        "waiting": f"{sum(len(lane.waiting) for lane in lanes)}",
        "KV": _percent(used / total if total else None),
        "in flight": f"{view.state.steps_in_flight}",
        "grammars": f"{view.state.grammars}",
        "not shown": f"{view.lost}",
    }
    line = Text(no_wrap=True, overflow="ellipsis")
    for name, value in figures.items():
        line.append(f"{name} ", style="dim").append(f"{value}  ", style="bold")
    return line


def _lane(lane: inspector_pb2.LaneState, view: View) -> Sequence[str | Text]:
    letters = Text()
    held = {row.row - lane.lane * lane.total_rows: row for row in lane.rows}
    for number in range(lane.total_rows):
        row = held.get(number)
        does = "·" if row is None else (view.doing(row.request_id) or "?")[0].upper()
        letters.append(does, style={"P": "yellow", "D": "cyan"}.get(does, "dim"))
    used = lane.total_blocks - lane.free_blocks
    full = round(BAR * used / max(1, lane.total_blocks))
    bar = Text("█" * full, style="cyan").append("░" * (BAR - full), style="dim")
    return (
        f"{lane.lane}",
        letters,
        f"{len(lane.rows)}/{lane.total_rows}",
        f"{len(lane.waiting)}",
        bar,
        f"{used}",
        f"{lane.free_blocks}",
    )


def _session(session: inspector_pb2.SessionState) -> Sequence[str | Text]:
    return (
        f"{session.session_number}",
        plain(session.frontend_name),
        plain(session.peer),
        f"{session.live_requests}",
        f"{session.merged_steps}",
        _duration(session.age_seconds),
    )


def _waiting(
    lane: inspector_pb2.LaneState, entry: inspector_pb2.WaitingState
) -> Sequence[str | Text]:
    return (
        plain(entry.request_id),
        f"{lane.lane}",
        WAITING_REASONS.get(entry.reason, "unknown"),
        f"{entry.prompt_tokens}",
        _duration(entry.waited_ms / 1000),
        f"{entry.session_number}",
    )


def _row(row: inspector_pb2.RowState, view: View) -> Sequence[str | Text]:
    return (
        f"{row.row}",
        plain(row.external_request_id or row.request_id),
        view.doing(row.request_id),
        f"{row.prompt_tokens}",
        f"{row.output_tokens}",
        f"{row.computed_tokens}",
        f"{row.blocks}",
        f"{row.preemptions}",
        f"{row.session_number}",
    )


def _steps(view: View, lane: int | None) -> Iterable[inspector_pb2.StepRecord]:
    """Newest first."""
    for step in reversed(view.steps):
        if lane is None or any(one.lane == lane and one.rows for one in step.lanes):
            yield step


def _step(step: inspector_pb2.StepRecord) -> Sequence[str | Text]:
    notes = [step.error] if step.error else []
    notes += [f"{request_id} preempted" for request_id in step.preempted_request_ids]
    notes += [
        f"{row.external_request_id or row.request_id} ended: {row.finish_reason}"
        for lane in step.lanes
        for row in lane.rows
        if row.finish_reason
    ]
    times = (step.host_gap_us, step.host_us, step.device_us, step.readback_us)
    return (
        f"{step.number}",
        _why(PHASES.get(step.phase, "unknown"), step.phase_reason),
        "+".join(f"{len(lane.rows)}" for lane in step.lanes),
        f"{step.scheduled_tokens} → {step.produced_tokens}",
        _why(SITES.get(step.sampling_site, "unknown"), step.sampling_reason),
        _why("yes" if step.overlapped else "no", step.overlap_reason),
        *(f"{time / 1000:.2f}" for time in times),
        Text(plain("; ".join(notes)), style="red" if step.error else ""),
    )


def _why(what: str, why: str) -> Text:
    return Text.assemble(what, " ", (plain(why), "dim"))


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{100 * share:.0f}%"


def _duration(seconds: float) -> str:
    if seconds < 60:
        return f"{seconds:.0f} s"
    if seconds < 3600:
        return f"{seconds // 60:.0f} min"
    return f"{seconds / 3600:.1f} h"
