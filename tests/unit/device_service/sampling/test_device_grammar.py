"""Structured output that is sampled on the device, through the engine."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from vllm.sampling_params import StructuredOutputsParams
from vllm.v1.request import Request

from device_service.grammar import Grammars
from device_service.mesh.interface import MeshPoisoned
from device_service.records import FinishKind, Phase
from tests.support.rig import Rig, Stream

RigMaker = Callable[..., Rig]

ON_DEVICE = {"mode": "all"}
CHOICES = ["red", "green", "blue"]
REGEX = r"[0-9]{3}-[a-f]{2}"
SCHEMA = {
    "type": "object",
    "properties": {"size": {"type": "integer", "minimum": 0, "maximum": 99}},
    "required": ["size"],
    "additionalProperties": False,
}
CONSTRAINTS = [
    StructuredOutputsParams(choice=CHOICES),
    StructuredOutputsParams(regex=REGEX),
    StructuredOutputsParams(json=SCHEMA),
]


END = 259
"""The simulated model's end of sequence, which a finished grammar asks for."""


def _text(stream: Stream) -> str:
    return bytes(token for token in stream.token_ids if token < 256).decode()


def _submit_mixed(rig: Rig) -> list[Stream]:
    """As many as there are rows: constrained and plain ones, greedy, seeded and
    penalised.
    """
    streams = []
    for place in range(8):
        sampling: dict[str, Any] = {"stop_token_ids": [END]}
        if place % 2:
            sampling |= {"temperature": 1.0, "top_k": 30, "seed": place}
        if place > 4:
            sampling |= {"presence_penalty": 1.0, "repetition_penalty": 1.3}
        if place < 6:
            sampling["structured_outputs"] = CONSTRAINTS[place % 3]
        streams.append(rig.submit([60 + place, 61], 30, **sampling))
    return streams


@pytest.mark.feature(131, 132, 133, 134)
@pytest.mark.parametrize("lanes", [1, 4])
def test_constraints_hold_in_a_full_mixed_batch(make_rig: RigMaker, lanes: int) -> None:
    device = make_rig(site=ON_DEVICE, rows=8 // lanes, lanes=lanes)
    host = make_rig(rows=8)
    said, expected = _submit_mixed(device), _submit_mixed(host)
    device.run()
    host.run()
    assert {_text(said[0]), _text(said[3])} <= set(CHOICES)
    for place in (1, 4):
        assert re.fullmatch(REGEX, _text(said[place]))
    for place in (2, 5):
        assert 0 <= json.loads(_text(said[place]))["size"] <= 99
    for one, other in zip(said, expected, strict=True):
        assert one.token_ids == other.token_ids
    verdicts = {
        (record.phase, record.sampling.site.value, record.sampling.reason)
        for record in device.records
    }
    assert verdicts == {
        (Phase.PREFILL, "host", "penalties_in_prefill"),
        (Phase.DECODE, "device", "eligible"),
    }
    device.assert_nothing_is_held()
    assert device.probe.breaches == []


@pytest.mark.feature(134)
def test_every_masked_step_says_so(
    make_rig: RigMaker, caplog: pytest.LogCaptureFixture
) -> None:
    rig = make_rig(site=ON_DEVICE)
    with caplog.at_level(logging.DEBUG, "device_service.mesh.adapter_driver"):
        rig.submit([60, 61], 3)
        rig.run()
        assert not _masked(caplog)
        rig.submit([60, 61], 6, structured_outputs=CONSTRAINTS[1])
        rig.run()
    decodes = [record for record in rig.records if record.phase is Phase.DECODE]
    assert _masked(caplog) == len(decodes) - 2


def _masked(caplog: pytest.LogCaptureFixture) -> int:
    return sum("grammar masks" in record.getMessage() for record in caplog.records)


@pytest.mark.feature(134)
@pytest.mark.parametrize(
    ("site", "sampling", "reason"),
    [
        (ON_DEVICE | {"device_grammar": False}, {}, "device_grammar"),
        (ON_DEVICE | {"devices": 8}, {"logprobs": 0}, "grammar_with_logprobs"),
    ],
)
def test_otherwise_the_host_applies_the_mask(
    make_rig: RigMaker, site: dict[str, Any], sampling: dict[str, Any], reason: str
) -> None:
    rig = make_rig(site=site)
    stream = rig.submit(
        [60],
        10,
        structured_outputs=CONSTRAINTS[0],
        stop_token_ids=[END],
        **sampling,
    )
    rig.run()
    assert _text(stream) in CHOICES
    decodes = [record for record in rig.records if record.phase is Phase.DECODE]
    assert {record.sampling.reason for record in decodes} == {reason}


class Forgetful(Grammars):
    """Loses the masks of every step but the first."""

    asked = 0

    def bitmask(self, requests: Sequence[Request]) -> np.ndarray | None:
        self.asked += 1
        return super().bitmask(requests) if self.asked == 1 else None


@pytest.mark.feature(135)
def test_a_mask_that_cannot_be_made_ends_the_engine(make_rig: RigMaker) -> None:
    rig = make_rig(site=ON_DEVICE, grammars=Forgetful)
    constrained = rig.submit([60], 10, structured_outputs=CONSTRAINTS[1])
    plain = rig.submit([61, 62], 10)
    rig.engine.start()
    with pytest.raises(MeshPoisoned, match="grammar masks"):
        rig.engine.died.result(timeout=60)
    for stream in (constrained, plain):
        assert stream.finish is not None
        assert stream.finish.kind is FinishKind.ERROR
        assert str(stream.finish.error) == "device step 2 failed"  # no internals
