"""What ``plan`` prints: the JSON keys programs rely on, and a page whose units cannot be confused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from exporter.cli import main
from exporter.kvmath.known import known
from exporter.kvmath.model import read_model
from exporter.kvmath.parallel import Parallelism
from exporter.kvmath.sglang import TokenPools
from exporter.kvmath.sglang_budget import divide, sequences_in, states_each
from exporter.planner.layouts import Choices, engine_layout
from exporter.planner.page import both

Plan = Callable[..., dict[str, Any]]
Page = Callable[..., str]
SMALL = "meta-llama__Llama-3.1-8B-Instruct"
LARGE = "meta-llama__Llama-3.1-70B-Instruct"
CONFIGS = Path(__file__).parents[2] / "data" / "kv" / "configs"


def test_keys_to_rely_on(plan: Plan) -> None:
    """Programs read these; Llama 8B by hand: 32 layers x 4,096 bytes, blocks of 16 tokens."""
    told = plan(SMALL)
    assert told["bytes_per_token"] == told["device_bytes_per_token"] == 131_072
    assert told["state_bytes_per_sequence"] == 0
    assert told["layers"] == [
        {"count": 32, "kind": "full", "bytes_per_token": 4096, "window_tokens": 0, "state_bytes": 0}
    ]
    assert told["engine"]["block_size"] == 16
    assert told["engine"]["bytes_per_block"] == 16 * 131_072
    assert [group["layers"] for group in told["engine"]["groups"]] == [32]
    eight = told["sequences"]["8192"]
    assert eight["bytes"] == eight["peak_bytes"] == eight["admission_bytes"] == 8192 * 131_072
    assert eight["blocks"] == [512]
    assert eight["fit"] == 53
    assert told["pool_bytes"] == 73_600_000_000 - told["weights_bytes"]
    assert told["fits"] is True
    assert told["unavailable"] == []


def test_two_gpus_count_together(plan: Plan) -> None:
    """Bytes per token and pool are the replica's, the device_ ones and a sequence's are one GPU's."""
    told = plan(LARGE, "--gpu H200 --gpus 2")
    assert told["bytes_per_token"] == 327_680
    assert told["device_bytes_per_token"] == 163_840
    assert told["sequences"]["8192"]["bytes"] == 8192 * 163_840
    assert told["pool_bytes"] == 2 * told["device_pool_bytes"]


def test_window_layers(plan: Plan) -> None:
    """gpt-oss: 18 windows of 128 tokens beside 18 full layers; only these make a long context longer.

    131,072 tokens: 8,192 blocks of the full group; the window holds 128 tokens, 8 blocks of
    16, and 9 while it moves over a block's border.
    """
    told = plan("openai__gpt-oss-120b", "--context 131072")
    assert told["bytes_per_token"] == 18 * 2048  # 8 heads x 64 x 2 x 2 bytes
    assert [(row["count"], row["window_tokens"]) for row in told["layers"]] == [(18, 128), (18, 0)]
    context = told["sequences"]["131072"]
    assert sorted(context["blocks"]) == [8, 8192]
    assert context["peak_blocks"] == 8201
    assert context["peak_bytes"] - context["bytes"] == told["engine"]["bytes_per_block"]
    assert {"signal": "live_tokens", "reason": "several_cache_groups"}.items() <= told["unavailable"][
        0
    ].items()


def test_every_kind_of_layer_adds_up(plan: Plan) -> None:
    """Per config: layers that keep every token give the bytes per token, states those of a sequence."""
    for file in sorted(CONFIGS.glob("*.json")):
        told = plan(file, "--gpu H200 --gpus 8")
        if "layers" not in told:
            assert told["unavailable"], file.name
            continue
        kept = sum(
            row["count"] * row["bytes_per_token"]
            for row in told["layers"]
            if row["kind"] not in ("window", "chunk", "record_window", "ring", "cross")
        )
        assert kept == pytest.approx(told["bytes_per_token"]), file.name
        states = sum(row["count"] * row["state_bytes"] for row in told["layers"])
        assert states == told["state_bytes_per_sequence"], file.name


def test_states(plan: Plan) -> None:
    """Qwen3-Next: 12 full layers x 2 heads x 256 x 2 x 2 bytes; 36 gated delta nets.

    Each keeps a convolution of 3 x 8,192 and a state of 32 x 128 x 128, 2 bytes an element.
    """
    told = plan("Qwen__Qwen3-Next-80B-A3B-Instruct", "--context 8192")
    assert told["bytes_per_token"] == 12 * 2048
    assert told["state_bytes_per_sequence"] == 36 * (3 * 8192 + 32 * 128 * 128) * 2


def test_a_latent_is_stored_by_every_rank(plan: Plan) -> None:
    """DeepSeek V3: 61 x 576 x 2 = 70,272 bytes, eight times over eight GPUs."""
    told = plan("deepseek-ai__DeepSeek-V3", "--gpu H200 --gpus 8")
    assert told["bytes_per_token"] == 8 * 70_272
    assert told["device_bytes_per_token"] == 70_272
    assert told["layers"][0]["bytes_per_token"] == 8 * 1152


def test_replicas_share_nothing(plan: Plan) -> None:
    """Two data-parallel replicas: each has the weights, takes half of the users, is half of the price."""
    one = plan(SMALL, "--price-per-hour 3")
    two = plan(SMALL, "--data-parallel-size 2 --price-per-hour 6 --sequences 106")
    assert two["hardware"]["gpus"] == 2
    assert two["sequences"]["8192"]["fit"] == one["sequences"]["8192"]["fit"] == 53
    assert two["sequences"]["8192"]["fit_all_replicas"] == 106
    assert two["sequences"]["8192"]["fits"] is True
    assert two["sequences"]["8192"]["cost_dollars_per_hour"] == pytest.approx(
        one["sequences"]["8192"]["cost_dollars_per_hour"]
    )


def test_beyond_the_model(plan: Plan, page: Page) -> None:
    """Llama 3 ends at 8,192: longer contexts are computed and marked, and don't decide whether it fits."""
    told = plan("meta-llama__Meta-Llama-3-70B-Instruct", "--gpu H200 --gpus 2 --sequences 40")
    assert told["max_model_len"] == 8192
    assert [told["sequences"][n]["beyond_model"] for n in ("8192", "32768")] == [False, True]
    assert told["sequences"]["32768"]["fit"] == 11
    assert told["fits"] is True
    assert "* longer than the model's maximum of 8,192 tokens" in page(
        "meta-llama__Meta-Llama-3-70B-Instruct", "--gpu H200 --gpus 2"
    )


def test_an_unknown_architecture_is_an_answer(plan: Plan, tmp_path: Path) -> None:
    """Nothing is guessed: the reason names the field, and every figure that needs it is listed."""
    config = json.loads((CONFIGS / f"{SMALL}.json").read_text())
    file = tmp_path / "config.json"
    file.write_text(json.dumps({**config, "model_type": "llama_next", "architectures": ["LlamaNext"]}))
    told = plan(file)
    assert "bytes_per_token" not in told
    missing = {entry["signal"]: entry for entry in told["unavailable"]}
    assert {"bytes_per_token", "sequences", "pool_bytes", "fits"} <= missing.keys()
    assert missing["bytes_per_token"]["reason"] == "unsupported_attention"
    assert "model_type" in missing["bytes_per_token"]["detail"]


def test_figures_set_by_hand(plan: Plan, page: Page, tmp_path: Path) -> None:
    """For a model nobody here knows: 100,000 bytes a token, 16 in a block, and 57 GB of weights.

    73.6 - 57 = 16.6 GB; 8,192 tokens take 819.2 MB: 20 fit.
    """
    file = tmp_path / "config.json"
    file.write_text('{"model_type": "llama_next", "num_hidden_layers": 32}')
    told = plan(file, "--bytes-per-token 100000 --weights-gb 57")
    assert told["bytes_per_token"] == 100_000
    assert told["engine"]["bytes_per_block"] == 1_600_000
    assert told["sequences"]["8192"]["fit"] == 20
    assert told["set_by_hand"] == ["bytes_per_token"]
    assert "Set by hand: bytes_per_token" in page(file, "--bytes-per-token 100000 --weights-gb 57")
    # A window of 1,024 tokens: 64 blocks and one more while it moves.
    windowed = plan(file, "--bytes-per-token 100000 --window-tokens 1024 --weights-gb 57")
    assert windowed["sequences"]["8192"]["peak_bytes"] == 65 * 1_600_000


def test_weights_that_cannot_be_estimated(plan: Plan, page: Page) -> None:
    """Phi-3-vision: its cache is exact, its tower is not counted, so no pool is guessed."""
    told = plan("microsoft__Phi-3-vision-128k-instruct")
    # 32 layers of 32 heads x 96 x 2 x 2 bytes, each with a window as long as the model's context.
    assert [(row["count"], row["bytes_per_token"]) for row in told["layers"]] == [(32, 12288)]
    assert "fit" not in told["sequences"]["8192"]
    assert {entry["signal"] for entry in told["unavailable"]} >= {"weights_bytes", "pool_bytes", "fits"}
    assert "give --weights-gb" in page("microsoft__Phi-3-vision-128k-instruct")
    # 73.6 - 8.3 = 65.3 GB, 3.22 GB a sequence: 20.
    told = plan("microsoft__Phi-3-vision-128k-instruct", "--weights-gb 8.3")
    assert told["sequences"]["8192"]["fit"] == 20


def test_weights_that_do_not_fit(plan: Plan, page: Page) -> None:
    """70B in 16 bits on one H100: an empty pool, and two remedies that help."""
    told = plan(LARGE, "--gpu H100 --context 8192")
    assert told["pool_bytes"] == 0
    assert told["fits"] is False
    remedies = {r["remedy"]: r for r in told["remedies"]}
    assert remedies["fp8_weights"]["fits"]  # 73.6 - 70.55 = 3.05 GB, a sequence takes 2.68
    assert remedies["more_gpus"] == {
        "context": 8192,
        "remedy": "more_gpus",
        "change": "2 x H100 SXM",
        "fit": 2,  # 2 x 73.6 - 141.1 = 6.1 GB
        "fits": True,
    }
    assert "The weights alone don't fit." in page(LARGE, "--gpu H100")


def test_a_maximum_that_does_not_fit(plan: Plan, page: Page) -> None:
    """Llama 8B on an A10: 24 x 0.92 - 16.06 = 6.02 GB, 2,870 blocks of 16: 45,920 of its 131,072 tokens.

    vLLM checks one sequence of max_model_len before it starts, and counts the null block in.
    """
    told = plan(SMALL, "--gpu A10")
    assert told["pool_blocks"] == 2870
    assert told["longest_max_model_len"] == 45_920
    assert "start the engine with --max-model-len 45920 at most" in page(SMALL, "--gpu A10")
    assert plan(SMALL, "--gpu H100")["longest_max_model_len"] == 131_072
    assert "start the engine" not in page(SMALL, "--gpu H100")


def test_remedies(plan: Plan) -> None:
    """64 sequences of 8,192 tokens where 53 fit, 57.54 GB of pool, 27,436 blocks of 2 MiB to use."""
    told = plan(SMALL, "--gpu H100 --context 8192 --sequences 64")
    assert told["fits"] is False
    remedies = {r["remedy"]: r for r in told["remedies"]}
    assert remedies["fp8_cache"]["fit"] == 107  # twice 53.58
    # 27,436 / 64 = 428 blocks each: 6,848 tokens.
    assert remedies["context_cap"]["change"] == "at most 6,848 tokens"
    # s shared blocks: s + 64 (512 - s) <= 27,436, so 63 s >= 5,332: 85 blocks, 1,360 tokens.
    assert remedies["shared_prefix"]["change"] == "1,360 of 8,192 tokens shared by all"
    assert remedies["more_gpus"]["change"] == "2 x H100 SXM"
    assert remedies["other_gpu"]["change"] == "1 x H100 NVL"  # 94 x 0.92 - 16.06 = 70.4 GB: 65
    assert remedies["other_gpu"]["fit"] == 65
    assert remedies["fewer_kv_heads"] == {
        "context": 8192,
        "remedy": "fewer_kv_heads",
        "change": "a model alike with 4 KV heads",
        "fit": 107,
        "fits": True,
    }


def test_what_a_remedy_says_is_true(plan: Plan) -> None:
    """Following the advice makes it fit, and one step less does not."""
    base = "--gpu H100 --sequences 64"
    assert plan(SMALL, f"{base} --context 8192 --kv-cache-dtype fp8")["fits"] is True
    assert plan(SMALL, f"{base} --context 6848")["fits"] is True
    assert plan(SMALL, f"{base} --context 6849")["fits"] is False
    assert plan(SMALL, f"{base} --context 8192 --shared-prefix 1360")["fits"] is True
    assert plan(SMALL, f"{base} --context 8192 --shared-prefix 1359")["fits"] is False
    assert plan(SMALL, f"{base} --context 8192 --gpus 2")["fits"] is True


def test_more_gpus_may_be_replicas(plan: Plan) -> None:
    """Every rank holds DeepSeek-V3's whole latent, so wider replicas waste GPUs: copies need the fewest.

    19 fit in 8 GPUs, and 50 are asked for: 3 x 19 = 57 in 24; 38 in 16 would be too few,
    and so is one replica of 16.
    """
    model, asked = "deepseek-ai__DeepSeek-V3", "--gpu H200 --sequences 50 --context 32768"
    told = plan(model, f"{asked} --gpus 8")
    assert told["sequences"]["32768"]["fit"] == 19
    remedies = {r["remedy"]: r for r in told["remedies"]}
    assert remedies["more_gpus"] == {
        "context": 32768,
        "remedy": "more_gpus",
        "change": "24 x H200, 3 replicas of 8",
        "fit": 57,
        "fits": True,
    }
    eight = f"{asked} --tensor-parallel-size 8"
    assert plan(model, f"{eight} --data-parallel-size 3")["fits"] is True
    assert plan(model, f"{eight} --data-parallel-size 2")["fits"] is False
    assert plan(model, f"{asked} --tensor-parallel-size 16")["fits"] is False
    # The checkpoint is in fp8 already.
    assert "fp8_weights" not in remedies
    # The same with two replicas to begin with: figures of remedies are for all of them.
    two = {r["remedy"]: r for r in plan(model, f"{eight} --data-parallel-size 2")["remedies"]}
    assert (two["more_gpus"]["change"], two["more_gpus"]["fit"]) == ("24 x H200, 3 replicas of 8", 57)
    assert two["fp8_cache"]["fit"] == 2 * remedies["fp8_cache"]["fit"]


def test_more_gpus_than_there_are(plan: Plan) -> None:
    """64 GPUs are the most that is proposed; what holds the most of them is said not to be enough."""
    told = plan(SMALL, "--gpu H100 --context 131072 --sequences 5000")
    (remedy,) = [r for r in told["remedies"] if r["remedy"] == "more_gpus"]
    assert remedy["change"].startswith("64 x H100")
    assert remedy["fits"] is False


@pytest.mark.parametrize("config", [SMALL, "deepseek-ai__DeepSeek-V3", "Qwen__Qwen3-8B-FP8"])
def test_no_remedy_changes_nothing(plan: Plan, config: str) -> None:
    """Whatever is proposed, more sequences fit than before."""
    told = plan(config, "--gpu H100 --context 4096 32768 --sequences 3000")
    assert told["remedies"]
    for remedy in told["remedies"]:
        assert remedy["fit"] > told["sequences"][str(remedy["context"])]["fit"]


def test_no_prefix_caching_shares_nothing(plan: Plan) -> None:
    """Without the prefix cache every sequence keeps its own copy."""
    told = plan(SMALL, "--context 8192 --shared-prefix 4096 --sequences 8 --no-prefix-caching")
    context = told["sequences"]["8192"]
    assert context["total_bytes_shared"] == context["total_bytes"]
    assert context["fit_shared"] == context["fit"]


def test_without_a_gpu_name_there_is_no_bandwidth(plan: Plan, page: Page) -> None:
    """Memory in GB says nothing about speed."""
    told = plan(SMALL, "--gpu-memory-gb 80")
    assert "decode_floor" not in told["sequences"]["8192"]
    assert "decode_floor" in {entry["signal"] for entry in told["unavailable"]}
    assert told["sequences"]["8192"]["fit"] == 53
    assert "decode step" not in page(SMALL, "--gpu-memory-gb 80")


def test_sglang(plan: Plan) -> None:
    """Slots of one token: 57.54 GB / 131,072 = 438,994 tokens, 53 sequences of 8,192."""
    told = plan(SMALL, "--engine sglang")
    assert told["engine"]["block_size"] == 1
    assert told["engine"]["bytes_per_block"] == 131_072
    assert told["sequences"]["8192"]["blocks"] == [8192]
    assert told["sequences"]["8192"]["fit"] == 53


def test_sglang_pool_of_everything(plan: Plan) -> None:
    """Gemma 3n: a slot in all 35 layers, 2 heads x 2 x 256 x 2 bytes each, whether window or shared.

    DeepSeek V3.2 on 8 GPUs: 61 latents of 1,152 and index keys of 132 bytes on every one; a draft layer
    makes them 62. Sharing a context, two ranks have a page each: blocks of 2 tokens.
    """
    told = plan("google__gemma-3n-E4B-it", "--engine sglang --weights-gb 16")
    assert told["bytes_per_token"] == 35 * 2_048
    assert [(row["count"], row["kind"]) for row in told["layers"]] == [(35, "full")]
    sparse = plan("deepseek-ai__DeepSeek-V3.2", "--engine sglang --gpu H200 --gpus 8 --speculative mtp")
    assert sparse["bytes_per_token"] == 8 * 62 * (1_152 + 132)
    assert [(row["count"], row["kind"], row["bytes_per_token"]) for row in sparse["layers"]] == [
        (62, "mla", 8 * 1_152),
        (62, "indexer", 8 * 132),
    ]
    shared = plan(LARGE, "--engine sglang --gpu H200 --gpus 8 --decode-context-parallel-size 2")
    assert shared["engine"]["block_size"] == 2
    assert shared["bytes_per_token"] == 327_680
    assert shared["sequences"]["8192"]["blocks"] == [4_096]
    assert shared["sequences"]["8192"]["bytes"] == 8_192 * 327_680 // 8


def test_sglang_windows(plan: Plan) -> None:
    """gpt-oss: a page goes with 0.8 window slots, 36,864 x 1.8 = 66,355.2 bytes; 8,192 tokens hold 8,192 of
    the one and 130 of the other, and take 8,192 pages with what goes with them."""
    told = plan(
        "openai__gpt-oss-120b",
        "--engine sglang --gpu-memory-gb 80 --gpu-memory-utilization 1 --weights-gb 20",
    )
    assert told["bytes_per_token"] == 36_864
    assert told["engine"]["bytes_per_block"] == 66_356
    assert [(row["count"], row["kind"], row["window_tokens"]) for row in told["layers"]] == [
        (18, "full", 0),
        (18, "window", 128),
    ]
    context = told["sequences"]["8192"]
    assert context["bytes"] == (8_192 + 130) * 36_864
    assert context["peak_bytes"] == 8_192 * 66_356
    assert context["fit"] == 110  # 60e9 / 66,355.2 = 904,224 tokens / 8,192 = 110.4
    assert "live_tokens" in {entry["signal"] for entry in told["unavailable"]}


def test_sglang_states(plan: Plan) -> None:
    """Qwen3-Next: 0.9 / 1.9 of 40 GB are 245 slots of 77,266,944 bytes, one of them padding; 244 // 5 = 48
    sequences. The other 21.07 GB are 857,324 tokens: 104 of 8,192, 26 of 32,768. Without a radix cache
    a sequence takes one slot, and tokens are the limit: 104."""
    asked = "--engine sglang --gpu-memory-gb 200 --gpu-memory-utilization 1 --weights-gb 160"
    asked += " --context 8192 --context 32768"
    told = plan("Qwen__Qwen3-Next-80B-A3B-Instruct", asked)
    assert told["state_bytes_per_sequence"] == 77_266_944
    assert told["sequences"]["8192"]["bytes"] == 8_192 * 24_576 + 77_266_944
    assert (told["sequences"]["8192"]["fit"], told["sequences"]["32768"]["fit"]) == (48, 26)
    assert told["layers"][-1]["state_bytes"] * 36 == 77_266_944
    plain = plan("Qwen__Qwen3-Next-80B-A3B-Instruct", f"{asked} --no-prefix-caching")
    assert plain["sequences"]["8192"]["fit"] == 104


@pytest.mark.parametrize("prefix_caching", [True, False])
@pytest.mark.parametrize("config", sorted(CONFIGS.glob("*.json")), ids=lambda path: path.stem)
def test_sglang_promises_no_more_than_its_pools_hold(config: Path, prefix_caching: bool) -> None:
    """Pages with a charge for the other pools, against the pools themselves: never more, and hardly fewer.

    Its layers add up to what a token and a sequence's state take.
    """
    shape = read_model(json.loads(config.read_text()))
    found = engine_layout(shape, Choices("sglang", "bfloat16", Parallelism(), prefix_caching=prefix_caching))
    if not known(found):
        return
    assert isinstance(found.blocks, TokenPools)
    kept = sum(row.count * row.bytes_per_token for row in found.layers if not row.window_tokens)
    assert kept == found.bytes_per_token
    assert sum(row.count * row.state_bytes for row in found.layers) == found.state_bytes_per_sequence
    budget = 60 * 10**9
    blocks = budget // found.block_bytes - found.reserved_blocks
    sizes = divide(found.blocks, budget)
    assert sizes is not None
    for tokens in (100, 1_000, 8_192, 131_072):
        surely = sequences_in(sizes, found.blocks, tokens, states_each(prefix_caching)[1])
        fit = blocks // found.peak_blocks(tokens)
        assert fit <= surely
        assert fit >= surely * 0.97 - 1, (tokens, fit, surely)


def test_page_has_both_units(page: Page) -> None:
    """Every byte figure with a unit comes in GB and GiB (or MB and MiB), never one for the other."""
    text = page(LARGE, "--gpu H200 --gpus 2 --sequences 100 --shared-prefix 1000 --price-per-hour 9")
    decimal = re.findall(r"[\d.,]+ ([GM])B \(([\d.,]+) ([GM])iB\)", text)
    assert len(decimal) > 10
    bare = re.sub(r"[\d.,]+ [GM]B \([\d.,]+ [GM]iB\)", "", text)
    assert not re.search(r"\d\s*[KMGT]i?B\b(?!/s)", bare)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (429_496_729_600, "429.50 GB (400.00 GiB)"),
        (80 * 10**9, "80.00 GB (74.51 GiB)"),  # 80e9 / 2^30
        (2**20, "1.05 MB (1.00 MiB)"),
        (0, "0.00 MB (0.00 MiB)"),
    ],
)
def test_units(size: int, text: str) -> None:
    """10^9 and 2^30, 10^6 and 2^20."""
    assert both(size) == text


def test_a_directory(plan: Plan, tmp_path: Path) -> None:
    """A checkpoint's own files decide: an index of 20 GB leaves 53.6 GB, 49 sequences of 1.0737."""
    config = json.loads((CONFIGS / f"{SMALL}.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {"total_size": 20 * 10**9}, "weight_map": {"a": "model-1.safetensors"}})
    )
    told = plan(tmp_path, "--gpu H100")
    assert told["weights_bytes"] == 20 * 10**9
    assert told["weights"]["source"] == "index"
    assert told["weights"]["estimated"] is False
    assert told["sequences"]["8192"]["fit"] == 49
    assert plan(tmp_path / "config.json")["weights"]["source"] == "index"


def test_config_after_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    """``--context 4096 8192 CONFIG`` is what people type; a path is no context length."""
    path = CONFIGS / f"{SMALL}.json"
    assert main(["plan", "--output", "json", "--context", "4096", "8192", str(path)]) == 0
    assert list(json.loads(capsys.readouterr().out)["sequences"]) == ["4096", "8192"]


@pytest.mark.parametrize(
    ("flags", "code"),
    [
        ("--context 8192 --sequences 53", 0),  # as in test_keys_to_rely_on: 53 fit
        ("--context 8192 --sequences 54", 1),
        ("--context 8192 --sequences 54 --weights-gb 0", 0),
    ],
)
def test_strict_is_for_pipelines(flags: str, code: int) -> None:
    """A deployment that does not fit can be stopped by its exit code."""
    assert main(["plan", str(CONFIGS / f"{SMALL}.json"), *flags.split(), "--strict"]) == code
    assert main(["plan", str(CONFIGS / f"{SMALL}.json"), *flags.split()]) == 0


def test_strict_takes_unknown_for_no(tmp_path: Path) -> None:
    """An architecture nobody knows: no figure, so no promise."""
    strange = tmp_path / "config.json"
    strange.write_text('{"model_type": "never_heard_of"}')
    assert main(["plan", str(strange)]) == 0
    assert main(["plan", str(strange), "--strict"]) == 1


def test_a_step_of_more_than_fit_says_so(page: Page) -> None:
    """3 sequences of 131,072 fit an H100: the step of 32 is one that no engine there ever takes."""
    told = page(SMALL, "--gpu H100 --context 8192 131072 --sequences 32")
    assert "The step is one of all 32 sequences, also where they don't fit" in told
    assert "The step is one of" not in page(SMALL, "--gpu H100 --context 8192 --sequences 32")
