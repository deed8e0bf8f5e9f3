"""Blocks held over a sequence's life, against brute force over every length."""

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from exporter.kvmath.blocks import BlockLayout, CacheGroup
from exporter.kvmath.capacity import sequences_that_fit
from exporter.kvmath.layers import Kind

LENGTHS = st.integers(1, 2500)
KINDS = st.sampled_from(
    [Kind.FULL, Kind.MLA, Kind.WINDOW, Kind.RECORD_WINDOW, Kind.RING, Kind.CHUNK, Kind.STATE, Kind.CROSS]
)


@st.composite
def groups(draw: st.DrawFn, blocks: tuple[int, ...] = (4, 16, 64, 256)) -> CacheGroup:
    """A group of any kind."""
    kind = draw(KINDS)
    bounded = kind not in (Kind.FULL, Kind.MLA, Kind.STATE)
    return CacheGroup(
        kind,
        1,
        draw(st.integers(1, 900)) if bounded else 0,
        draw(st.sampled_from(blocks)),
        page_bytes=1,
        spare_blocks=draw(st.integers(0, 2)) if kind is Kind.STATE else 0,
        checkpoint_blocks=draw(st.integers(0, 1)) if kind is Kind.STATE else 0,
        prefix_cached=draw(st.booleans()),
        retained_tokens=draw(st.integers(0, 3)) if kind is Kind.WINDOW else 0,
    )


def held(group: CacheGroup, tokens: int) -> list[int]:
    return [group.resident_blocks(n) for n in range(1, tokens + 1)]


@settings(deadline=None)
@given(group=groups((1, 3, 16, 48, 544)), tokens=LENGTHS)
def test_a_groups_peak_is_the_most_it_ever_holds(group: CacheGroup, tokens: int) -> None:
    """The maximum, not a bound above it, for every kind of group."""
    assert group.peak_blocks(tokens) == max(held(group, tokens))


@settings(deadline=None, max_examples=60)
@given(of=st.lists(groups(), min_size=1, max_size=4), tokens=LENGTHS)
def test_the_joint_peak_is_at_one_length(of: list[CacheGroup], tokens: int) -> None:
    """Groups of different block sizes, chunks among them, need not be at their fullest together."""
    layout = BlockLayout(tuple(of), 1, 1, 1, 1)
    joint = max(sum(blocks) for blocks in zip(*(held(group, tokens) for group in of), strict=True))
    assert layout.peak_blocks(tokens) == joint
    assert joint <= sum(group.peak_blocks(tokens) for group in of)


@settings(deadline=None)
@given(group=groups(), tokens=LENGTHS, batched=st.integers(1, 5000))
def test_admission_covers_what_is_held(group: CacheGroup, tokens: int, batched: int) -> None:
    """Nothing is admitted that could not stay.

    vLLM's own formula for chunks is short by a block where a chunk starts inside one and less than a
    block is scheduled at a time; no published model has such chunks.
    """
    assume(group.kind is not Kind.CHUNK or batched >= group.span)
    assert group.admission_blocks(tokens, batched) >= group.peak_blocks(tokens)


@settings(deadline=None, max_examples=50)
@given(of=st.lists(groups(), min_size=1, max_size=4), tokens=LENGTHS, pool=st.integers(0, 5000))
def test_sequences_fit_in_their_pool(of: list[CacheGroup], tokens: int, pool: int) -> None:
    """As many as said at their peak take no more than the pool, and one more would."""
    peak = BlockLayout(tuple(of), 1, 1, 1, 1).peak_blocks(tokens)
    fit = sequences_that_fit(pool, peak)
    assert fit * peak <= pool < (fit + 1) * peak


def test_a_chunk_is_given_back_whole() -> None:
    """Llama 4: chunks of 8,192, blocks of 16, three local groups beside a full one.

    At 12,288 tokens: 768 + 3 x 256 = 1,536; on the way, at 8,192: 4 x 512 = 2,048, the peak.
    """
    full = CacheGroup(Kind.FULL, 1, 0, 16, 1)
    chunk = CacheGroup(Kind.CHUNK, 1, 8192, 16, 1)
    layout = BlockLayout((chunk, chunk, chunk, full), 1, 1, 1, 1)
    assert layout.resident_blocks(8192) == 2048
    assert layout.resident_blocks(8193) == 513 + 3
    assert layout.resident_blocks(12_288) == 1536
    assert layout.peak_blocks(12_288) == 2048
    assert chunk.admission_blocks(131_072, 4096) == 768
    assert "chunks of 8,192" in chunk.description
