"""What must hold for any sizes, not only for the ones recorded."""

from hypothesis import given, settings
from hypothesis import strategies as st

from exporter.kvmath import states
from exporter.kvmath.capacity import blocks_in, max_model_len_from, pool_bytes, used_blocks
from exporter.kvmath.content import content_bytes, layer_table
from exporter.kvmath.known import Unavailable
from exporter.kvmath.layers import Kind, LayerCache, recurrent
from exporter.kvmath.model import ModelShape
from exporter.kvmath.parallel import Parallelism, pipeline_stages, sglang_pipeline_stages
from exporter.kvmath.sglang import TokenPools, token_pools
from exporter.kvmath.vllm import BlockLayout, CacheGroup, block_layout

LENGTHS = st.integers(1, 5000)
BLOCKS = st.sampled_from([1, 2, 16, 32, 48, 128, 544])
WINDOWS = st.integers(1, 3000)


def group(window: int, block: int) -> CacheGroup:
    kind = Kind.WINDOW if window else Kind.FULL
    return CacheGroup(kind=kind, layers=1, window_tokens=window, block_tokens=block, page_bytes=1)


@st.composite
def shapes(draw: st.DrawFn) -> ModelShape:
    """Full and window layers of one size, or MLA layers."""
    heads = draw(st.sampled_from([1, 2, 4, 8, 16, 64]))
    if draw(st.booleans()):
        layers = [LayerCache(Kind.MLA, 1, draw(st.sampled_from([256, 576])), 0)] * draw(st.integers(1, 60))
    else:
        full = LayerCache(Kind.FULL, heads, 64, 64)
        window = LayerCache(Kind.WINDOW, heads, 64, 64, draw(WINDOWS))
        layers = draw(st.lists(st.sampled_from([full, window]), min_size=1, max_size=60))
    return ModelShape("test", ("DeepseekV3ForCausalLM",), tuple(layers), 4096, "bfloat16", "", heads * 8)


def laid_out(shape: ModelShape, dtype: str = "bfloat16", tensor: int = 1, pipeline: int = 1) -> BlockLayout:
    layout = block_layout(shape, dtype, 16, Parallelism(tensor, pipeline))
    assert isinstance(layout, BlockLayout), layout
    return layout


@settings(deadline=None)
@given(window=WINDOWS, block=BLOCKS, tokens=LENGTHS)
def test_peak_is_the_most_ever_held(window: int, block: int, tokens: int) -> None:
    """Brute force over every length up to this one: the formula is the maximum, not a bound above it."""
    windowed = group(window, block)
    assert windowed.peak_blocks(tokens) == max(windowed.resident_blocks(n) for n in range(1, tokens + 1))


@settings(deadline=None)
@given(windows=st.lists(WINDOWS, min_size=1, max_size=3), block=BLOCKS, tokens=LENGTHS)
def test_groups_peak_together(windows: list[int], block: int, tokens: int) -> None:
    """The sum of the groups' peaks is held at some length: nobody is charged for two moments at once."""
    groups = tuple(group(window, block) for window in [0, *windows])
    layout = BlockLayout(groups, 1, 1, 1, 1)
    assert layout.peak_blocks(tokens) == max(layout.resident_blocks(n) for n in range(1, tokens + 1))


@settings(deadline=None)
@given(window=WINDOWS, block=BLOCKS, tokens=LENGTHS, more=st.integers(0, 500))
def test_peak_never_falls(window: int, block: int, tokens: int, more: int) -> None:
    """A longer context never needs less room."""
    assert group(window, block).peak_blocks(tokens + more) >= group(window, block).peak_blocks(tokens)


@settings(deadline=None)
@given(window=WINDOWS, block=BLOCKS, tokens=LENGTHS, batched=st.integers(1, 9000))
def test_admission_covers_the_peak(window: int, block: int, tokens: int, batched: int) -> None:
    """What is reserved to admit a sequence is never less than what it holds later."""
    for any_group in (group(window, block), group(0, block)):
        assert any_group.admission_blocks(tokens, batched) >= any_group.peak_blocks(tokens)


@settings(deadline=None)
@given(block=BLOCKS, tokens=LENGTHS, beyond=st.integers(0, 5000))
def test_a_window_beyond_the_length_is_full_attention(block: int, tokens: int, beyond: int) -> None:
    """Phi-3's window of 262,144 exceeds its context: nothing is ever given back."""
    windowed, full = group(tokens + beyond, block), group(0, block)
    assert windowed.resident_blocks(tokens) == full.resident_blocks(tokens)
    assert windowed.peak_blocks(tokens) == full.peak_blocks(tokens)


@settings(deadline=None)
@given(shape=shapes(), tensor=st.sampled_from([1, 2, 4, 8]))
def test_a_rank_never_holds_less_than_its_share(shape: ModelShape, tensor: int) -> None:
    """Splitting over n ranks divides at best by n; copies only add."""
    one, split = laid_out(shape), laid_out(shape, tensor=tensor)
    assert split.block_bytes * tensor >= one.block_bytes
    assert split.bytes_per_token >= one.bytes_per_token
    assert split.replica_block_bytes == split.block_bytes * tensor


@settings(deadline=None)
@given(shape=shapes())
def test_fp8_takes_half(shape: ModelShape) -> None:
    """One byte per element instead of two, with no scales in the pages."""
    wide, narrow = laid_out(shape), laid_out(shape, "fp8")
    assert narrow.block_bytes * 2 == wide.block_bytes
    assert narrow.bytes_per_token * 2 == wide.bytes_per_token


@st.composite
def hybrids(draw: st.DrawFn) -> ModelShape:
    """K and V or a latent beside recurrent states whose heads and channels divide by 8."""
    heads = draw(st.sampled_from([1, 2, 8]))
    full = LayerCache(Kind.FULL, heads, 64, 64) if draw(st.booleans()) else LayerCache(Kind.MLA, 1, 576, 0)
    state = draw(
        st.sampled_from(
            [
                states.mamba2(64, 32, 8, 64, 4, 2048),
                states.gated_delta_net(16, 64, 32, 64, 4, "float32"),
                states.short_convolution(1024, 3),
                states.lightning(16, 64),
            ]
        )
    )
    layers = draw(st.lists(st.sampled_from([full, recurrent(state)]), min_size=2, max_size=40))
    return ModelShape("test", (), (full, recurrent(state), *layers), 4096, "bfloat16", "", heads * 8)


@settings(deadline=None)
@given(shape=hybrids(), tensor=st.sampled_from([2, 4, 8]), tokens=LENGTHS)
def test_hybrids_only_ever_round_up(shape: ModelShape, tensor: int, tokens: int) -> None:
    """The block holds every state; what a sequence holds covers its content on any split."""
    rows = layer_table(shape, "bfloat16")
    assert not isinstance(rows, Unavailable)
    content = content_bytes(rows, tokens)
    one, split = laid_out(shape), laid_out(shape, tensor=tensor)
    for layout, ranks in ((one, 1), (split, tensor)):
        assert layout.block_tokens % 16 == 0
        assert len({group.page_bytes for group in layout.groups}) == 1
        assert all(part.data_bytes <= part.page_bytes for group in layout.groups for part in group.parts)
        assert layout.resident_blocks(tokens) * layout.block_bytes * ranks >= content
    assert split.bytes_per_token >= one.bytes_per_token
    assert split.state_bytes_per_sequence == one.state_bytes_per_sequence
    assert split.device_state_bytes_per_sequence * tensor == split.state_bytes_per_sequence


@settings(deadline=None)
@given(shape=hybrids(), tokens=LENGTHS, more=st.integers(0, 3000))
def test_content_and_peak_never_fall(shape: ModelShape, tokens: int, more: int) -> None:
    """A longer context holds no less, laid out or not, in 16 bits or fp8, which takes no more."""
    wide, narrow = layer_table(shape, "bfloat16"), layer_table(shape, "fp8")
    assert not isinstance(wide, Unavailable)
    assert not isinstance(narrow, Unavailable)
    assert content_bytes(wide, tokens + more) >= content_bytes(wide, tokens) >= content_bytes(narrow, tokens)
    layout = laid_out(shape)
    assert layout.peak_blocks(tokens + more) >= layout.peak_blocks(tokens)
    assert laid_out(shape, "fp8").bytes_per_token <= layout.bytes_per_token


@settings(deadline=None)
@given(shape=shapes(), stages=st.integers(1, 8))
def test_pipeline_stages_lose_nothing(shape: ModelShape, stages: int) -> None:
    """Marginal bytes of the replica do not depend on the split; one GPU holds at least its share."""
    stages = min(stages, len(shape.layers))
    one, split = laid_out(shape), laid_out(shape, pipeline=stages)
    assert split.bytes_per_token == one.bytes_per_token
    assert split.device_bytes_per_token * stages >= one.bytes_per_token
    assert split.replica_block_bytes >= one.block_bytes
    assert split.groups == one.groups


@settings(deadline=None)
@given(shape=shapes(), tensor=st.sampled_from([1, 2, 8]), stages=st.integers(1, 8))
def test_without_windows_the_engines_agree(shape: ModelShape, tensor: int, stages: int) -> None:
    """One group and one pool: a vLLM block of B tokens is B SGLang slots, whatever the stages.

    (For the replica; the largest stage differs, for the engines deal out the remainder differently.)
    """
    parallelism = Parallelism(tensor, min(stages, len(shape.layers)))
    pools = token_pools(shape, "bfloat16", 1, parallelism)
    assert isinstance(pools, TokenPools)
    layout = laid_out(shape, tensor=tensor, pipeline=parallelism.pipeline)
    if layout.single_full_group:
        assert layout.replica_block_bytes == 16 * pools.replica_full_token_bytes


@settings(deadline=None)
@given(layers=st.integers(1, 200), stages=st.integers(1, 16))
def test_stages_cover_every_layer_once(layers: int, stages: int) -> None:
    """Neither engine drops a layer or gives one to two stages, and shares differ by one at most."""
    stages = min(layers, stages)
    for split in (pipeline_stages(layers, stages), sglang_pipeline_stages(layers, stages)):
        assert [layer for stage in split for layer in stage] == list(range(layers))
        assert max(map(len, split)) - min(map(len, split)) <= 1


@settings(deadline=None)
@given(blocks=st.integers(1, 10**7), data=st.data())
def test_used_blocks_undo_the_engines_division(blocks: int, data: st.DataObject) -> None:
    """usage = used / usable in binary floating point; rounding gives the integer back."""
    used = data.draw(st.integers(0, blocks))
    assert used_blocks(used / blocks, blocks) == used


@settings(deadline=None)
@given(blocks=st.integers(1, 10**6), per_block=st.integers(1, 10**8), spare=st.integers(0, 10**8))
def test_blocks_in_never_promises_too_many(blocks: int, per_block: int, spare: int) -> None:
    """floor: the blocks fit, and one more would not."""
    pool = pool_bytes(blocks, per_block) + spare
    fitting = blocks_in(pool, per_block)
    assert pool_bytes(fitting, per_block) <= pool < pool_bytes(fitting + 1, per_block)


@settings(deadline=None)
@given(length=st.integers(1, 10**7), blocks=st.integers(1, 10**6), block=st.sampled_from([16, 32, 64]))
def test_max_model_len_comes_back(length: int, blocks: int, block: int) -> None:
    """From the two labels the engine derives from it: the length itself or nothing, never another one."""
    per_sequence = -(-length // block)
    ratio = blocks / per_sequence
    found = max_model_len_from(int(ratio * length), ratio)
    assert isinstance(found, Unavailable) or found == length
    if ratio >= 1:
        assert found == length
