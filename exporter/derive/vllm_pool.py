"""vLLM's block pool: blocks, bytes, tokens and sequences."""

from __future__ import annotations

from collections.abc import Sequence

from exporter import catalogue as c
from exporter.derive.inputs import Inputs
from exporter.derive.readout import Notebook
from exporter.engines.detect import parse_version
from exporter.engines.sample import EngineSample
from exporter.kvmath import capacity
from exporter.kvmath.dtypes import element_bytes, resolve_cache_dtype
from exporter.kvmath.known import Reason, Unavailable, known
from exporter.kvmath.parallel import Parallelism
from exporter.kvmath.vllm import BlockLayout, block_layout

# Above this the engine's two capacity figures are said to disagree.
SIZE_TOLERANCE = 0.01
# Releases before this one laid out window mixes differently (hybrid manager off by default).
HYBRID_LAYOUT_SINCE = (0, 10, 2)
WHATIF_DTYPES = ("bfloat16", "fp8")


def derive(sample: EngineSample, inputs: Inputs, contexts: Sequence[int], out: Notebook) -> str | Unavailable:
    """Fill ``out``; returns the cache dtype in force."""
    dtype, layout = _layout(sample, inputs, out)
    blocks, block_tokens = sample.num_blocks, inputs.count("block_size", Reason.BLOCK_SIZE)
    usable: int | Unavailable = blocks - sample.null_blocks if known(blocks) else blocks
    used: int | Unavailable = Unavailable(Reason.NOT_REPORTED)
    if not known(sample.usage_ratio):
        used = sample.usage_ratio
    elif known(usable):
        used = capacity.used_blocks(sample.usage_ratio, usable)
        out.show(
            "used blocks",
            f"round({sample.usage_ratio:.6g} x ({blocks} - {sample.null_blocks} null block))",
            used,
            "blocks",
        )
    else:
        used = usable
    one_group = _one_full_group(sample, layout, block_tokens)

    out.put(c.CAPACITY_BLOCKS, blocks)
    out.put(c.USED_BLOCKS, used)
    _tokens(sample, inputs, one_group, block_tokens, used, out)
    _bytes(blocks, used, layout, out)
    _trust(sample, inputs, layout, out)
    _sequences(usable, used, _peak_blocks(layout, one_group, block_tokens), contexts, out)
    for context in contexts:
        if known(layout):
            taken = layout.peak_blocks(context)
            size = taken * layout.replica_block_bytes
            out.put(c.SEQUENCE_BYTES, size, context=str(context))
            out.show(
                f"one sequence of {context:,} tokens",
                f"{taken} blocks at its peak x {layout.replica_block_bytes:,} bytes",
                f"{size:,}",
                "bytes",
            )
        else:
            out.put(c.SEQUENCE_BYTES, layout)
    _whatif(sample, inputs, layout, dtype, contexts, out)
    return dtype


def _layout(
    sample: EngineSample, inputs: Inputs, out: Notebook
) -> tuple[str | Unavailable, BlockLayout | Unavailable]:
    shape = inputs.model.shape
    if not known(shape):
        return inputs.text("kv_cache_dtype"), shape
    dtype = resolve_cache_dtype(inputs.text("kv_cache_dtype"), inputs.text("dtype"), shape)
    layout = _plan(sample, inputs, dtype)
    if known(layout):
        for group in layout.groups:
            window = f", window {group.window_tokens:,} tokens" if group.window_tokens else ""
            out.show(
                f"cache group of {group.layers} {group.kind} layers{window}",
                f"{group.block_tokens} tokens a block x {group.page_bytes // group.block_tokens:,} bytes "
                "a token and layer, one GPU",
                f"{group.page_bytes:,}",
                "bytes a page",
            )
        out.show("one block, one GPU", "largest group's layers x page", f"{layout.block_bytes:,}", "bytes")
        why_not = _contradicted(sample, inputs, layout)
        if why_not:
            layout = why_not
    if not known(layout):
        out.show("cache layout", "config.json + cache dtype + parallelism", layout)
    return dtype, layout


def _plan(sample: EngineSample, inputs: Inputs, dtype: str | Unavailable) -> BlockLayout | Unavailable:
    shape = inputs.model.shape
    block_tokens = inputs.count("block_size", Reason.BLOCK_SIZE)
    if not known(shape):
        return shape
    if not known(dtype):
        return dtype
    if inputs.flag("speculative"):
        return Unavailable(Reason.SPECULATIVE_DECODING, "draft layers take part of each block")
    if not known(block_tokens):
        return block_tokens
    layout = block_layout(
        shape,
        dtype,
        block_tokens,
        parallelism(inputs),
        hybrid_manager=inputs.flag("hybrid_kv_cache_manager") is not False,
    )
    if known(layout) and len(layout.groups) > 1 and not known(sample.capacity_tokens):
        # The size label exists since about 0.30; without it only the release tells the layout.
        release = parse_version(inputs.text("version"))
        if release is None or release < HYBRID_LAYOUT_SINCE:
            return Unavailable(Reason.ENGINE_VERSION, "the layout of window mixes depends on the release")
    return layout


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


def _contradicted(sample: EngineSample, inputs: Inputs, layout: BlockLayout) -> Unavailable | None:
    """The engine's own byte budget against our block, where we had to assume.

    With every input told by someone a mismatch is published as a ratio; with
    an assumed one, the assumption is the likelier culprit and nothing is.
    """
    check = _budget_check(sample, layout)
    if known(check) and check != 1.0:
        assumed = [n for n in ("tensor_parallel_size", "pipeline_parallel_size") if inputs.choices[n].assumed]
        if assumed:
            reason = Reason.TENSOR_PARALLEL_SIZE if check > 1 else Reason.CONTRADICTION
            return Unavailable(
                reason,
                f"{' and '.join(assumed)} assumed as 1, but the engine's block is {1 / check:.4g} of ours",
            )
    return None


def _one_full_group(
    sample: EngineSample, layout: BlockLayout | Unavailable, block_tokens: int | Unavailable
) -> bool | Unavailable:
    """Whether one block id stands for ``block_tokens`` tokens of every layer."""
    if sample.attention_free:
        return Unavailable(Reason.ATTENTION_FREE, "the model keeps state, no tokens")
    if known(layout):
        return layout.single_full_group
    if known(sample.num_blocks) and known(block_tokens) and known(sample.capacity_tokens):
        return sample.num_blocks * block_tokens == sample.capacity_tokens
    return layout


def _tokens(
    sample: EngineSample,
    inputs: Inputs,
    one_group: bool | Unavailable,
    block_tokens: int | Unavailable,
    used_blocks: int | Unavailable,
    out: Notebook,
) -> None:
    size = _capacity_tokens(sample, inputs, one_group, block_tokens, out)
    out.put(c.CAPACITY_TOKENS, size)
    out.show("capacity", "the engine's kv_cache_size_tokens, else blocks x block size", size, "tokens")
    used: int | Unavailable
    if not known(used_blocks):
        used = used_blocks
    elif not known(one_group):
        used = one_group
    elif not one_group:
        used = Unavailable(Reason.SEVERAL_CACHE_GROUPS, "blocks of several cache groups are no token count")
    elif not known(block_tokens):
        used = block_tokens
    else:
        used = used_blocks * block_tokens
        out.show("used", f"{used_blocks} blocks x {block_tokens} tokens", used, "tokens")
    out.put(c.USED_TOKENS, used)
    running = sample.running_sequences
    if not known(used):
        out.put(c.TOKENS_PER_SEQUENCE, used)
    elif not known(running):
        out.put(c.TOKENS_PER_SEQUENCE, running)
    else:
        out.put(
            c.TOKENS_PER_SEQUENCE, used / running if running else Unavailable(Reason.IDLE, "no sequence runs")
        )


def _capacity_tokens(
    sample: EngineSample,
    inputs: Inputs,
    one_group: bool | Unavailable,
    block_tokens: int | Unavailable,
    out: Notebook,
) -> int | Unavailable:
    if sample.attention_free:
        return Unavailable(Reason.ATTENTION_FREE, "the model keeps state, no tokens")
    size, concurrency = sample.capacity_tokens, sample.max_concurrency
    max_model_len = inputs.count("max_model_len", Reason.MAX_MODEL_LEN)
    if known(size):
        if known(concurrency) and known(max_model_len) and inputs.choices["max_model_len"].source != "config":
            by_concurrency = concurrency * max_model_len
            if abs(size - by_concurrency) > SIZE_TOLERANCE * by_concurrency:
                # Seen: a size line that ignored cache groups. The concurrency is what admits requests.
                out.disagree(
                    "kv_cache_size_tokens",
                    "kv_cache_max_concurrency",
                    "kv_cache_size_tokens",
                    f"{size:,} tokens against {concurrency:g} x {max_model_len:,}",
                )
                return round(by_concurrency)
        return size
    if not known(sample.num_blocks):
        return sample.num_blocks
    if not known(block_tokens):
        return block_tokens
    if not known(one_group):
        return one_group
    if one_group:
        return sample.num_blocks * block_tokens
    return Unavailable(Reason.SEVERAL_CACHE_GROUPS, "and the engine does not report its own figure")


def _bytes(
    blocks: int | Unavailable, used: int | Unavailable, layout: BlockLayout | Unavailable, out: Notebook
) -> None:
    if not known(layout):
        for metric in (
            *(c.BYTES_PER_TOKEN, c.DEVICE_BYTES_PER_TOKEN, c.STATE_BYTES_PER_SEQUENCE),
            *(c.CAPACITY_BYTES, c.USED_BYTES),
        ):
            out.put(metric, layout)
        return
    out.put(c.BYTES_PER_TOKEN, layout.bytes_per_token)
    out.put(c.DEVICE_BYTES_PER_TOKEN, layout.device_bytes_per_token)
    out.put(c.STATE_BYTES_PER_SEQUENCE, 0)
    block = layout.replica_block_bytes
    out.put(c.CAPACITY_BYTES, capacity.pool_bytes(blocks, block) if known(blocks) else blocks)
    out.put(c.USED_BYTES, capacity.pool_bytes(used, block) if known(used) else used)
    out.show(
        "one more token at long context",
        "full-attention layers, all GPUs",
        f"{layout.bytes_per_token:,}",
        "bytes",
    )
    if known(blocks):
        out.show(
            "pool, all GPUs of the replica",
            f"{blocks:,} blocks x {block:,} bytes",
            f"{blocks * block:,}",
            "bytes",
        )


def _peak_blocks(
    layout: BlockLayout | Unavailable, one_group: bool | Unavailable, block_tokens: int | Unavailable
) -> BlockLayout | int | Unavailable:
    """What tells a sequence's blocks: the layout, or a block size that is enough."""
    if known(layout) or (known(one_group) and one_group and known(block_tokens)):
        return layout if known(layout) else block_tokens
    if known(one_group) and not one_group and layout.reason is Reason.MODEL_CONFIG:
        return Unavailable(Reason.MODEL_CONFIG, "several cache groups, and no config.json to tell them apart")
    return layout


def _sequences(
    usable: int | Unavailable,
    used: int | Unavailable,
    rule: BlockLayout | int | Unavailable,
    contexts: Sequence[int],
    out: Notebook,
) -> None:
    if not known(rule) or not known(usable):
        why = rule if not known(rule) else usable
        assert isinstance(why, Unavailable)  # noqa: S101  (one of the two is)
        out.put(c.MAX_SEQUENCES, why)
        out.put(c.FREE_SEQUENCES, why)
        return
    for context in contexts:
        taken = -(-context // rule) if isinstance(rule, int) else rule.peak_blocks(context)
        fit = capacity.sequences_that_fit(usable, taken)
        out.put(c.MAX_SEQUENCES, fit, context=str(context))
        out.show(
            f"sequences of {context:,} tokens", f"floor({usable} usable blocks / {taken})", fit, "sequences"
        )
        if known(used):
            free = capacity.sequences_that_fit(max(0, usable - used), taken)
            out.put(c.FREE_SEQUENCES, free, context=str(context))
        else:
            out.put(c.FREE_SEQUENCES, used)


def _whatif(
    sample: EngineSample,
    inputs: Inputs,
    layout: BlockLayout | Unavailable,
    dtype: str | Unavailable,
    contexts: Sequence[int],
    out: Notebook,
) -> None:
    if not known(layout) or not known(sample.num_blocks) or not known(dtype):
        why = next(v for v in (layout, sample.num_blocks, dtype) if isinstance(v, Unavailable))
        out.put(c.WHATIF_MAX_SEQUENCES, why)
        return
    pool = capacity.pool_bytes(sample.num_blocks, layout.block_bytes)
    for other in WHATIF_DTYPES:
        if element_bytes(other) == element_bytes(dtype):
            continue
        changed = _plan(sample, inputs, other)
        if not known(changed):
            out.put(c.WHATIF_MAX_SEQUENCES, changed)
            continue
        usable = capacity.blocks_in(pool, changed.block_bytes) - sample.null_blocks
        for context in contexts:
            fit = capacity.sequences_that_fit(usable, changed.peak_blocks(context))
            out.put(c.WHATIF_MAX_SEQUENCES, fit, context=str(context), kv_cache_dtype=other)


def _budget_check(sample: EngineSample, layout: BlockLayout) -> float | Unavailable:
    """Our block bytes over the engine's, whose block count is floor(budget / block)."""
    budget, blocks = sample.device_pool_bytes, sample.num_blocks
    if not known(budget):
        return budget
    if not known(blocks):
        return blocks
    if capacity.blocks_in(budget, layout.block_bytes) == blocks:
        return 1.0
    return layout.block_bytes * blocks / budget


def _trust(sample: EngineSample, inputs: Inputs, layout: BlockLayout | Unavailable, out: Notebook) -> None:
    if not known(layout):
        out.put(c.ARITHMETIC_RATIO, layout)
        return
    checks: list[float] = []
    budget = _budget_check(sample, layout)
    if known(budget):
        checks.append(budget)
        out.show(
            "check: bytes of a block",
            f"floor({sample.device_pool_bytes:,} bytes given / {layout.block_bytes:,}) = {sample.num_blocks} blocks?",
            f"{budget:.6g}",
        )
    admission = _admission_blocks(inputs, layout)
    if known(sample.max_concurrency) and known(sample.num_blocks) and known(admission):
        ours = capacity.concurrency(sample.num_blocks, admission)
        checks.append(ours / sample.max_concurrency)
        out.show(
            "check: concurrency at max_model_len",
            f"{sample.num_blocks} / {admission} admission blocks = {ours:.6g}, engine says {sample.max_concurrency:.6g}",
            f"{checks[-1]:.6g}",
        )
    if checks:
        out.put(c.ARITHMETIC_RATIO, max(checks, key=lambda check: abs(check - 1.0)))
    else:
        out.put(
            c.ARITHMETIC_RATIO, Unavailable(Reason.NOT_REPORTED, "the engine reports nothing to compare with")
        )


def _admission_blocks(inputs: Inputs, layout: BlockLayout) -> int | Unavailable:
    max_model_len = inputs.count("max_model_len", Reason.MAX_MODEL_LEN)
    if not known(max_model_len):
        return max_model_len
    if layout.single_full_group:
        return layout.peak_blocks(max_model_len)
    batched = inputs.count("max_num_batched_tokens", Reason.MAX_NUM_BATCHED_TOKENS)
    if not known(batched):
        return batched
    # Windows free blocks a step late, and overlapped scheduling has two steps in
    # flight (0.32.0 config/vllm.py max_in_flight_tokens).
    overlapped = inputs.flag("async_scheduling")
    if overlapped is None or parallelism(inputs).pipeline > 1:
        return Unavailable(Reason.MAX_NUM_BATCHED_TOKENS, "tokens in flight are not known")
    return layout.admission_blocks(max_model_len, batched * (2 if overlapped else 1))
