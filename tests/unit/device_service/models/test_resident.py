"""What stays on the device between steps, and what is refused there."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from vllm.sampling_params import SamplingParams

from device_service.mesh.sampling_params import sampling_params
from device_service.mesh.sim import SimMesh
from device_service.models.contract import TTSamplingParams
from device_service.models.sim_adapter import SimAdapter
from device_service.models.sim_tokens import SimVocabulary, expected_tokens
from device_service.sampling.facts import PADDING, SamplingFacts

CONFIG = LlamaConfig.from_dict(
    {"vocab_size": 300, "eos_token_id": 259, "sim_output_ids": [32, 127]}
)
VOCABULARY = SimVocabulary.of(CONFIG)
PROMPT = [50, 51, 52]
BLOCK = 4
WIDTH = 6


class Device:
    """A simulated model, called by hand; one request in row 1 of 2."""

    def __init__(self, mesh: SimMesh) -> None:
        self.model = SimAdapter.initialize_vllm_model(
            CONFIG, mesh, 2, max_seq_len=24, tt_data_parallel=1, optimizations=None
        )
        shape = (30, 1, BLOCK, 1)
        self.cache = self.model.allocate_kv_cache_per_layer([(shape, torch.int64, 0)])
        self.blocks = [7, 3, 9, 4, 11, 2]

    def table(self, blocks: int = WIDTH) -> torch.Tensor:
        """The page tables when the request has so many blocks."""
        table = torch.zeros(2, WIDTH, dtype=torch.int32)
        table[1, :blocks] = torch.tensor(self.blocks[:blocks])
        return table

    def prefill(self) -> None:
        self.model.prefill_forward(
            tokens=torch.tensor([PROMPT], dtype=torch.int32),
            page_table=self.table()[1:],
            kv_cache=self.cache,
            enable_trace=True,
            prompt_lens=np.array([len(PROMPT)]),
            start_pos=np.zeros(1, dtype=np.int32),
            empty_slots=[1],
        )

    def decode(
        self,
        token: int = 0,
        position: int = 0,
        *,
        table: torch.Tensor | None = None,
        **options: Any,
    ) -> Any:
        """One step; with nothing else said, everything stays where it is."""
        commands = {
            "reload_inputs": False,
            "reload_page_table": False,
            "reload_sampling_params": False,
            "reset_sampling_state": False,
        }
        return self.model.decode_forward(
            tokens=torch.tensor([[0], [token]], dtype=torch.int32),
            start_pos=torch.tensor([-1, position], dtype=torch.int32),
            page_table=self.table() if table is None else table,
            kv_cache=self.cache,
            enable_trace=True,
            read_from_device=False,
            **commands | options,
        )

    def read(self, handle: Any) -> int:
        output, _ = self.model.read_decode_output(handle, async_read=True)
        tokens = self.model.process_decode_output_host(output, is_tokens=True)
        assert int(tokens[0]) == 0
        return int(tokens[1])


ANEW: dict[str, Any] = {
    "reload_inputs": True,
    "reload_sampling_params": True,
    "reset_sampling_state": True,
}


@pytest.fixture
def device() -> Iterator[Device]:
    mesh = SimMesh()
    mesh.open()
    yield Device(mesh)
    mesh.close()


def params(**sampling: Any) -> TTSamplingParams:
    row = SamplingFacts.of(
        SamplingParams(**({"temperature": 0.0} | sampling)), len(PROMPT), 300
    )
    return sampling_params((PADDING, row))


@pytest.mark.feature(107, 108)
@pytest.mark.edge(34)
def test_a_step_goes_on_from_what_the_step_before_sampled(device: Device) -> None:
    """Submitted together, unread; token and position of the host are nonsense."""
    device.prefill()
    first, *rest = expected_tokens(PROMPT, 8, VOCABULARY)
    greedy = params()
    handles = [device.decode(first, 3, sampling_params=greedy, **ANEW)]
    handles += [device.decode(299, 20, sampling_params=greedy) for _ in range(6)]
    assert [device.read(handle) for handle in handles] == rest


@pytest.mark.edge(35)
def test_a_seeded_step_does_not_depend_on_when_it_is_read(device: Device) -> None:
    hot = params(temperature=1.5, seed=7)
    device.prefill()
    first = expected_tokens(PROMPT, 1, VOCABULARY)[0]
    ahead = [device.decode(first, 3, sampling_params=hot, **ANEW)]
    ahead += [device.decode(sampling_params=hot) for _ in range(5)]
    unread = [device.read(handle) for handle in ahead]
    device.prefill()
    token, stepwise = first, []
    for position in range(3, 9):
        handle = device.decode(token, position, sampling_params=hot, **ANEW)
        token = device.read(handle)
        stepwise.append(token)
    assert unread == stepwise


@pytest.mark.feature(108)
def test_page_tables_alone_can_be_taken_anew(device: Device) -> None:
    """The next block is in the new table only; without it the tokens go wrong."""
    device.prefill()
    expected = expected_tokens(PROMPT, 4, VOCABULARY)
    greedy = params()
    device.decode(expected[0], 3, table=device.table(1), sampling_params=greedy, **ANEW)
    handle = device.decode(sampling_params=greedy, reload_page_table=True)
    assert device.read(handle) == expected[2]


def test_what_is_not_on_the_device_cannot_stay_there(device: Device) -> None:
    device.prefill()
    with pytest.raises(RuntimeError, match="not on the device"):
        device.decode(sampling_params=params()).result()
    # Host sampling leaves nothing behind that a next step could go on from.
    device.decode(60, 3, reload_inputs=True).result()
    with pytest.raises(RuntimeError, match="not on the device"):
        device.decode(sampling_params=params()).result()
    with pytest.raises(RuntimeError, match="no sampling parameters"):
        device.decode(60, 3, sampling_params=params(), reload_inputs=True).result()


def test_a_reset_without_inputs_is_refused(device: Device) -> None:
    with pytest.raises(ValueError, match="reset_sampling_state needs reload_inputs"):
        device.decode(sampling_params=params(), reset_sampling_state=True)


def test_an_adapter_of_explicit_commands_takes_no_reset_batch(device: Device) -> None:
    with pytest.raises(TypeError, match="reset_batch"):
        device.decode(sampling_params=params(), reset_batch=True)


# -- readback ----------------------------------------------------------------------


@pytest.mark.feature(129)
def test_rows_are_those_that_were_transferred(device: Device) -> None:
    device.prefill()
    handle = device.decode(60, 3, reload_inputs=True)
    output, _ = device.model.read_decode_output(
        handle, async_read=True, sample_rows=[1, 0]
    )
    process: Callable[..., Any] = device.model.process_decode_output_host
    for rows in ([0, 1], [1], None):
        with pytest.raises(ValueError, match="were transferred"):
            process(output, is_tokens=False, sample_rows=rows)
    logits = process(output, is_tokens=False, sample_rows=[1, 0])
    assert logits.shape == (2, 1, 300)
    whole = handle.result()
    assert torch.equal(logits[:, 0], whole[[1, 0]])
    logits.zero_()
    assert not torch.equal(whole, torch.zeros_like(whole))


def test_tokens_are_not_logits(device: Device) -> None:
    device.prefill()
    handle = device.decode(60, 3, reload_inputs=True)
    output, _ = device.model.read_decode_output(handle, async_read=True)
    with pytest.raises(ValueError, match="has logits"):
        device.model.process_decode_output_host(output, is_tokens=True)


# -- deferred sampling ----------------------------------------------------------------


def _mask(*token_ids: int) -> torch.Tensor:
    mask = torch.full((2, 10), -1, dtype=torch.int32)
    bits = np.zeros(320, dtype=np.uint8)
    bits[list(token_ids)] = 1
    mask[1] = torch.from_numpy(np.packbits(bits, bitorder="little").view(np.int32))
    return mask


@pytest.mark.feature(131)
def test_a_deferred_step_is_sampled_once_and_goes_on(device: Device) -> None:
    device.prefill()
    deferred = device.decode(
        60, 3, reload_inputs=True, reset_sampling_state=True, defer_device_sampling=True
    )
    greedy = params()
    chosen = device.model.sample_decode_on_device(
        deferred, sampling_params=greedy, grammar_bitmask=_mask(99)
    )
    assert device.read(chosen) == 99
    # The masked token is what the next step consumes.
    following = device.read(device.decode(sampling_params=greedy))
    assert following == expected_tokens([*PROMPT, 60, 99], 1, VOCABULARY)[0]
    with pytest.raises(RuntimeError, match="sampled once"):
        device.model.sample_decode_on_device(
            deferred, sampling_params=greedy, grammar_bitmask=_mask(99)
        )


@pytest.mark.feature(135)
def test_after_a_poison_no_step_is_taken(device: Device) -> None:
    device.prefill()
    deferred = device.decode(60, 3, reload_inputs=True, defer_device_sampling=True)
    with pytest.raises(ValueError, match="grammar mask"):
        device.model.sample_decode_on_device(
            deferred, sampling_params=params(), grammar_bitmask=_mask(1)[:1]
        )
    device.model.poison_deferred_device_sampling()
    with pytest.raises(RuntimeError, match="takes no more"):
        device.decode(60, 3, reload_inputs=True)
