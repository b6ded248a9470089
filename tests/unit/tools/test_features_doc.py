"""What the generator of the feature table takes for a proof, and what it rejects."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tools.features_doc import FEATURES, TABLES, MarkError, problems, read_marks, render

HEAD = "import pytest\n\n"
Repository = Callable[[str, str], Path]


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    """Writes a repository of one table and one file of tests."""

    def make(rows: str, tests: str) -> Path:
        (tmp_path / "docs").mkdir(exist_ok=True)
        tables = tmp_path / "tests" / "tables"
        tables.mkdir(parents=True, exist_ok=True)
        (tables / "features.toml").write_text(f"[Part]\n{rows}\n")
        (tables / "edges.toml").write_text("")
        (tmp_path / "tests" / "test_it.py").write_text(HEAD + tests)
        return tmp_path

    return make


def write_documents(root: Path) -> None:
    for table in TABLES:
        table.document(root).write_text(render(table, root, read_marks(root)))


@pytest.mark.parametrize(
    ("tests", "found"),
    [
        ("@pytest.mark.feature(1)\ndef test_a(): ...", [("1", "test_a", True)]),
        ("@pytest.mark.feature(1)\nasync def test_a(): ...", [("1", "test_a", True)]),
        (
            "@pytest.mark.feature(1, '2b')\ndef test_a(): ...",
            [("1", "test_a", True), ("2b", "test_a", True)],
        ),
        (
            "@pytest.mark.slow\n@pytest.mark.feature(1)\ndef test_a(): ...",
            [("1", "test_a", False)],
        ),
        (
            "@pytest.mark.skipif(True, reason='x')\n@pytest.mark.feature(1)\n"
            "def test_a(): ...",
            [("1", "test_a", False)],
        ),
        (
            "@pytest.mark.parametrize('x', [pytest.param(1, "
            "marks=pytest.mark.feature(3))])\ndef test_a(x): ...",
            [("3", "test_a", True)],
        ),
        ("pytestmark = pytest.mark.feature(4)", [("4", "", True)]),
        (
            "pytestmark = [pytest.mark.slow, pytest.mark.feature(4)]",
            [("4", "", False)],
        ),
        ("@pytest.mark.model\ndef test_a(): ...", []),
    ],
)
def test_marks_are_read(
    repository: Repository, tests: str, found: list[tuple[str, str, bool]]
) -> None:
    marks = read_marks(repository("", tests))
    assert [(mark.number, mark.test, mark.always) for mark in marks] == found


@pytest.mark.parametrize(
    ("tests", "says"),
    [
        ("@pytest.mark.feature(ONE)\ndef test_a(): ...", "test_it.py:3: takes row"),
        ("@pytest.mark.feature()\ndef test_a(): ...", "literally"),
        ("@pytest.mark.feature(1)\ndef helper(): ...", "test_it.py:3: marks no test"),
        ("TABLE = [pytest.mark.feature(1)]", "marks no test"),
    ],
)
def test_marks_that_cannot_be_read(
    repository: Repository, tests: str, says: str
) -> None:
    with pytest.raises(MarkError, match=says):
        read_marks(repository("", tests))


MARKED = "@pytest.mark.feature(1)\ndef test_a(): ..."
SLOW = f"@pytest.mark.slow\n{MARKED}"


@pytest.mark.parametrize(
    ("row", "tests", "says"),
    [
        ("1 = { title = 'x' }", "", "feature 1 (x): no test"),
        ("1 = { title = 'x' }", SLOW, "no test that `make test` runs"),
        ("1 = { title = 'x', state = 'not yet' }", MARKED, "has a test"),
        ("1 = { title = 'x', state = 'done' }", "", "'done' is no state"),
        ("1 = { title = 'x', state = 'by design' }", "", "needs the reason"),
        ("2 = { title = 'x', state = 'not yet' }", MARKED, "there is no feature 1"),
    ],
)
def test_what_a_table_must_not_claim(
    repository: Repository, row: str, tests: str, says: str
) -> None:
    root = repository(row, tests)
    write_documents(root)
    [problem] = problems(root)
    assert says in problem


@pytest.mark.parametrize(
    ("row", "tests"),
    [
        ("1 = { title = 'x' }", MARKED),
        ("1 = { title = 'x', state = 'not yet' }", ""),
        ("1 = { title = 'x', state = 'not yet' }", SLOW),
        ("1 = { title = 'x', state = 'needs hardware' }", MARKED),
        ("1 = { title = 'x', state = 'by design', remark = 'why' }", MARKED),
    ],
)
def test_what_it_may_claim(repository: Repository, row: str, tests: str) -> None:
    root = repository(row, tests)
    write_documents(root)
    assert problems(root) == []


def test_a_document_that_lags_behind(repository: Repository) -> None:
    root = repository("1 = { title = 'x' }", MARKED)
    write_documents(root)
    repository("1 = { title = 'y' }", MARKED)
    assert problems(root) == [
        "FEATURES.md is out of date: run python tools/features_doc.py"
    ]


def test_a_row_of_the_document(repository: Repository) -> None:
    root = repository(
        "1 = { title = 'x', remark = 'why' }\n2 = { title = 'y' }", MARKED
    )
    text = render(FEATURES, root, read_marks(root))
    assert "| 1 | x | works | [a](../tests/test_it.py) | why |\n" in text
    assert text.endswith("| 2 | y | works | | |\n")
