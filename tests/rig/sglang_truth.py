"""What the rig's models must come to under SGLang, worked out by hand from config.json and the flags."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import ceil


@dataclass(frozen=True, slots=True)
class SglangModel:
    """One model, the flags that start it and the figures that follow from both."""

    name: str
    directory: str
    page_tokens: int
    flags: tuple[str, ...]
    capacity_tokens: int
    token_bytes: int
    fits: Mapping[int, int]
    """How many sequences of so many tokens the pool holds."""

    @property
    def pool_bytes(self) -> int:
        """All slots and one more page, which padding writes into (0.5.23 mem_cache/memory_pool.py)."""
        return (self.capacity_tokens + self.page_tokens) * self.token_bytes

    def slots(self, tokens: int) -> int:
        """Slots that a sequence holds: whole pages."""
        return ceil(tokens / self.page_tokens) * self.page_tokens

    def slots_of_all(self, lengths: Sequence[int]) -> int:
        """Slots held by sequences that share nothing."""
        return sum(self.slots(tokens) for tokens in lengths)

    def shared(self, tokens: int) -> int:
        """Of a common prefix of so many tokens, those that a second request finds: whole pages."""
        return tokens // self.page_tokens * self.page_tokens


# 24 at once: enough to overfill the pool, few enough that requests can be made to wait for a turn.
MAX_RUNNING = 24
# Low conservativeness: requests are admitted although the pool can't hold what they will generate.
_OVERCOMMIT = (
    *("--schedule-conservativeness", "0.05", "--max-running-requests", str(MAX_RUNNING)),
    *("--chunked-prefill-size", "512"),
)
_ROUTES = (
    *("--tokenizer-metrics-custom-labels-header", "x-custom-labels"),
    *("--tokenizer-metrics-allowed-custom-labels", "route"),
)

# K and V x 2 KV heads x 32 elements x 2 bytes x 4 layers = 1,024 bytes per token
LLAMA = SglangModel(
    name="llama",
    directory="llama",
    page_tokens=1,
    flags=(*_OVERCOMMIT, "--max-total-tokens", "3400"),
    capacity_tokens=3400,
    token_bytes=1024,
    fits={512: 6, 1024: 3},  # 3,400 / 512 = 6.6, / 1,024 = 3.3
)

LLAMA_PAGES = SglangModel(
    name="llama-page64",
    directory="llama",
    page_tokens=64,
    flags=(*_OVERCOMMIT, *_ROUTES, "--max-total-tokens", "3400", "--page-size", "64"),
    capacity_tokens=3392,  # 53 whole pages of 64
    token_bytes=1024,
    fits={512: 6, 1024: 3},  # 8 and 16 pages each; 53 / 8 = 6.6, / 16 = 3.3
)

# One latent of 512 + 64 elements x 2 bytes x 4 layers = 4,608 bytes per token. It starts, but its first
# prefill fails: with torch_native 0.5.23 takes the path that unfolds the latent into heads and then reads the
# latent pool as if it held them (models/deepseek_common/attention_backend_handler.py).
DEEPSEEK_V2 = SglangModel(
    name="deepseek_v2",
    directory="deepseek_v2_yarn",
    page_tokens=1,
    flags=("--max-total-tokens", "3400"),
    capacity_tokens=3400,
    token_bytes=4608,
    fits={512: 6, 1024: 3},
)

MODELS = (LLAMA, LLAMA_PAGES, DEEPSEEK_V2)
SERVING = (LLAMA, LLAMA_PAGES)
