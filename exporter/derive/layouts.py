"""How the engine lays this model's cache out, or why we can't tell."""

from __future__ import annotations

from exporter.derive.inputs import Inputs
from exporter.engines.detect import parse_version
from exporter.engines.sample import EngineSample
from exporter.kvmath import capacity
from exporter.kvmath.dtypes import resolve_cache_dtype
from exporter.kvmath.known import Reason, Unavailable, known
from exporter.kvmath.layers import Kind
from exporter.kvmath.model import ModelShape
from exporter.kvmath.parallel import Parallelism
from exporter.kvmath.speculation import draft_problem
from exporter.kvmath.vllm import BlockLayout, block_layout

# Releases before this one laid out window mixes differently (hybrid manager off by default).
HYBRID_LAYOUT_SINCE = (0, 10, 2)
# The what-if figures: the two cache dtypes people choose between.
# From this difference on our bytes are wrong rather than rounded.
DISPROVED_FROM = 0.01
SET_BY_HAND = Unavailable(Reason.SET_BY_HAND, "the figures set by hand hold for one cache dtype")
WHATIF_DTYPES = ("bfloat16", "fp8")


def parallelism(inputs: Inputs) -> Parallelism:
    """GPUs of one replica; unknown degrees count as 1 (reported as assumed)."""

    def degree(name: str) -> int:
        value = inputs.choices[name].value
        return value if isinstance(value, int) and value > 0 else 1

    return Parallelism(
        degree("tensor_parallel_size"),
        degree("pipeline_parallel_size"),
        degree("decode_context_parallel_size"),
    )


def cache_dtype(inputs: Inputs) -> str | Unavailable:
    """The cache dtype in force; without a config, as the engine was told."""
    asked = inputs.text("kv_cache_dtype")
    shape = inputs.model.shape
    return resolve_cache_dtype(asked, inputs.text("dtype"), shape) if known(shape) else asked


def block_plan(sample: EngineSample, inputs: Inputs, dtype: str | Unavailable) -> BlockLayout | Unavailable:
    """vLLM's layout with a cache of ``dtype``."""
    shape, block_tokens = inputs.model.shape, inputs.count("block_size", Reason.BLOCK_SIZE)
    if (override := inputs.model.override) is not None:
        prefix_caching = inputs.flag("enable_prefix_caching") is not False
        return (
            override.layout(block_tokens, parallelism(inputs), prefix_caching)
            if known(block_tokens)
            else block_tokens
        )
    if not known(shape):
        return shape
    if not known(dtype):
        return dtype
    if (problem := speculation_problem("vllm", inputs, shape)) is not None:
        return problem
    if not known(block_tokens):
        return block_tokens
    layout = _layout(inputs, shape, dtype, block_tokens, _state_dtype(sample, inputs, shape, block_tokens))
    if known(layout) and layout.block_tokens != block_tokens and not known(sample.capacity_tokens):
        # Releases without the size label named the block before it was raised to hold a state.
        return Unavailable(
            Reason.BLOCK_SIZE, f"the engine says {block_tokens}, its states need {layout.block_tokens}"
        )
    if known(layout) and len(layout.groups) > 1 and not known(sample.capacity_tokens):
        # The size label exists since about 0.30; without it only the release tells the layout.
        release = parse_version(inputs.text("version"))
        if release is None or release < HYBRID_LAYOUT_SINCE:
            return Unavailable(Reason.ENGINE_VERSION, "the layout of window mixes depends on the release")
    return layout


def speculation_problem(engine: str, inputs: Inputs, shape: ModelShape) -> Unavailable | None:
    """Why speculative decoding hides the layout; None where there is none or its layers are known."""
    if not inputs.flag("speculative"):
        return None
    method = speculative_method(inputs)
    if not method:
        return Unavailable(
            Reason.SPECULATIVE_DECODING, "draft layers may share the pool: --speculative METHOD"
        )
    if shape.has(Kind.STATE) and not known(_drafted_tokens(inputs)):
        return Unavailable(Reason.SPECULATIVE_DECODING, "states grow with --num-speculative-tokens")
    return draft_problem(engine, method, bool(shape.draft_layers))


def _drafted_tokens(inputs: Inputs) -> int | Unavailable:
    return inputs.count("num_speculative_tokens", Reason.SPECULATIVE_DECODING)


def speculative_method(inputs: Inputs) -> str:
    """The method in use, "" for none or where nobody names it."""
    return inputs.text("speculative_method") if inputs.flag("speculative") else ""


def _layout(
    inputs: Inputs, shape: ModelShape, dtype: str, block_tokens: int, state_dtype: str
) -> BlockLayout | Unavailable:
    length = inputs.count("max_model_len", Reason.MAX_MODEL_LEN)
    drafted = _drafted_tokens(inputs)
    return block_layout(
        shape,
        dtype,
        block_tokens,
        parallelism(inputs),
        hybrid_manager=inputs.flag("hybrid_kv_cache_manager") is not False,
        prefix_caching=inputs.flag("enable_prefix_caching"),
        speculative=speculative_method(inputs),
        speculative_tokens=drafted if known(drafted) else 1,
        max_model_len=length if known(length) else 0,
        model_dtype=inputs.text("dtype"),
        state_dtype=state_dtype,
    )


def _state_dtype(sample: EngineSample, inputs: Inputs, shape: ModelShape, block_tokens: int) -> str:
    """What the engine stores recurrent states in: as it says, else the model's own choice
    unless the engine's bytes say float32 (older pages lack the label)."""
    if inputs.text("state_dtype") not in ("", "auto"):
        return inputs.text("state_dtype")
    dtype = cache_dtype(inputs)
    if not shape.has(Kind.STATE) or not known(dtype):
        return "auto"
    for candidate in ("auto", "float32"):
        layout = _layout(inputs, shape, dtype, block_tokens, candidate)
        if known(layout) and _agrees(sample, layout):
            return candidate
    return "auto"


def _agrees(sample: EngineSample, layout: BlockLayout) -> bool:
    """False where the engine's byte budget contradicts the layout; silence agrees."""
    check = budget_check(sample, layout)
    return not known(check) or check == 1.0


def budget_check(sample: EngineSample, layout: BlockLayout) -> float | Unavailable:
    """Our block bytes over vLLM's, whose block count is floor(budget / block bytes);
    1.0 where ours gives exactly that count."""
    budget, blocks = sample.device_pool_bytes, sample.num_blocks
    if not known(budget):
        return budget
    if not known(blocks):
        return blocks
    if capacity.blocks_in(budget, layout.block_bytes) == blocks:
        return 1.0
    return layout.block_bytes * blocks / budget


def disproved(check: float | Unavailable, inputs: Inputs) -> Unavailable | None:
    """Why our bytes are not published: the engine's own figure is another.

    ``check``: our bytes over the engine's.  The ratio itself stays, to be alerted
    on.  An input that nobody told is the likelier culprit and is named.
    """
    if not known(check) or abs(check - 1.0) < DISPROVED_FROM:
        return None
    assumed = [n for n in ("tensor_parallel_size", "pipeline_parallel_size") if inputs.choices[n].assumed]
    size = f"by the engine's own figure its bytes are {1 / check:.4g} of ours"
    if check > 1 and "tensor_parallel_size" in assumed:
        return Unavailable(Reason.TENSOR_PARALLEL_SIZE, f"{' and '.join(assumed)} assumed as 1, but {size}")
    also = f", or {' and '.join(assumed)} is not 1" if assumed else ""
    return Unavailable(Reason.CONTRADICTION, f"{size}: another model's config.json or dtype{also}")


def admission_blocks(inputs: Inputs, layout: BlockLayout) -> int | Unavailable:
    """Blocks that vLLM reserves for one request of ``max_model_len``."""
    max_model_len = inputs.count("max_model_len", Reason.MAX_MODEL_LEN)
    if not known(max_model_len):
        return max_model_len
    if not layout.counts_in_flight:
        return layout.admission_blocks(max_model_len, 0)
    batched = inputs.count("max_num_batched_tokens", Reason.MAX_NUM_BATCHED_TOKENS)
    if not known(batched):
        return batched
    # Windows free blocks a step late, and overlapped scheduling has two steps in
    # flight (0.32.0 config/vllm.py max_in_flight_tokens).
    overlapped = inputs.flag("async_scheduling")
    if overlapped is None or parallelism(inputs).pipeline > 1:
        return Unavailable(Reason.MAX_NUM_BATCHED_TOKENS, "tokens in flight are not known")
    return layout.admission_blocks(max_model_len, batched * (2 if overlapped else 1))
