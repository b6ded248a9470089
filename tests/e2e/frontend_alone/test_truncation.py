"""Which end of a prompt is cut when a client lets it be cut."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from tests.support.byte_model import text_of
from tests.support.fake_device import SERVED_NAME, FakeDevice, model
from tests.support.frontend_process import FrontendProcess


@pytest.mark.feature(22)
@pytest.mark.edge(56)
@pytest.mark.parametrize(
    ("architecture", "kept"),
    [("GptOssForCausalLM", "abc"), ("LlamaForCausalLM", "def")],
)
def test_a_harmony_prompt_keeps_its_head(
    architecture: str, kept: str, tmp_path: Path
) -> None:
    """There the template's head says what the rest is; elsewhere the end counts."""
    served = model()
    served.architecture = architecture
    with (
        FakeDevice(served) as device,
        FrontendProcess(device.address, tmp_path / "log") as frontend,
    ):
        frontend.wait_until_ready()
        answer = httpx.post(
            f"{frontend.url}/v1/completions",
            json={
                "model": SERVED_NAME,
                "prompt": "abcdef",
                "max_tokens": 1,
                "truncate_prompt_tokens": 3,
                "add_special_tokens": False,
            },
            timeout=20,
        )
        assert answer.status_code == 200, answer.text
        [submission] = device.seen.submissions
    assert text_of(list(submission.prompt_token_ids)) == kept
