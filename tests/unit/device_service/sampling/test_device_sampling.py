"""Sampling on the device, through the engine, against the same requests on the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from device_service.records import SamplingSite
from tests.support.rig import Rig, Stream

RigMaker = Callable[..., Rig]

ON_DEVICE = {"mode": "all"}

REQUESTS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "seeded": {"temperature": 1.0, "top_k": 30, "seed": 7},
    "negative seed": {"temperature": 1.3, "top_k": 12, "top_p": 0.9, "seed": -3},
    "wide seed": {"temperature": 0.7, "top_k": 32, "seed": 2**62 + 1},
    "one candidate": {"temperature": 2.0, "top_k": 1, "top_p": 0.3},
}


def _submit_all(rig: Rig) -> list[Stream]:
    return [
        rig.submit([40 + place, 41, 42 + place], 20 + place, **sampling)
        for place, sampling in enumerate(REQUESTS.values())
    ]


def _sites(rig: Rig) -> set[SamplingSite]:
    return {record.sampling.site for record in rig.records}


@pytest.mark.feature(120, 121, 122)
@pytest.mark.parametrize("lanes", [1, 4])
def test_device_and_host_say_the_same(make_rig: RigMaker, lanes: int) -> None:
    device = make_rig(site=ON_DEVICE, lanes=lanes, rows=2 if lanes > 1 else 8)
    host = make_rig(lanes=lanes, rows=2 if lanes > 1 else 8)
    said, expected = _submit_all(device), _submit_all(host)
    device.run()
    host.run()
    assert _sites(device) == {SamplingSite.DEVICE}
    assert _sites(host) == {SamplingSite.HOST}
    for one, other in zip(said, expected, strict=True):
        assert one.finish is not None
        assert one.finish.error is None
        assert one.token_ids == other.token_ids
    device.assert_nothing_is_held()


@pytest.mark.feature(117)
def test_decode_only_leaves_prefill_to_the_host(make_rig: RigMaker) -> None:
    rig = make_rig(site={"mode": "decode_only"})
    rig.submit([50, 51, 52], 5)
    rig.run()
    verdicts = [(r.sampling.site.value, r.sampling.reason) for r in rig.records]
    assert verdicts == [("host", "mode_decode_only")] + [("device", "eligible")] * 4
