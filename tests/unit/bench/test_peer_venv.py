"""The peer shares our versions."""

from __future__ import annotations

from bench.peer_venv import CONSTRAINTS, shared_pins

TEXT = """\
# Words that are no heading, with a==b in them
# [torch] and what building needs
torch==2.13.0
# [vllm]
vllm==0.30.0
# [serve] requirements
numpy==2.3.5
# [test] tools
pytest==9.0
"""


def test_the_peer_gets_what_serving_needs_but_vllm() -> None:
    assert shared_pins(TEXT) == {"torch": "2.13.0", "numpy": "2.3.5"}


def test_the_constraints_file_has_the_shared_groups() -> None:
    pins = shared_pins(CONSTRAINTS.read_text(encoding="utf-8"))
    assert {"torch", "transformers", "numpy", "packaging"} <= set(pins)
    assert "vllm" not in pins
