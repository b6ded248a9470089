"""What the device must take anew from the host at a decode step (contract 1.10).

After a decode step that sampled on the device, the next step's tokens and
positions are already there. Whether they may stay is decided here and told to
the adapter as commands; it adds no guesses of its own.

| since the last accepted decode          | inputs | table | params | state |
| --------------------------------------- | ------ | ----- | ------ | ----- |
| none yet, a prefill, or a failed step   | yes    | -     | device | device|
| rows came, went or changed their owner  | yes    | -     | device | device|
| the sampling site changed               | yes    | -     | device | device|
| nothing, sampling on the host           | yes    | -     | -      | -     |
| nothing, sampling on the device         | -      | if it differs | - | -   |
| the same, no trace or no async decode   | yes    | -     | -      | -     |

"device" means: when this step samples on the device.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

PageTable = npt.NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class DecodeCommands:
    """The commands of one decode step.

    `contract` is the adapter's `decode_input_update_contract`: below 1 it is
    told `reset_batch` alone, and only when the device samples; from 1 on the
    four others. `page_table` is the one the step is submitted with, int32
    [B, W]; it is not a command.
    """

    contract: int
    device_sampling: bool
    reset_batch: bool
    reload_inputs: bool
    reload_page_table: bool
    reload_sampling_params: bool
    reset_sampling_state: bool
    page_table: PageTable = field(repr=False, compare=False)

    def __post_init__(self) -> None:
        """Hold what the contract's invariants say, whoever made the record."""
        if self.reload_inputs and self.reload_page_table:
            raise ValueError("reload_inputs already takes the page tables")
        if self.reset_sampling_state and not self.reload_inputs:
            raise ValueError("reset_sampling_state needs reload_inputs")

    @property
    def overlap_safe(self) -> bool:
        """Whether the step may be built before the one in flight is read.

        What the host would upload is then not known yet. An adapter below
        contract 1 decides about its uploads itself, so nothing here forbids it.
        """
        return self.contract < 1 or not (
            self.reload_inputs or self.reset_sampling_state
        )

    def as_keywords(self) -> dict[str, bool]:
        """What `decode_forward` is called with."""
        if self.contract >= 1:
            return {
                "reload_inputs": self.reload_inputs,
                "reload_page_table": self.reload_page_table,
                "reload_sampling_params": self.reload_sampling_params,
                "reset_sampling_state": self.reset_sampling_state,
            }
        return {"reset_batch": self.reset_batch} if self.device_sampling else {}


class ReloadPlanner:
    """Plans the commands; remembers only what the device has accepted.

    `plan` changes nothing, so a step that is given up, or that the adapter
    refuses, leaves no trace. Engine thread.
    """

    def __init__(self, contract: int, *, resident_inputs: bool) -> None:
        """`resident_inputs`: the adapter decodes asynchronously, from a trace."""
        self._contract = contract
        self._may_stay = resident_inputs
        self._chain_valid = False
        self._device_sampled: bool | None = None
        self._shape: tuple[int, ...] | None = None
        # As the device has it; only kept where the next step may go on with it.
        self._page_table: PageTable | None = None

    @property
    def chain_valid(self) -> bool:
        """Whether the last thing submitted was a decode step that succeeded."""
        return self._chain_valid

    @property
    def device_sampled(self) -> bool | None:
        """Where the last accepted decode sampled; None before the first."""
        return self._device_sampled

    def plan(
        self, *, device_sampling: bool, layout_changed: bool, page_table: PageTable
    ) -> DecodeCommands:
        """The commands of the next decode step.

        `layout_changed`: since the last accepted decode a row was taken, left,
        or passed to another request, or other rows take part. Another number
        of rows in `page_table`, int32 [B, W], is seen here.
        """
        last = self._page_table
        moved = (
            not self._chain_valid or layout_changed or self._shape != page_table.shape
        )
        transition = moved or self._device_sampled is not device_sampling
        reload_inputs = not device_sampling or transition or not self._may_stay
        return DecodeCommands(
            contract=self._contract,
            device_sampling=device_sampling,
            reset_batch=moved,
            reload_inputs=reload_inputs,
            reload_page_table=not reload_inputs
            and (last is None or not np.array_equal(page_table, last)),
            reload_sampling_params=device_sampling and transition,
            reset_sampling_state=device_sampling and transition,
            page_table=page_table,
        )

    def accepted(self, commands: DecodeCommands) -> None:
        """`decode_forward` returned: the device has done as told."""
        self._chain_valid = True
        self._device_sampled = commands.device_sampling
        self._shape = commands.page_table.shape
        if not (commands.device_sampling and self._may_stay):
            self._page_table = None
        elif commands.reload_inputs or commands.reload_page_table:
            self._page_table = commands.page_table.copy()

    def prefill_submitted(self) -> None:
        """A prefill changes what is resident on the device."""
        self._chain_valid = False

    def step_failed(self) -> None:
        """What is resident after a failed step is not known."""
        self._chain_valid = False
