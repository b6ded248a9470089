"""The table of flags says what the commands' own parsers say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parents[4] / "tools" / "flag_table.py"


def test_the_table_is_up_to_date() -> None:
    check = subprocess.run(
        [sys.executable, str(TOOL), "--check"], capture_output=True, text=True
    )
    assert check.returncode == 0, check.stderr
