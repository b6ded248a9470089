"""What a device service has seen of prompts, so that equal beginnings meet again."""

from __future__ import annotations

from array import array
from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b

MAX_HASHED_BLOCKS = 128
"""A prompt's blocks beyond these are not looked at: what shares so many shares all."""

MAX_REMEMBERED_BLOCKS = 65_536
"""Per device service, some 10 MB: even where it holds more blocks."""

_DIGEST_BYTES = 8


def block_hashes(
    token_ids: Sequence[int], block_size: int, salt: str = ""
) -> list[bytes]:
    """A hash per full leading block, each over everything up to its end.

    `salt` keeps prompts apart that must not share blocks. A block that the last
    token completes is left out, as prefix caches do: a token must be computed.
    """
    full = min((len(token_ids) - 1) // block_size, MAX_HASHED_BLOCKS)
    data = memoryview(array("I", token_ids[: max(0, full) * block_size])).cast("B")
    width = array("I").itemsize * block_size
    state = blake2b(salt.encode(), digest_size=_DIGEST_BYTES)
    hashes = []
    for start in range(0, len(data), width):
        state.update(data[start : start + width])
        hashes.append(state.digest())
    return hashes


class PrefixMemory:
    """Block hashes of the prompts that went to one device service, newest last.

    Bounded by what that device service can hold itself; what was not used for
    longest is forgotten first, as there.
    """

    def __init__(self, max_blocks: int) -> None:
        self._max_blocks = min(max_blocks, MAX_REMEMBERED_BLOCKS)
        self._blocks: OrderedDict[bytes, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def shared_blocks(self, hashes: Sequence[bytes]) -> int:
        """How many leading blocks of a prompt are remembered."""
        for count, block in enumerate(hashes):
            if block not in self._blocks:
                return count
        return len(hashes)

    def add(self, hashes: Sequence[bytes]) -> None:
        """A prompt goes there. Its first blocks are forgotten last."""
        for block in reversed(hashes):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._max_blocks:
            self._blocks.popitem(last=False)
