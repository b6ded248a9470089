"""What the adapters of `cpu` and `sim` share: sampling, readback, grammar masks."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch

from device_service.mesh.host_queue import Task
from device_service.models.contract import TTSamplingParams
from device_service.models.device_sampler import History, Program, SampledTokens
from device_service.models.readback import take_rows
from device_service.models.resident import (
    DecodeOrder,
    DeferredDecode,
    Forward,
    Inputs,
    ResidentDecode,
)

Output = torch.Tensor | SampledTokens
T = TypeVar("T")


class SubmitsWork(Protocol):
    """A mesh with a worker."""

    def submit(self, work: Callable[[], T]) -> Task[T]:
        """Run `work` after everything that was submitted before."""


@dataclass(frozen=True, slots=True)
class Transfer(Generic[T]):
    """Output on its way to the host; `rows` are those transferred, None is all."""

    task: Task[T]
    rows: tuple[int, ...] | None = None


class SamplingAdapter:
    """An adapter that computes on a mesh's worker and samples there.

    A subclass says how logits are computed; what follows from them is here.
    Engine thread, but for the work that is submitted.
    """

    def __init__(self, mesh: SubmitsWork, vocab_size: int) -> None:
        self._worker = mesh
        self._vocab_size = vocab_size
        self._resident = ResidentDecode(vocab_size)
        self._poisoned = False
        self.device_grammar_enabled = False

    # -------------------------------------------------------------------- steps

    def _prefill_choice(
        self, params: TTSamplingParams | None, ends: Sequence[int]
    ) -> Callable[[torch.Tensor], Output]:
        """From the logits [n, V] of a prefill to its output; `ends` of the prompts."""
        if params is None:
            return lambda logits: logits
        positions = np.array(ends, dtype=np.int64)

        def choose(logits: torch.Tensor) -> Output:
            program = Program(params, self._vocab_size)
            return self._resident.sampler.sample(logits, program, positions)

        return choose

    def _answer(self, output: Task[Output] | DeferredDecode, *, wait: bool) -> Any:
        """What a forward answers: a handle, or host tensors to wait for."""
        if not wait or isinstance(output, DeferredDecode):
            return output
        return _on_host(output.result(), None)

    def _decode(
        self,
        order: DecodeOrder,
        forward: Forward,
        submit: Callable[[Callable[[], Output]], Task[Output]],
    ) -> Task[Output] | DeferredDecode:
        """Submit a step; `submit` is how the mesh runs one."""
        if self._poisoned:
            raise RuntimeError("a deferred decode failed; the device takes no more")
        if not order.on_device or order.params is not None:
            return submit(lambda: self._resident.step(order, forward))
        task = submit(lambda: self._resident.forward(order, forward))

        def logits() -> torch.Tensor:
            found = task.result()
            assert isinstance(found, torch.Tensor)
            return found

        return DeferredDecode(logits, order)

    def sample_decode_on_device(
        self,
        deferred_decode: DeferredDecode,
        *,
        sampling_params: TTSamplingParams,
        grammar_bitmask: torch.Tensor,
    ) -> Task[Output]:
        """Choose the tokens of a deferred step under its masks."""
        words = -(-self._vocab_size // 32)
        expected = (len(deferred_decode.order.inputs.positions), words)
        if tuple(grammar_bitmask.shape) != expected:
            raise ValueError(
                f"the grammar mask is {tuple(grammar_bitmask.shape)}, not {expected}"
            )
        logits = deferred_decode.take()

        def work() -> Output:
            self._resident.load(sampling_params)
            return self._resident.choose(
                logits(), deferred_decode.order, grammar_bitmask
            )

        return self._worker.submit(work)

    # ------------------------------------------------------------------ grammar

    def enable_device_grammar(self) -> bool:
        """Masks need no room of their own here."""
        self.device_grammar_enabled = True
        return True

    def prepare_device_grammar_decode_trace_warmup(
        self, *, kv_cache: Any, max_batch_size: int, num_blocks: int
    ) -> bool:
        """Sampling is no part of a trace here, so any step can be masked."""
        return True

    def capture_prepared_device_grammar_decode_trace(self) -> None:
        """Nothing to capture."""

    def poison_deferred_device_sampling(self) -> None:
        """Take no further decode step."""
        self._poisoned = True

    # ----------------------------------------------------------------- readback

    def read_decode_output(
        self,
        tt_out: Task[Output],
        *,
        async_read: bool,
        sample_rows: list[int] | None = None,
    ) -> tuple[Transfer[Output], list[Task[Output]]]:
        """The task is its own event; the rows are fixed here."""
        rows = None if sample_rows is None else tuple(sample_rows)
        return Transfer(tt_out, rows), [tt_out]

    def process_decode_output_host(
        self,
        tt_out: Transfer[Output],
        *,
        is_tokens: bool,
        sample_rows: list[int] | None = None,
    ) -> Any:
        """Logits [B, 1, V] or those of `sample_rows`, the caller's to keep; or
        tokens int32 [B], with log probabilities if a row asked for them.
        """
        if tt_out.rows is not None and tt_out.rows != tuple(sample_rows or ()):
            raise ValueError(
                f"rows {list(tt_out.rows)} were transferred, not {sample_rows}"
            )
        output = tt_out.task.result()
        if isinstance(output, SampledTokens) is not is_tokens:
            have = "logits" if is_tokens else "tokens"
            raise ValueError(f"the step has {have}, which is not what is asked for")
        return _on_host(output, sample_rows)

    read_prefill_output = read_decode_output
    process_prefill_output_host = process_decode_output_host


def _on_host(output: Output, rows: list[int] | None) -> Any:
    if isinstance(output, torch.Tensor):
        return take_rows(output.unsqueeze(1), rows)
    tokens = torch.from_numpy(output.tokens.astype(np.int32))
    return tokens if output.logprobs is None else (tokens, output.logprobs)


def decode_order(  # noqa: PLR0913 - the contract's keywords
    inputs: Inputs,
    *,
    reload_inputs: bool = True,
    reload_page_table: bool = False,
    reload_sampling_params: bool = False,
    reset_sampling_state: bool = False,
    sampling_params: TTSamplingParams | None = None,
    prompt_tokens: torch.Tensor | None = None,
    output_tokens: torch.Tensor | None = None,
    defer_device_sampling: bool = False,
    slot_remap: torch.Tensor | None = None,
) -> DecodeOrder:
    """Read the optional keywords of `decode_forward`.

    There is no sampling state to reset: histories come with the steps that need
    them, and seeded draws depend on positions alone. Rows never move, so a
    `slot_remap` is the identity.
    """
    if reset_sampling_state and not reload_inputs:
        raise ValueError("reset_sampling_state needs reload_inputs")
    history = None
    if prompt_tokens is not None and output_tokens is not None:
        history = History(prompt_tokens, output_tokens)
    return DecodeOrder(
        inputs=inputs,
        reload_inputs=reload_inputs,
        reload_page_table=reload_page_table,
        reload_sampling_params=reload_sampling_params,
        on_device=sampling_params is not None or defer_device_sampling,
        params=sampling_params,
        history=history,
    )
