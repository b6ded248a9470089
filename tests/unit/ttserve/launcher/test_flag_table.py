"""The table of flags says what the commands' own parsers say."""

from __future__ import annotations

from tools.flag_table import TABLE, render


def test_the_table_is_up_to_date() -> None:
    assert TABLE.read_text() == render(), "run python tools/flag_table.py"
