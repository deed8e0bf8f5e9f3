"""What the rig claims: every figure that it compares, against what, how closely and why that closely.

The table in README.md is this list (`python -m tests.rig.claims` prints it; a test compares the two).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

CLAIMS: dict[str, Claim] = {}


@dataclass(frozen=True, slots=True)
class Claim:
    """One figure of the exporter's, and the truth that it is held against."""

    name: str
    says: str
    truth: str
    """Where the expected value comes from: never from the exporter."""
    tolerance: float
    relative: bool
    why: str
    """Why the tolerance is what it is."""
    per: str = ""
    """What the tolerance is for one of, where it is for several."""

    def allowed(self, expected: object) -> float:
        """The greatest difference that passes, in the figure's own unit."""
        if self.relative and isinstance(expected, int | float):
            return abs(self.tolerance * expected)
        return self.tolerance

    @property
    def closeness(self) -> str:
        """The tolerance for people."""
        if not self.tolerance:
            return "exact"
        if self.relative:
            return f"{self.tolerance * 100:g} %"
        return f"{self.tolerance:.9g}{self.per and f' {self.per}'}"


# The exporter's poll, Prometheus' scrape and evaluation, `for` rounded up to one, Alertmanager's grouping.
ALERT_WAITS_S = 0.2 + 4 * 1.0
_WHOLE = "both are whole numbers"


def _claim(
    name: str,
    says: str,
    truth: str,
    *,
    tolerance: float = 0.0,
    relative: bool = False,
    why: str = _WHOLE,
    per: str = "",
) -> Claim:
    made = Claim(name, says, truth, tolerance, relative, why, per)
    if CLAIMS.setdefault(name, made) is not made:
        raise ValueError(f"two claims are named {name}")
    return made


# -- the pool ------
CAPACITY_TOKENS = _claim("capacity_tokens", "tokens that the pool holds", "the engine's log")
CAPACITY_BLOCKS = _claim("capacity_blocks", "blocks of the pool", "the engine's info metric")
BLOCKS_BY_HAND = _claim(
    "capacity_blocks_by_hand", "blocks of the pool", "config.json and flags, summed by hand"
)
CAPACITY_BYTES = _claim("capacity_bytes", "bytes of the pool", "config.json and flags, summed by hand")
BYTES_TOLD = _claim("capacity_bytes_told", "bytes of the pool", "the engine's own figure (SGLang)")
TENSOR_BYTES = _claim(
    "pool_tensor_bytes", "bytes of the pool", "the storages of the engine's KV tensors, as torch has them"
)
ALLOCATOR_BYTES = _claim(
    "pool_allocator_bytes",
    "bytes of the pool",
    "what torch's allocator was asked for while the KV tensors were made (GPU)",
    why="torch counts what it was asked for to the byte; what it gives is up to 1 MiB more a tensor",
)
DRIVER_BYTES = _claim(
    "pool_driver_bytes",
    "bytes of the pool",
    "what the driver has less of after the KV tensors were made (GPU, pools of 1 GiB and more)",
    tolerance=2 * 2**20,
    per="a tensor, and 4 more",
    why="torch takes whole pages of 2 MiB for each tensor; kernels first used meanwhile may take some. In a "
    "smaller pool a tensor may come out of a segment that torch has left over",
)
MAX_MODEL_LEN = _claim("max_model_len_tokens", "longest context served", "the engine's log")
BYTES_PER_TOKEN = _claim("bytes_per_token", "bytes of one more token", "config.json, summed by hand")
STATE_BYTES = _claim(
    "state_bytes_per_sequence", "bytes of a sequence's states", "config.json, summed by hand"
)
ARITHMETIC_RATIO = _claim(
    "arithmetic_ratio",
    "our layout over the engine's own figure",
    "1: agreement",
    tolerance=1e-6,
    why="one division on each side",
)

# -- what is held ------
USED_BLOCKS = _claim(
    "used_blocks", "blocks in use while the engine is held still", "the client's count of tokens"
)
USED_TOKENS = _claim("used_tokens", "tokens in use, or no series", "the client's count of tokens")
USED_BYTES = _claim("used_bytes", "bytes in use", "the client's count of tokens")
USAGE_RATIO = _claim(
    "usage_ratio",
    "share of the pool in use",
    "the client's count of tokens",
    tolerance=1e-6,
    relative=True,
    why="a division, printed as a decimal",
)
SHARED_BLOCKS = _claim(
    "shared_prefix", "two requests over one prefix hold it once", "the client's count of tokens"
)
POOL_SUM = _claim("pool_adds_up", "used + cached + free", "the pool's size by hand (SGLang)")
RUNNING = _claim("running_sequences", "sequences being run", "the client")
WAITING = _claim("waiting_sequences", "sequences queued", "the client")
IDLE = _claim("idle", "nothing is held once everything has ended or hung up", "the client: zero")

# -- what fits ------
FITS = _claim(
    "sequences_that_fit",
    "sequences of one length side by side",
    "reached: that many ran unpreempted, one more did not",
)
FITS_BY_HAND = _claim(
    "sequences_by_hand", "sequences of one length side by side", "config.json and flags, by hand"
)
FREE = _claim("free_sequences", "sequences that still fit", "the client's count of tokens, by hand")

# -- counts ------
FINISHED = _claim("finished_requests", "requests that ended", "the client; who hung up is none of them")
FINISHED_TOLD = _claim("finished_requests_told", "requests that ended", "the engine's counter")
PREFIX_QUERIES = _claim("prefix_query_tokens", "prompt tokens looked up", "the client's prompts")
PREFIX_HITS = _claim("prefix_hit_tokens", "prompt tokens found", "the client's prompts, whole blocks")
PREFIX_HITS_TOLD = _claim("prefix_hit_tokens_told", "prompt tokens found", "the engine's counter")
PREEMPTIONS = _claim("preemptions", "preemption or retraction events", "the engine's counter")
PREEMPTIONS_LOGGED = _claim(
    "retractions_logged", "retraction events", "the engine's log, request by request (SGLang)"
)
PREEMPTED_REQUESTS = _claim(
    "preempted_requests",
    "requests preempted at least once",
    "the engine's account of each request (vLLM's stat logger)",
)
PREEMPTED_TOLD = _claim(
    "preempted_requests_told",
    "requests preempted at least once",
    "the engine's histogram of preemptions per request: events, less those after each request's first",
)
EVICTED = _claim("evicted_tokens", "cached tokens thrown out", "the engine's counter (SGLang)")

# -- latency ------
TIER_REQUESTS = _claim("requests_by_tier", "finished requests of a tier", "the client's lengths")
ITL = _claim(
    "itl_by_tier",
    "mean gap between tokens, by tier",
    "the client's gaps",
    tolerance=0.1,
    relative=True,
    why="a token reaches the client some 10 ms after it was made, on a busy machine up to 0.4 s, and the "
    "first may be later than the last; the gaps are made long (up to 8 s held in all; less where the client "
    "is late for it), so that this is a few per cent of them",
)
TTFT = _claim(
    "ttft_by_tier",
    "mean time to the first token, by tier",
    "the client's clock",
    tolerance=0.3,
    relative=True,
    why="the client's time includes sending, tokenizing and reading, on a busy machine up to a second; the "
    "first tokens are held back for 4 s",
)

# -- the page ------
ALERT_DELAY = _claim(
    "alert_delay",
    "seconds from a pool that fills to the page at the webhook",
    "when the engine's own page crossed the threshold, the alert's `for`, and half of the waits",
    tolerance=ALERT_WAITS_S / 2 + 0.9,
    why="between nothing and its interval passes at each of five steps: poll (0.2 s), scrape, evaluation, "
    "`for` counted in evaluations, grouping (1 s each); and 0.9 s for a busy machine",
)


def table() -> str:
    """The claims as a Markdown table."""
    lines = ["| check | what we say | held against | tolerance | why |", "| --- | --- | --- | --- | --- |"]
    lines += [f"| `{c.name}` | {c.says} | {c.truth} | {c.closeness} | {c.why} |" for c in CLAIMS.values()]
    return "\n".join(lines)


START, END = "<!-- generated: claims -->", "<!-- end of claims -->"


def with_table(readme: str) -> str:
    """`readme` with the table between its marks; raises ValueError where a mark is missing."""
    head, rest = readme.split(START)
    _, tail = rest.split(END)
    return f"{head}{START}\n{table()}\n{END}{tail}"


if __name__ == "__main__":
    path = Path(__file__).with_name("README.md")
    path.write_text(with_table(path.read_text()))
