"""What the rig's models must come to, worked out by hand from their config.json and the engine's flags.

Nothing here is computed by the program under test, nor read from the engine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import ceil

from .hardware import wants_gpu


@dataclass(frozen=True, slots=True)
class Group:
    """Layers that share one block table: full attention, a window of so many tokens, or a state."""

    window_tokens: int | None = None
    state: bool = False

    def blocks(self, tokens: int, block_size: int) -> int:
        """Blocks that a sequence holds once its prefill is over.

        A window layer frees a block when its last token falls out of the window: the oldest
        `tokens - window` tokens are not needed any more, and only whole blocks can go. Seen block by block
        on 0.32.0: 319 tokens in 9 blocks of 32 under a window of 256, 320 tokens in 8. A state is one block;
        with prefix caching a second one while the first token of a new block is computed.
        """
        if self.state:
            return 2 if tokens > block_size and tokens % block_size == 1 else 1
        held = ceil(tokens / block_size)
        if self.window_tokens is None:
            return held
        return held - max(0, tokens - self.window_tokens) // block_size


@dataclass(frozen=True, slots=True)
class RigModel:
    """One model, the flags that start it and the figures that follow from both."""

    name: str
    directory: str
    flags: tuple[str, ...]
    kv_cache_bytes: int
    """What --kv-cache-memory-bytes is given, not a whole number of blocks; 0: nothing."""
    block_size: int
    block_bytes: int
    num_blocks: int
    token_bytes: int
    """One more token at long context."""
    groups: tuple[Group, ...]
    caches_prefixes: bool
    fits: Mapping[int, int]
    """How many sequences of so many tokens the pool holds."""
    prompts: Mapping[int, int]
    """The prompts with which sequences of so many tokens grow through their fullest moment side by side."""
    pictures: tuple[tuple[int, ...], ...]
    """Prompt lengths to hold together, one tuple per picture."""
    state_bytes: int = 0
    """The states of one sequence, padding not counted."""

    @property
    def usable_blocks(self) -> int:
        """All but the null block."""
        return self.num_blocks - 1

    @property
    def hybrid(self) -> bool:
        """Whether a lookup of a prefix depends on where states were kept."""
        return any(group.state for group in self.groups)

    def blocks(self, tokens: int) -> int:
        """Blocks of all groups that one sequence of that length holds."""
        return sum(group.blocks(tokens, self.block_size) for group in self.groups)

    def peak_blocks(self, context: int) -> int:
        """The most that one sequence holds on its way to that length."""
        return max(self.blocks(tokens) for tokens in range(1, context + 1))

    def blocks_of_all(self, lengths: Sequence[int]) -> int:
        """Blocks held by sequences that share nothing."""
        return sum(self.blocks(tokens) for tokens in lengths)


# One scheduler and one worker in one process: half the memory, and quicker to start.
_ONE_PROCESS = ("--distributed-executor-backend", "uni")
_BLOCKS_OF_32 = (*_ONE_PROCESS, "--block-size", "32", "--enable-prefix-caching")

# 32 lengths in a row: whatever the number of tokens generated when the engine is held, every remainder
# modulo the block is there, the aligned one included, and one token more or less in the count of computed
# tokens changes the sum.
_EVERY_REMAINDER = tuple(range(100, 132))
_FAR = (700, 1001)

# So far ahead of the end that all are admitted, with one more than fit, before the first has grown much: else
# the last one would wait. No further, because every token of the way is a step of the engine.
_AHEAD = {512: 420, 1024: 850}

# Every pool is one block short of one sequence of 512 tokens more: who forgets the null block predicts it.
LLAMA = RigModel(
    name="llama",
    directory="llama",
    flags=_BLOCKS_OF_32,
    kv_cache_bytes=9_970_000,
    block_size=32,
    # K and V x 2 KV heads x 32 elements x 2 bytes x 4 layers = 1,024 bytes per token, x 32 tokens
    block_bytes=32_768,
    num_blocks=304,  # 9,970,000 / 32,768 = 304.3
    token_bytes=1_024,
    groups=(Group(),),
    caches_prefixes=True,
    # 16 and 32 blocks each; 303 without the null block: 18.9 and 9.5
    fits={512: 18, 1024: 9},
    prompts=_AHEAD,
    pictures=((100,), _EVERY_REMAINDER, _FAR),
)

LLAMA_FP8 = replace(
    LLAMA,
    name="llama_fp8",
    flags=(*_BLOCKS_OF_32, "--kv-cache-dtype", "fp8"),
    # one byte an element: half of everything
    block_bytes=16_384,
    num_blocks=608,  # 9,970,000 / 16,384 = 608.5
    token_bytes=512,
    # 607 / 16 = 37.9; 607 / 32 = 18.97
    fits={512: 37, 1024: 18},
    pictures=(_EVERY_REMAINDER, _FAR),
)

GEMMA2 = RigModel(
    name="gemma2",
    directory="gemma2",
    flags=_BLOCKS_OF_32,
    kv_cache_bytes=17_220_000,
    block_size=32,
    # a block belongs to one group of 3 layers: 2 x 2 x 32 x 2 bytes = 256 per token and layer, x 32 x 3
    block_bytes=24_576,
    num_blocks=700,  # 17,220,000 / 24,576 = 700.7
    token_bytes=768,  # the three layers that keep all
    groups=(Group(window_tokens=256), Group()),
    caches_prefixes=True,
    # 16 full blocks, and at most 9 of the window on the way there (481 to 511 tokens): 25; 699 / 25 = 27.96.
    # 32 and 9: 41; 699 / 41 = 17.05
    fits={512: 27, 1024: 17},
    # A prompt takes blocks of both groups for all of it; what the window does not see is freed a step later.
    prompts={512: 420, 1024: 800},
    # around the window's edge with every remainder, and far beyond it
    pictures=((100,), tuple(range(240, 272)), _FAR),
)

DEEPSEEK_V2 = RigModel(
    name="deepseek_v2",
    directory="deepseek_v2",
    # Else 0.32.0 (platforms/cpu.py) takes another backend where the CPU has AMX, with blocks of 128.
    flags=(*_ONE_PROCESS, "--attention-backend", "CPU_MLA"),
    kv_cache_bytes=35_400_000,
    block_size=16,  # all that this backend has
    # one latent of 512 + 64 elements x 2 bytes x 4 layers = 4,608 bytes per token, x 16 tokens
    block_bytes=73_728,
    num_blocks=480,  # 35,400,000 / 73,728 = 480.1
    token_bytes=4_608,
    groups=(Group(),),
    caches_prefixes=False,  # 0.32.0 turns it off for this backend
    # 32 and 64 blocks each: 479 / 32 = 14.97; 479 / 64 = 7.5
    fits={512: 14, 1024: 7},
    prompts=_AHEAD,
    pictures=((100,), _EVERY_REMAINDER, _FAR),
)

QWEN3_NEXT = RigModel(
    name="qwen3_next",
    directory="qwen3_next",
    # All prompts in one step, so that all sequences are as long as each other: the second block of a state
    # is held for one token only.
    flags=(*_ONE_PROCESS, "--enable-prefix-caching", "--max-num-batched-tokens", "16384"),
    kv_cache_bytes=67_300_000,
    # One layer's state is 135,680 bytes (below), one layer's token 2 x 2 x 128 x 2 = 1,024: a block has to
    # be 132.5 tokens at least, in steps of the 128 that a CPU's block is by default.
    block_size=256,
    block_bytes=524_288,  # a block belongs to one group of 2 layers: 1,024 x 256 x 2
    num_blocks=128,  # 67,300,000 / 524,288 = 128.4
    token_bytes=2_048,  # two layers keep all
    groups=(Group(state=True), Group(state=True), Group(state=True), Group()),
    caches_prefixes=True,
    # At 257 tokens 2 full blocks and 3 x 2 of states: 8; 127 / 8 = 15.9. At 769: 4 + 6; 127 / 10 = 12.7
    fits={512: 15, 1024: 12},
    prompts={512: 250, 1024: 760},
    pictures=((100,), tuple(range(240, 256)), _FAR),
    # 6 layers: convolution (4 - 1) x (2 x 2 x 128 + 2 x 128) x 2 bytes, state 2 x 128 x 128 in float32
    state_bytes=6 * (3 * 768 * 2 + 2 * 128 * 128 * 4),
)

# Two ranks of one KV head each, and each rank's pool has the bytes of --kv-cache-memory-bytes.
LLAMA_TP2 = replace(
    LLAMA,
    name="llama_tp2",
    flags=("--tensor-parallel-size", "2", "--block-size", "32"),
    num_blocks=608,  # 9,970,000 / (32 x 512)
    # 607 / 16 = 37.9; 607 / 32 = 18.97
    fits={512: 37, 1024: 18},
)

# On a GPU the engine is asked for one block size that all kernels for MLA take, and prefixes are cached.
DEEPSEEK_V2_GPU = replace(
    DEEPSEEK_V2,
    flags=(*_ONE_PROCESS, "--block-size", "64", "--enable-prefix-caching"),
    block_size=64,
    block_bytes=294_912,
    num_blocks=120,  # 35,400,000 / 294,912 = 120.04
    caches_prefixes=True,
    # 8 and 16 blocks each: 119 / 8 = 14.9; 119 / 16 = 7.4
    fits={512: 14, 1024: 7},
)

# GPU only: pools of 1 GiB, which the driver's count can be held against. Their size alone is checked.
LLAMA_GIBIBYTE = replace(
    LLAMA,
    name="llama_1gib",
    kv_cache_bytes=2**30 + 10_000,  # 32,768 blocks of 32,768 bytes
    num_blocks=32_768,
    # 32,767 without the null block, 16 and 32 each: 2047.9 and 1023.97
    fits={512: 2047, 1024: 1023},
)
# The label says 2 GiB, the pool has 1: an override of the blocks goes before the bytes.
LLAMA_OVERRIDDEN = replace(
    LLAMA_GIBIBYTE,
    name="llama_override",
    flags=(*_BLOCKS_OF_32, "--num-gpu-blocks-override", "32768"),
    kv_cache_bytes=2**31,
)
# The usual way to size a pool: what profiling leaves of a share of the GPU. Nobody can say it by hand.
LLAMA_PROFILED = replace(
    LLAMA,
    name="llama_profiled",
    flags=(*_BLOCKS_OF_32, "--gpu-memory-utilization", "0.25"),
    kv_cache_bytes=0,
    num_blocks=0,
    fits={512: 0, 1024: 0},
)

# Tests that leave models out take the front of this list: pytest then starts each engine once.
CPU_MODELS = (LLAMA, LLAMA_FP8, GEMMA2, QWEN3_NEXT, DEEPSEEK_V2)
GPU_MODELS = (LLAMA, LLAMA_FP8, GEMMA2, DEEPSEEK_V2_GPU)
MODELS = GPU_MODELS if wants_gpu() else CPU_MODELS
