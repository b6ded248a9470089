"""Checks of request bodies: what passes and what does not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from frontend.http.checks import RANGES, Served, checks
from frontend.http.errors import BadField

SERVED = Served(
    vocab_size=100,
    max_model_len=4096,
    max_logprobs=20,
    max_sequences=160,
    priorities=False,
    disable_any_whitespace=True,
)
CHECKS = checks(SERVED)
COMPLETION = CHECKS["/v1/completions"]
CHAT = CHECKS["/v1/chat/completions"]


def refused_field(check: Any, **fields: Any) -> str | None:
    try:
        check(fields)
    except BadField as bad:
        return bad.field
    return None


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"temperature": 0, "top_p": 1, "top_k": -1, "n": 128, "seed": -(2**63)},
        {"temperature": None, "n": None, "stop": None, "logprobs": None},
        {"temperature": "hot", "n": "two", "stop": 5, "logit_bias": []},
        {"best_of": 2, "n": 2},
        {"best_of": 1},
        {"suffix": ""},
        {"stop": ["a"] * 4},
        {"priority": 0},
        {"logprobs": 20},
        {"echo": True},
        {"unknown": {"of": "clients"}},
        {"prompt": ["a", "b"], "n": 80},
        {"prompt": [99] * 1000, "n": 100},
    ],
)
def test_passes(fields: dict[str, Any]) -> None:
    COMPLETION({"prompt": "x"} | fields)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"n": 2, "best_of": 3}, "best_of"),
        ({"prompt": ["a", "b"], "n": 81}, "n"),
        ({"prompt": ["a"] * 161}, "prompt"),
        ({"prompt": [[1], []]}, "prompt"),
        ({"prompt": [[1], [100]]}, "prompt"),
        ({"prompt": [1, -1]}, "prompt"),
        ({"echo": True, "logprobs": 0}, "logprobs"),
        ({"priority": -1}, "priority"),
        ({"min_tokens": 5, "max_tokens": 4}, "min_tokens"),
        ({"guided_regex": "a"}, "guided_regex"),
    ],
)
def test_refused(fields: dict[str, Any], field: str) -> None:
    assert refused_field(COMPLETION, **{"prompt": "x"} | fields) == field


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"messages": None}, "messages"),
        ({"messages": {"role": "user"}}, "messages"),
        ({"messages": [{"role": "assistant", "tool_calls": 1}]}, "messages"),
        ({"messages": [1, {"role": "user"}]}, None),
        ({"structured_outputs": []}, "structured_outputs"),
        ({"tools": 2}, "tools"),
        ({"tools": None, "structured_outputs": None}, None),
    ],
)
def test_types_that_vllm_takes_for_granted(
    fields: dict[str, Any], field: str | None
) -> None:
    assert refused_field(CHAT, **fields) == field


@settings(deadline=None)
@given(st.sampled_from(sorted(RANGES)), st.floats() | st.integers())
def test_ranges_are_sharp(name: str, value: float) -> None:
    allowed = RANGES[name]
    inside = allowed.low <= value <= allowed.high and abs(value) != float("inf")
    inside = inside and not (allowed.above and value == allowed.low)
    found = refused_field(CHAT, **{name: value})
    assert found == (None if inside else name)


@settings(deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(
            ["prompt", "messages", "n", "stop", "best_of", "logprobs", "priority"]
            + ["structured_outputs", "min_tokens", "max_tokens", "tokens", "suffix"]
        ),
        st.recursive(
            st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
            lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
            max_leaves=8,
        ),
    )
)
def test_no_body_is_too_odd(fields: dict[str, Any]) -> None:
    for check in CHECKS.values():
        refused_field(check, **fields)


def test_priorities_where_they_are_served() -> None:
    served = Served(
        vocab_size=100,
        max_model_len=4096,
        max_logprobs=20,
        max_sequences=160,
        priorities=True,
        disable_any_whitespace=False,
    )
    chat = checks(served)["/v1/chat/completions"]
    chat({"priority": -5})
    assert refused_field(chat, priority=2**31) == "priority"
    whitespace = {"json": {}, "disable_any_whitespace": True}
    assert refused_field(chat, structured_outputs=whitespace) == "structured_outputs"
