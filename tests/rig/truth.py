"""What the rig's models must come to, worked out by hand from their config.json and the engine's flags.

Nothing here is computed by the program under test, nor read from the engine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that share one block table: full attention, or a window of so many tokens."""

    window_tokens: int | None = None

    def blocks(self, tokens: int, block_size: int) -> int:
        """Blocks that a sequence holds once its prefill is over.

        A window layer frees a block when its last token falls out of the window: the oldest
        `tokens - window` tokens are not needed any more, and only whole blocks can go. Seen block by block
        on 0.32.0: 319 tokens in 9 blocks of 32 under a window of 256, 320 tokens in 8.
        """
        held = ceil(tokens / block_size)
        if self.window_tokens is None:
            return held
        return held - max(0, tokens - self.window_tokens) // block_size


@dataclass(frozen=True, slots=True)
class RigModel:
    """One model, the flags that start it and the figures that follow from both."""

    name: str
    flags: tuple[str, ...]
    kv_cache_bytes: int
    """What --kv-cache-memory-bytes is given; not a whole number of blocks."""
    block_size: int
    block_bytes: int
    num_blocks: int
    groups: tuple[Group, ...]
    caches_prefixes: bool
    sequences_of_512: int
    """How many sequences of 512 tokens the pool holds."""
    pictures: tuple[tuple[int, ...], ...]
    """Prompt lengths to hold together, one tuple per picture."""

    def blocks(self, tokens: int) -> int:
        """Blocks of all groups that one sequence of that length holds."""
        return sum(group.blocks(tokens, self.block_size) for group in self.groups)

    def blocks_of_all(self, lengths: Sequence[int]) -> int:
        """Blocks held by sequences that share nothing."""
        return sum(self.blocks(tokens) for tokens in lengths)


# One scheduler and one worker in one process: half the memory, and quicker to start.
_ONE_PROCESS = ("--distributed-executor-backend", "uni")

# 32 lengths in a row: whatever the number of tokens generated when the engine is held, every remainder
# modulo the block is there, the aligned one included, and one token more or less in the count of computed
# tokens changes the sum.
_EVERY_REMAINDER = tuple(range(100, 132))

LLAMA = RigModel(
    name="llama",
    flags=(*_ONE_PROCESS, "--block-size", "32", "--enable-prefix-caching"),
    kv_cache_bytes=9_850_000,
    block_size=32,
    # K and V x 2 KV heads x 32 elements x 2 bytes x 4 layers = 1,024 bytes per token, x 32 tokens
    block_bytes=32_768,
    num_blocks=300,  # 9,850,000 / 32,768 = 300.6
    groups=(Group(),),
    caches_prefixes=True,
    sequences_of_512=18,  # 512 / 32 = 16 blocks each; 299 without the null block, / 16 = 18.7
    pictures=((100,), _EVERY_REMAINDER, (700, 1001)),
)

GEMMA2 = RigModel(
    name="gemma2",
    flags=(*_ONE_PROCESS, "--block-size", "32", "--enable-prefix-caching"),
    kv_cache_bytes=16_777_216,
    block_size=32,
    # a block belongs to one group of 3 layers: 2 x 2 x 32 x 2 bytes = 256 per token and layer, x 32 x 3
    block_bytes=24_576,
    num_blocks=682,  # 16,777,216 / 24,576 = 682.7
    groups=(Group(window_tokens=256), Group()),
    caches_prefixes=True,
    # 16 full blocks, and at most 9 of the window on the way there (481 to 511 tokens): 25; 681 / 25 = 27.2
    sequences_of_512=27,
    # around the window's edge with every remainder, and far beyond it
    pictures=((100,), tuple(range(240, 272)), (700, 1001)),
)

DEEPSEEK_V2 = RigModel(
    name="deepseek_v2",
    flags=_ONE_PROCESS,
    kv_cache_bytes=33_554_432,
    block_size=16,  # what 0.32.0 picks for MLA on a CPU when nothing is said
    # one latent of 512 + 64 elements x 2 bytes x 4 layers = 4,608 bytes per token, x 16 tokens
    block_bytes=73_728,
    num_blocks=455,  # 33,554,432 / 73,728 = 455.1
    groups=(Group(),),
    caches_prefixes=False,  # 0.32.0 turns it off for MLA on a CPU
    sequences_of_512=14,  # 512 / 16 = 32 blocks each; 454 / 32 = 14.2
    pictures=((100,), _EVERY_REMAINDER, (700, 1001)),
)

# Tests that leave models out take the front of this list: pytest then starts each engine once.
MODELS = (LLAMA, GEMMA2, DEEPSEEK_V2)
