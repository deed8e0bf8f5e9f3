"""vLLM: what is derived from which inputs, and what is withheld."""

from __future__ import annotations

import pytest

from exporter import catalogue as c
from exporter.derive.readout import Readout
from exporter.engines.sample import NOT_REPORTED
from exporter.facts import Facts, Source
from exporter.kvmath.known import Reason

from .readouts import GEMMA2, LLAMA, by, figure, read, told, vllm

BYTES = (*c.TOKEN_COST, c.CAPACITY_BYTES, c.USED_BYTES, c.SEQUENCE_BYTES, c.ARITHMETIC_RATIO)


def test_everything_known() -> None:
    """300 blocks of 32 tokens at 1,024 bytes; 149 in use; 4,096 tokens take 128 blocks of the usable 299."""
    got = read(vllm(device_pool_bytes=9_830_400), contexts=(1_000, 4_096))
    assert figure(got, c.CAPACITY_BLOCKS) == 300
    assert figure(got, c.USED_BLOCKS) == 149
    assert figure(got, c.USED_TOKENS) == 149 * 32
    assert figure(got, c.TOKENS_PER_SEQUENCE) == 149 * 32 / 4
    assert figure(got, c.CAPACITY_BYTES) == 9_830_400
    assert figure(got, c.USED_BYTES) == 149 * 32_768
    # 1,000 tokens take ceil(1000 / 32) = 32 blocks
    assert by(got, c.MAX_SEQUENCES, "context") == {"1000": 299 // 32, "4096": 2}
    assert by(got, c.FREE_SEQUENCES, "context") == {"1000": 150 // 32, "4096": 1}
    assert by(got, c.SEQUENCE_BYTES, "context") == {"1000": 32 * 32_768, "4096": 128 * 32_768}
    assert figure(got, c.ARITHMETIC_RATIO) == 1


def test_without_a_config_where_one_group_is_proven() -> None:
    """300 blocks x 32 = the engine's own 9,600 tokens: every block is 32 tokens of every layer."""
    got = read(vllm(), config=None)
    assert figure(got, c.USED_TOKENS) == 149 * 32
    assert by(got, c.MAX_SEQUENCES, "context") == {"4096": 2}
    assert by(got, c.FREE_SEQUENCES, "context") == {"4096": 1}
    for metric in (*BYTES, c.WHATIF_MAX_SEQUENCES):
        assert figure(got, metric) is Reason.MODEL_CONFIG, metric.name


def test_without_a_config_where_several_groups_show() -> None:
    """682 x 32 is not 13,897: a block belongs to one of several groups, and which is unknown."""
    got = read(vllm(num_blocks=682, capacity_tokens=13_897, max_concurrency=3.3930348258706466), config=None)
    assert figure(got, c.CAPACITY_TOKENS) == 13_897
    assert figure(got, c.USED_TOKENS) is Reason.SEVERAL_CACHE_GROUPS
    assert figure(got, c.MAX_SEQUENCES) is Reason.MODEL_CONFIG
    assert figure(got, c.USED_BLOCKS) == round(149 / 299 * 681)


def test_without_a_config_and_without_proof() -> None:
    """No size label and no config: blocks are told, tokens are not guessed."""
    got = read(vllm(capacity_tokens=NOT_REPORTED, max_concurrency=NOT_REPORTED), config=None)
    assert figure(got, c.CAPACITY_BLOCKS) == 300
    for metric in (c.CAPACITY_TOKENS, c.USED_TOKENS, c.MAX_SEQUENCES, c.CAPACITY_BYTES):
        assert figure(got, metric) is Reason.MODEL_CONFIG, metric.name


def test_a_config_of_one_group_makes_blocks_tokens() -> None:
    """Releases before about 0.30 have no size label; blocks x block size is the same number."""
    got = read(vllm(capacity_tokens=NOT_REPORTED, max_concurrency=NOT_REPORTED))
    assert figure(got, c.CAPACITY_TOKENS) == 9_600
    assert figure(got, c.CAPACITY_BYTES) == 9_830_400


@pytest.mark.parametrize(
    ("version", "reason"),
    [(None, Reason.ENGINE_VERSION), ("0.9.2", Reason.ENGINE_VERSION), ("0.10.2", None), ("0.29.0", None)],
)
def test_window_mixes_of_old_releases(version: str | None, reason: Reason | None) -> None:
    """Before 0.10.2 a mix of windows was laid out in another way, and only the release tells."""
    sample = vllm(num_blocks=682, capacity_tokens=NOT_REPORTED, max_concurrency=NOT_REPORTED)
    facts = {Source.ENGINE: Facts(version=version)} if version else None
    got = read(sample, GEMMA2, facts=facts)
    if reason:
        for metric in (*c.TOKEN_COST, c.CAPACITY_TOKENS, c.CAPACITY_BYTES, c.MAX_SEQUENCES):
            assert figure(got, metric) is reason, metric.name
    else:
        assert figure(got, c.CAPACITY_BYTES) == 682 * 24_576
        assert figure(got, c.CAPACITY_TOKENS) is Reason.SEVERAL_CACHE_GROUPS
        # 128 blocks of the layers that keep all, ceil(255 / 32) + 1 of the windows
        assert figure(got, c.MAX_SEQUENCES) == 681 // (128 + 9)


def test_speculative_decoding_withholds_bytes() -> None:
    """Draft layers take part of every block, and config.json does not tell how much."""
    for got in (
        read(vllm(speculative=True)),
        read(vllm(), facts={Source.COMMAND_LINE: Facts(speculative=True)}),
    ):
        for metric in BYTES:
            assert figure(got, metric) is Reason.SPECULATIVE_DECODING, metric.name
        assert figure(got, c.CAPACITY_TOKENS) == 9_600
        assert figure(got, c.CAPACITY_BLOCKS) == 300


DEEPSEEK = "data/kv/configs/deepseek-ai__DeepSeek-V3.json"


def drafting(config: str = DEEPSEEK, **said: object) -> Readout:
    """An engine whose page shows that it drafts, and whose command line may say how."""
    sample = vllm(speculative=True, block_tokens=16, capacity_tokens=4_800)
    return read(sample, config, facts={Source.COMMAND_LINE: Facts(speculative=True, **said)})  # type: ignore[arg-type]


def test_draft_layers_of_the_checkpoint() -> None:
    """DeepSeek-V3: vLLM 0.32.0 gives a block of 16 tokens 1,142,784 bytes with its multi-token-prediction
    layer, 62 x 18,432; looking text up adds no layer to the 61."""
    mtp = drafting(speculative_method="mtp", num_speculative_tokens=1)
    assert figure(mtp, c.CAPACITY_BYTES) == 300 * 1_142_784
    assert figure(mtp, c.BYTES_PER_TOKEN) == 62 * 1_152
    assert figure(drafting(speculative_method="ngram"), c.BYTES_PER_TOKEN) == 61 * 1_152


def test_drafts_that_no_config_tells() -> None:
    """A draft model has a checkpoint of its own; Llama brings no draft layers; states grow with the number
    of drafted tokens, which nobody told."""
    hybrid = "data/kv/configs/Qwen__Qwen3-Next-80B-A3B-Instruct.json"
    for got in (
        drafting(speculative_method="eagle3"),
        drafting(LLAMA, speculative_method="mtp"),
        drafting(hybrid, speculative_method="mtp"),
    ):
        assert figure(got, c.BYTES_PER_TOKEN) is Reason.SPECULATIVE_DECODING


def test_tensor_parallelism_assumed_but_contradicted() -> None:
    """9,830,400 bytes a GPU made 600 blocks: half of what one GPU's block would be with one rank."""
    sample = vllm(num_blocks=600, capacity_tokens=19_200, max_concurrency=4.6875, device_pool_bytes=9_830_400)
    assumed = read(sample)
    assert figure(assumed, c.ARITHMETIC_RATIO) == pytest.approx(2, rel=1e-12)
    for metric in set(BYTES) - {c.ARITHMETIC_RATIO}:
        assert figure(assumed, metric) is Reason.TENSOR_PARALLEL_SIZE, metric.name
    assert figure(assumed, c.CAPACITY_TOKENS) == 19_200
    right = read(sample, facts=told(tensor_parallel_size=2))
    assert figure(right, c.BYTES_PER_TOKEN) == 1_024
    assert figure(right, c.DEVICE_BYTES_PER_TOKEN) == 512
    assert figure(right, c.CAPACITY_BYTES) == 2 * 9_830_400
    assert figure(right, c.ARITHMETIC_RATIO) == 1


def test_a_wrong_word_leaves_the_ratio() -> None:
    """Everything told, one of it wrongly: the engine's bytes are half of ours, so ours are not published."""
    sample = vllm(num_blocks=600, capacity_tokens=19_200, max_concurrency=4.6875, device_pool_bytes=9_830_400)
    got = read(sample, facts=told(tensor_parallel_size=1, pipeline_parallel_size=1))
    assert figure(got, c.ARITHMETIC_RATIO) == pytest.approx(2, rel=1e-12)
    assert figure(got, c.CAPACITY_BYTES) is Reason.CONTRADICTION


def test_fewer_blocks_than_the_budget_holds() -> None:
    """150 blocks out of room for 300: not tensor parallelism, but still no bytes to trust."""
    got = read(
        vllm(num_blocks=150, capacity_tokens=4_800, max_concurrency=1.171875, device_pool_bytes=9_830_400)
    )
    assert figure(got, c.CAPACITY_BYTES) is Reason.CONTRADICTION


def test_nothing_to_compare_with() -> None:
    """No byte budget and no concurrency on the page: no ratio, rather than a 1 that was never checked."""
    got = read(vllm(max_concurrency=NOT_REPORTED))
    assert figure(got, c.ARITHMETIC_RATIO) is Reason.NOT_REPORTED
    assert figure(got, c.CAPACITY_BYTES) == 9_830_400


def test_the_worst_of_two_checks_is_the_ratio() -> None:
    """Blocks agree, concurrency does not: 300 / 128 = 2.34 against the engine's 3."""
    got = read(vllm(device_pool_bytes=9_830_400, max_concurrency=3.0, capacity_tokens=12_288))
    assert figure(got, c.ARITHMETIC_RATIO) == pytest.approx(300 / 128 / 3, rel=1e-12)


def test_whatif_another_dtype() -> None:
    """The same bytes: 600 fp8 blocks instead of 300 (599 // 128 = 4); from fp8, 300 instead of 600 (2)."""
    got = read(vllm())
    assert by(got, c.WHATIF_MAX_SEQUENCES, "kv_cache_dtype") == {"fp8": 4}
    fp8 = read(vllm(cache_dtype="fp8", num_blocks=600, capacity_tokens=19_200, max_concurrency=4.6875))
    assert figure(fp8, c.BYTES_PER_TOKEN) == 512
    assert by(fp8, c.WHATIF_MAX_SEQUENCES, "kv_cache_dtype") == {"bfloat16": 2}
    assert figure(fp8, c.MAX_SEQUENCES) == 4


def test_one_fp8_block_is_no_bf16_block() -> None:
    """A pool too small for the other dtype holds 0 sequences, not -1."""
    got = read(
        vllm(cache_dtype="fp8", num_blocks=1, capacity_tokens=NOT_REPORTED, max_concurrency=NOT_REPORTED)
    )
    assert by(got, c.WHATIF_MAX_SEQUENCES, "kv_cache_dtype") == {"bfloat16": 0}


def test_sizes_that_disagree() -> None:
    """More than 1 % between the two capacity labels: concurrency is what admits requests."""
    got = read(vllm(max_concurrency=2.0))
    assert figure(got, c.CAPACITY_TOKENS) == 2 * 4_096
    assert ("kv_cache_size_tokens", "kv_cache_max_concurrency") in [
        (x.input, x.used) for x in got.contradictions
    ]
    # Within 1 % they are roundings of one another.
    close = read(vllm(max_concurrency=2.35))
    assert figure(close, c.CAPACITY_TOKENS) == 9_600
    assert not close.contradictions


def test_no_blocks() -> None:
    """num_gpu_blocks of None: usage is still usage, tokens of one block too, and the pool is unknown."""
    from exporter.kvmath.known import Unavailable

    got = read(
        vllm(
            num_blocks=Unavailable(Reason.NUM_GPU_BLOCKS),
            capacity_tokens=NOT_REPORTED,
            max_concurrency=NOT_REPORTED,
        )
    )
    assert figure(got, c.USAGE_RATIO) == 149 / 299
    assert figure(got, c.BYTES_PER_TOKEN) == 1_024
    for metric in (c.CAPACITY_TOKENS, c.CAPACITY_BYTES, c.USED_BLOCKS, c.MAX_SEQUENCES, c.FREE_SEQUENCES):
        assert figure(got, metric) is Reason.NUM_GPU_BLOCKS, metric.name


def test_idle_has_no_average_sequence() -> None:
    """0 tokens over 0 sequences is nothing, not 0 and not NaN."""
    got = read(vllm(usage_ratio=0.0, running_sequences=0))
    assert figure(got, c.TOKENS_PER_SEQUENCE) is Reason.IDLE
    assert figure(got, c.USED_TOKENS) == 0


def test_v0_has_no_null_block() -> None:
    """V0's usage is over all of its blocks: half of 300 is 150."""
    got = read(vllm(null_blocks=0, usage_ratio=0.5))
    assert figure(got, c.USED_BLOCKS) == 150
    assert figure(got, c.MAX_SEQUENCES) == 300 // 128


def test_preempted_requests_that_are_a_lower_bound() -> None:
    """The flag beside the counter."""
    bound = read(vllm(preempted_requests=3.0, preempted_requests_exact=False))
    assert (figure(bound, c.PREEMPTED_REQUESTS), figure(bound, c.PREEMPTED_REQUESTS_LOWER_BOUND)) == (3, 1)
    exact = read(vllm(preempted_requests=3.0))
    assert figure(exact, c.PREEMPTED_REQUESTS_LOWER_BOUND) == 0
    none = read(vllm(), LLAMA)
    assert figure(none, c.PREEMPTED_REQUESTS) is Reason.NOT_REPORTED
    assert figure(none, c.PREEMPTED_REQUESTS_LOWER_BOUND) is None
