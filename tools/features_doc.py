"""Writes docs/FEATURES.md and docs/EDGES.md: what is promised, and what shows it.

    python tools/features_doc.py            write them anew
    python tools/features_doc.py --check    fail when they are wrong or out of date

The rows stand in tests/tables/*.toml. A test names the rows that it shows with
`@pytest.mark.feature(58, 59)` or `@pytest.mark.edge(12, "42b")`; the marks are
read from the sources, so nothing is imported or run.
"""

from __future__ import annotations

import argparse
import ast
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import tomllib

ROOT = Path(__file__).parents[1]
NOT_YET = "not yet"
UNPROVEN = ("by design", "needs hardware", NOT_YET)
"""States that a row may have without a test."""

_NOT_ALWAYS_RUN = frozenset({"skip", "skipif", "slow", "xfail"})


@dataclass(frozen=True, slots=True)
class Table:
    """One document. `marker` ties tests to rows; `proven` is the state of a row
    that a test shows.
    """

    marker: str
    proven: str
    heading: str

    def rows(self, root: Path) -> list[Row]:
        """The rows, in their order."""
        source = root / "tests" / "tables" / f"{self.marker}s.toml"
        sections = tomllib.loads(source.read_text())
        return [
            Row(number, section, **{"state": self.proven} | entry)
            for section, entries in sections.items()
            for number, entry in entries.items()
        ]

    def document(self, root: Path) -> Path:
        """Where the table is written."""
        return root / "docs" / f"{self.marker.upper()}S.md"


FEATURES = Table(
    "feature",
    "works",
    """\
# Features

Written by tools/features_doc.py from tests/tables/features.toml and the marks of
the tests; do not edit. `works`: the tests named here show it, and `make test` runs
them. `by design`: it cannot occur in ttserve, for the reason given. `needs
hardware`: built, but only a Tenstorrent mesh can show it. `not yet`: not built.
""",
)
EDGES = Table(
    "edge",
    "guarded",
    """\
# Sharp edges

Written by tools/features_doc.py from tests/tables/edges.toml and the marks of the
tests; do not edit. Each row is a way in which a server of this kind has failed.
`guarded`: the tests named here would fail if it did so again. `by design`: it
cannot occur in ttserve, for the reason given. `needs hardware`, `not yet`: what it
is about can be shown on a Tenstorrent mesh only, or is not built.
""",
)
TABLES = (FEATURES, EDGES)


@dataclass(frozen=True, slots=True)
class Row:
    """What is promised, in which state it is, and why where no test says so."""

    number: str
    section: str
    title: str
    state: str
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Mark:
    """A test that shows a row. `always`: `make test` runs it wherever it runs."""

    marker: str
    number: str
    file: str
    test: str
    always: bool


class MarkError(Exception):
    """A mark that cannot be read, with its file and line."""


# -- marks -----------------------------------------------------------------------


def read_marks(root: Path) -> list[Mark]:
    """All marks below tests/, by file and line. Raises MarkError."""
    tests = root / "tests"
    marks: list[Mark] = []
    for path in sorted(tests.rglob("test_*.py")):
        text = path.read_text()
        if any(f"pytest.mark.{table.marker}" in text for table in TABLES):
            marks += _of_file(ast.parse(text), path.relative_to(tests).as_posix())
    return marks


def _of_file(module: ast.Module, file: str) -> Iterator[Mark]:
    """Marks of decorators, parameter sets in them, and of `pytestmark`."""
    taken: set[ast.Call] = set()
    for test, nodes in _marked(module):
        always = _NOT_ALWAYS_RUN.isdisjoint(_names(nodes))
        for call in _calls(nodes):
            taken.add(call)
            for number in _numbers(call, file):
                yield Mark(_name(call), number, file, test, always)
    for call in _calls([module]):
        if call not in taken:
            raise MarkError(f"tests/{file}:{call.lineno}: marks no test")


def _marked(module: ast.Module) -> Iterator[tuple[str, list[ast.expr]]]:
    """Tests with their decorators; "" stands for the whole file."""
    for node in ast.walk(module):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                if node.name.startswith("test"):
                    yield node.name, node.decorator_list
            case ast.Assign(targets=[ast.Name(id="pytestmark")]):
                yield "", [node.value]


def _calls(nodes: list[ast.expr] | list[ast.Module]) -> Iterator[ast.Call]:
    markers = {table.marker for table in TABLES}
    for root in nodes:
        for node in ast.walk(root):
            if isinstance(node, ast.Call) and _name(node) in markers:
                yield node


def _names(nodes: list[ast.expr]) -> set[str]:
    """The marks of a test itself, not those of single parameter sets."""
    listed = [
        item
        for node in nodes
        for item in (node.elts if isinstance(node, ast.List) else [node])
    ]
    return {
        _mark_name(node.func if isinstance(node, ast.Call) else node) for node in listed
    }


def _name(call: ast.Call) -> str:
    return _mark_name(call.func)


def _mark_name(node: ast.AST) -> str:
    match node:
        case ast.Attribute(
            value=ast.Attribute(value=ast.Name(id="pytest"), attr="mark"), attr=name
        ):
            return name
    return ""


def _numbers(call: ast.Call, file: str) -> list[str]:
    numbers = [
        argument.value
        for argument in call.args
        if isinstance(argument, ast.Constant) and isinstance(argument.value, int | str)
    ]
    if len(numbers) != len(call.args) or not numbers or call.keywords:
        raise MarkError(f"tests/{file}:{call.lineno}: takes row numbers, literally")
    return [str(number) for number in numbers]


# -- the tables --------------------------------------------------------------------


def problems(root: Path) -> list[str]:
    """A line for everything that a reader of the documents could not rely on."""
    try:
        marks = read_marks(root)
    except MarkError as error:
        return [str(error)]
    return [line for table in TABLES for line in _problems(table, root, marks)]


def _problems(table: Table, root: Path, marks: list[Mark]) -> Iterator[str]:
    rows = {row.number: row for row in table.rows(root)}
    own = [mark for mark in marks if mark.marker == table.marker]
    for mark in own:
        if mark.number not in rows:
            yield (
                f"tests/{mark.file} {mark.test}: there is no {table.marker} "
                f"{mark.number}"
            )
    proven = {mark.number for mark in own if mark.always}
    for row in rows.values():
        if line := _problem(row, table, proven):
            yield f"{table.marker} {row.number} ({row.title}): {line}"
    document = table.document(root)
    if not document.is_file() or document.read_text() != render(table, root, marks):
        yield f"{document.name} is out of date: run python tools/features_doc.py"


def _problem(row: Row, table: Table, proven: set[str]) -> str:
    if row.state not in (table.proven, *UNPROVEN):
        return f"{row.state!r} is no state"
    if row.state == table.proven and row.number not in proven:
        return "no test that `make test` runs is marked with it"
    if row.state == NOT_YET and row.number in proven:
        return f"has a test, so take its state {NOT_YET!r} out of the table"
    if row.state == "by design" and not row.remark:
        return "by design needs the reason as its remark"
    return ""


def render(table: Table, root: Path, marks: list[Mark]) -> str:
    """The document of a table."""
    lines = [table.heading]
    section = ""
    for row in table.rows(root):
        if row.section != section:
            section = row.section
            head = f"| number | {table.marker} | state | tests | remark |"
            lines += [f"## {section}", "", head, f"|{' --- |' * 5}"]
        shown = ", ".join(_links(row, table.marker, marks))
        cells = (row.number, row.title, row.state, shown, row.remark)
        lines.append("|" + "".join(f" {cell} |" if cell else " |" for cell in cells))
    return _with_blank_lines(lines)


def _links(row: Row, marker: str, marks: list[Mark]) -> list[str]:
    """Each test once, in the order of the files."""
    links = {
        f"[{mark.test.removeprefix('test_') or Path(mark.file).stem}]"
        f"(../tests/{mark.file})": None
        for mark in marks
        if (mark.marker, mark.number) == (marker, row.number)
    }
    return list(links)


def _with_blank_lines(lines: list[str]) -> str:
    """A blank line before each heading of a section."""
    spaced = [f"\n{line}" if line.startswith("## ") else line for line in lines]
    return "\n".join(spaced).replace("\n\n\n", "\n\n").rstrip() + "\n"


def _counts(table: Table, rows: list[Row]) -> str:
    states: Mapping[str, int] = {
        state: sum(row.state == state for row in rows)
        for state in (table.proven, *UNPROVEN)
    }
    return f"{table.marker}s: " + ", ".join(f"{n} {s}" for s, n in states.items())


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true")
    if not parser.parse_args().check:
        marks = read_marks(ROOT)
        for table in TABLES:
            table.document(ROOT).write_text(render(table, ROOT, marks))
            print(_counts(table, table.rows(ROOT)))
    if found := problems(ROOT):
        sys.exit("\n".join(found))


if __name__ == "__main__":
    main()
