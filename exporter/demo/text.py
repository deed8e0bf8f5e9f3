"""What the demo says in the terminal."""

from __future__ import annotations

from typing import Final

from exporter import catalogue

# Series to point at, and what to see in them.  The figures follow from the recorded model (4 layers, 2 KV
# heads of 32, bf16) and pools (300 blocks of 32 tokens, one of them reserved; 3,072 tokens).
WORTH_WATCHING: Final = (
    (catalogue.BYTES_PER_TOKEN, "1,024 on both: K and V x 2 heads x 32 x 4 layers x 2 bytes"),
    (catalogue.USAGE_RATIO, "how full the pool is; both were given too little on purpose"),
    (catalogue.USED_BYTES, f"the same in bytes, of {catalogue.CAPACITY_BYTES.name}"),
    (catalogue.MAX_SEQUENCES, "how many sequences fit, by context: 2 of 4,096 on demo-vllm"),
    (catalogue.WHATIF_MAX_SEQUENCES, "the same pool with another cache dtype"),
    (catalogue.PREEMPTIONS, "rises while requests are thrown out and computed again"),
    (catalogue.PREFIX_HIT_TOKENS, "prompt tokens that were already in the cache"),
    (catalogue.UNAVAILABLE, "what can't be known here, and why"),
)
_TO_GREP: Final = (catalogue.USAGE_RATIO, catalogue.MAX_SEQUENCES)


def what_to_look_at(listen_url: str) -> str:
    """A short text for the terminal: where to look and at what, ``listen_url`` being the exporter's own."""
    base = listen_url.rstrip("/")
    width = max(len(metric.name) for metric, _ in WORTH_WATCHING)
    to_grep = "|".join(metric.name for metric in _TO_GREP)
    lines = [
        "Two recorded engines are replayed, vLLM 0.32.0 and SGLang 0.5.23, both short of KV cache.",
        "Each starts again after about 35 s, which looks like an engine restart.",
        "",
        "Open",
        f"  {base}/         where everything is",
        f"  {base}/metrics  what Prometheus scrapes",
        f"  {base}/explain  how each number came about",
        "",
        "Worth watching",
        *(f"  {metric.name:<{width}}  {what}" for metric, what in WORTH_WATCHING),
        "",
        "Try",
        f"  curl -s {base}/metrics | grep -E '^({to_grep})'",
        f"  curl -s {base}/sd    # where the two engines are, for `check` and `record`",
        "",
        "Ctrl-C ends it.",
    ]
    return "\n".join(lines)
