"""Command lines as people write them, read as the engines read them."""

from __future__ import annotations

import shlex
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exporter.sources import EngineFlags, parse_flags


def read(line: str, directory: Path | None = None) -> EngineFlags:
    result = parse_flags(shlex.split(line), working_directory=directory)
    assert result is not None
    return result


@pytest.mark.parametrize(
    ("line", "software"),
    [
        ("vllm serve M", "vllm"),
        ("/usr/bin/python3 /usr/local/bin/vllm serve M", "vllm"),
        ("tini -- vllm serve M", "vllm"),
        ("python3 -u -m vllm.entrypoints.cli.main serve M", "vllm"),
        ("python -m vllm.entrypoints.openai.api_server --model M", "vllm"),
        ("python /site-packages/vllm/entrypoints/openai/api_server.py --model=M", "vllm"),
        ("python -m sglang.launch_server --model-path M", "sglang"),
        ("python -m sglang.launch_server --model M", "sglang"),
        ("sglang serve M", "sglang"),
        ("/usr/bin/python3 /usr/local/bin/sglang serve --model-path M", "sglang"),
    ],
)
def test_ways_to_start(line: str, software: str) -> None:
    flags = read(line)
    assert (flags.software, flags.model, flags.complete) == (software, "M", True)


@pytest.mark.parametrize(
    "line",
    [
        "",
        "python",
        "python -m",
        "vllm bench serve M",
        "vllm chat",
        "python -m vllm.entrypoints.cli.main bench",
        "sh -c 'vllm serve M'",  # the shell that started it, not the engine
        "VLLM::EngineCore",
        "sglang::scheduler_TP0",
        "python -m http.server",
        "cat vllm/entrypoints/openai/api_server.pyc",
    ],
)
def test_other_processes(line: str) -> None:
    assert parse_flags(shlex.split(line)) is None


def test_every_vllm_field() -> None:
    """Long names with an equals sign, with underscores, and the short ones (vLLM 0.32.0 arg_utils.py)."""
    long = read(
        "vllm serve M --served-model-name=a --tensor-parallel-size=2 --pipeline_parallel_size 3 "
        "--data-parallel-size 4 --decode-context-parallel-size=5 --block_size=32 --max-model-len=4096 "
        "--max_num_batched_tokens=8192 --kv-cache-dtype fp8 --dtype=bfloat16 --enable-prefix-caching "
        "--disable-hybrid-kv-cache-manager --speculative-config "
        """'{"method": "ngram", "num_speculative_tokens": 4}' --port=8001"""
    )
    short = read(
        "vllm serve M --served-model-name a b -tp 2 -pp=3 -dp 4 -dcp 5 --block-size 32 --max_model_len 4096 "
        "--max-num-batched-tokens 8192 --kv_cache_dtype=fp8 --dtype bfloat16 --enable_prefix_caching "
        "--disable_hybrid_kv_cache_manager -sc.method ngram -sc.num-speculative-tokens=4 --port 8001"
    )
    expected = EngineFlags(
        software="vllm",
        model="M",
        served_model_name="a",
        tensor_parallel_size=2,
        pipeline_parallel_size=3,
        data_parallel_size=4,
        decode_context_parallel_size=5,
        block_size=32,
        max_model_len=4096,
        max_num_batched_tokens=8192,
        kv_cache_dtype="fp8",
        dtype="bfloat16",
        enable_prefix_caching=True,
        hybrid_kv_cache_manager=False,
        speculative=True,
        speculative_method="ngram",
        num_speculative_tokens=4,
        port=8001,
        complete=True,
    )
    assert long == expected
    assert short == expected


def test_every_sglang_field() -> None:
    """SGLang 0.5.23 srt/arg_groups/fields; --tp and --dp are abbreviations people write."""
    expected = EngineFlags(
        software="sglang",
        model="M",
        served_model_name="a",
        tensor_parallel_size=2,
        pipeline_parallel_size=3,
        data_parallel_size=4,
        decode_context_parallel_size=5,
        block_size=64,
        max_model_len=4096,
        kv_cache_dtype="fp8_e4m3",
        dtype="half",
        enable_prefix_caching=False,
        speculative=True,
        speculative_method="mtp",  # EAGLE without a checkpoint of its own
        num_speculative_tokens=4,
        port=30001,
        complete=True,
    )
    common = (
        "--served-model-name a --page-size 64 --context-length 4096 --kv-cache-dtype fp8_e4m3 --dtype half "
        "--disable-radix-cache --speculative-algorithm EAGLE "
        "--speculative-num-draft-tokens 4 --port 30001"
    )
    starts = (
        "sglang serve M --tp 2 --pp 3 --dp 4 --dcp-size 5",
        "sglang serve --model-path M --tp-size 2 --pp-size 3 --dp-size 4 --dcp-size=5",
        "python -m sglang.launch_server --model=M --tensor-parallel-size=2 --pipeline-parallel-size 3 "
        "--data-parallel-size 4 --decode-context-parallel-size 5",
    )
    for start in starts:
        assert read(f"{start} {common}") == expected


def test_nothing_said() -> None:
    """Defaults are the engine's business: a bare command line tells only the model."""
    assert read("vllm serve M") == EngineFlags(software="vllm", model="M", complete=True)
    assert read("vllm serve M").listening_port == 8000
    assert read("sglang serve M").listening_port == 30000


@pytest.mark.parametrize(
    ("start", "option", "text", "value"),
    [
        # vLLM's own docstring (utils/argparse_utils.py): k decimal, K binary, decimals only with k
        ("vllm serve M", "--max-model-len", "32k", 32_000),
        ("vllm serve M", "--max-model-len", "32K", 32_768),
        ("vllm serve M", "--max-model-len", "25.6k", 25_600),
        ("vllm serve M", "--max-model-len", "1m", 1_000_000),
        ("vllm serve M", "--max-model-len", "1M", 1_048_576),
        ("vllm serve M", "--max-model-len", "1.5K", None),
        ("vllm serve M", "--max-model-len", "-1", None),
        ("vllm serve M", "--max-model-len", "auto", None),
        ("vllm serve M", "--max-model-len", "0", None),
        ("vllm serve M", "--max-model-len", "9" * 400 + "k", None),
        ("vllm serve M", "--max-model-len", "9" * 5000, None),
        ("vllm serve M", "--max-model-len", "1Ki", None),
        # SGLang's (srt/utils/common.py): M is a million there, Ki is binary
        ("sglang serve M", "--context-length", "1M", 1_000_000),
        ("sglang serve M", "--context-length", "32Ki", 32_768),
        ("sglang serve M", "--context-length", "25.6k", 25_600),
        ("sglang serve M", "--context-length", "1K", None),
    ],
)
def test_human_integers(start: str, option: str, text: str, value: int | None) -> None:
    assert read(f"{start} {option} {text}").max_model_len == value
    assert read(f"{start} {option}={text}").max_model_len == value


def test_last_one_wins() -> None:
    flags = read(
        "vllm serve M -tp 2 --tensor-parallel-size=4 --enable-prefix-caching --no-enable-prefix-caching "
        "--disable-hybrid-kv-cache-manager --no-disable-hybrid-kv-cache-manager"
    )
    assert (flags.tensor_parallel_size, flags.enable_prefix_caching) == (4, False)
    assert flags.hybrid_kv_cache_manager is True


@pytest.mark.parametrize(
    ("line", "model"),
    [
        ("vllm serve --port 8001 M --seed 1", "M"),
        ("vllm serve --enforce-eager -tp=2 M", "M"),
        ("vllm serve --served-model-name=a M", "M"),
        ("vllm serve --seed 1 M", None),  # M might belong to an option not known here
        ("vllm serve --unknown M", None),
        ("vllm serve --model M", "M"),
        ("sglang serve --port 30001 M", None),  # SGLang takes it only as the first word
    ],
)
def test_model_behind_options(line: str, model: str | None) -> None:
    """argparse takes the model anywhere; a word that may be another option's value is no model."""
    assert read(line).model == model


def test_lookalikes() -> None:
    """Options that begin like ours: a drafter's block size, a local share of the ranks, -dc for diffusion."""
    flags = read(
        "vllm serve M -dcp 2 -dc {} --data-parallel-size-local 7 -dpl 7 --model-impl x --mamba-block-size 9 "
        "--kv-cache-dtype-skip-layers 1 -n 3 -O3 -q awq"
    )
    assert flags == EngineFlags(software="vllm", model="M", decode_context_parallel_size=2, complete=True)
    other = read(
        "sglang serve M --speculative-dflash-block-size 9 --pp-max-micro-batch-size 2 --attn-cp-size 2"
    )
    assert other == EngineFlags(software="sglang", model="M", complete=True)


def test_abbreviations() -> None:
    """Both engines leave argparse's abbreviations on."""
    assert read("vllm serve M --tensor-par 2 --max-model 4096").tensor_parallel_size == 2
    assert read("sglang serve M --context 4096").max_model_len == 4096


@pytest.mark.parametrize(
    ("tail", "method", "tokens"),
    [
        ("--spec-method eagle3 --spec-model D --spec-tokens 3", "eagle3", 3),
        ("--speculative-config.method=qwen3_next_mtp -sc.num_speculative_tokens 2", "mtp", 2),
        ("""-sc='{"method":"suffix"}'""", "suffix", None),
        ("""-sc '{"model":"D","num_speculative_tokens":5}'""", None, 5),  # the draft's config tells
        ("""-sc '{"method":"made_up"}'""", None, None),
        ("-sc '{'", None, None),
        ("--speculative-model D --num-speculative-tokens 5", None, 5),
    ],
)
def test_how_vllm_drafts(tail: str, method: str | None, tokens: int | None) -> None:
    """JSON, its keys one by one, options of their own; before 0.8 without JSON."""
    flags = read(f"vllm serve M {tail}")
    assert flags.speculative is True
    assert (flags.speculative_method, flags.num_speculative_tokens) == (method, tokens)


def test_how_sglang_drafts() -> None:
    """EAGLE names two things: a draft model's checkpoint, and the layers a model brings along."""
    start = "sglang serve --model-path M --speculative-algorithm"
    assert read(f"{start} NEXTN").speculative_method == "mtp"
    assert read(f"{start} EAGLE --speculative-draft-model-path M").speculative_method == "mtp"
    assert read(f"{start} EAGLE --speculative-draft-model-path D").speculative_method == "eagle"
    assert read(f"{start} EAGLE3 --speculative-draft-model-path D").speculative_method == "eagle3"


@pytest.mark.parametrize("value", ["null", "none", "None", "''"])
def test_speculation_switched_off(value: str) -> None:
    assert read(f"vllm serve M --speculative-config {value}").speculative is None


@pytest.mark.parametrize(
    "tail",
    [
        "--port",
        "--port --dtype half",
        "-tp two --dtype half",
        "--block-size= --dtype half",
        "-tp -1 --dtype half",
    ],
)
def test_one_bad_value_costs_only_itself(tail: str) -> None:
    flags = read(f"vllm serve M {tail}")
    assert (flags.model, flags.port, flags.tensor_parallel_size, flags.block_size) == ("M", None, None, None)
    assert flags.dtype == ("half" if "half" in tail else None)


@pytest.mark.parametrize("tail", ["--enable-prefix-caching=true -tp 2", "--m 4 -tp 2"])
def test_what_argparse_refuses(tail: str) -> None:
    """A value for a switch, an ambiguous abbreviation: no engine runs like that; we know we do not know."""
    flags = read(f"vllm serve M {tail}")
    assert flags == EngineFlags(software="vllm", model="M", complete=False)


def test_nothing_secret_is_kept() -> None:
    flags = read("vllm serve M --api-key sk-secret --hf-token=hf_secret --port 8001 --ssl-keyfile /secret")
    assert "secret" not in repr(flags)


@given(
    st.lists(
        st.text(max_size=12) | st.sampled_from(["-tp", "--config", "--port", "=", "--", "-", "--no-", "2"])
    )
)
def test_any_words(words: list[str]) -> None:
    """Whatever stands behind `vllm serve`, the answer is flags and never an exception."""
    for software in ("vllm", "sglang"):
        flags = parse_flags([software, "serve", *words])
        assert flags is not None
        assert flags.software == software


def test_config_file(tmp_path: Path) -> None:
    """The file stands below the command line, and the model after `serve` above both."""
    (tmp_path / "c.yaml").write_text(
        "model: from-file\ntensor-parallel-size: 4\nmax_model_len: 32k\nblock-size: 16\nport: 9000\n"
        "served-model-name: [first, second]\nenable-prefix-caching: false\n"
        "disable-hybrid-kv-cache-manager: true\nspeculative-config: {method: deepseek_mtp, k: [sk-secret]}\n"
        "api-key: sk-secret\nkv-cache-dtype: null\ntrust-remote-code: true\n"
    )
    flags = read("vllm serve M --config c.yaml -tp 2", tmp_path)
    assert flags == EngineFlags(
        software="vllm",
        model="M",
        served_model_name="first",
        tensor_parallel_size=2,
        block_size=16,
        max_model_len=32_000,
        enable_prefix_caching=False,
        hybrid_kv_cache_manager=False,
        speculative=True,
        speculative_method="mtp",
        port=9000,
        complete=True,
        working_directory=tmp_path,
    )
    assert read(f"vllm serve --config {tmp_path}/c.yaml").model == "from-file"
    assert read("vllm serve -tp 8 --config c.yaml", tmp_path).tensor_parallel_size == 8


def test_config_file_of_sglang(tmp_path: Path) -> None:
    """Any long spelling is a key; false for a switch says nothing (server_args_config_parser.py)."""
    (tmp_path / "c.yml").write_text("model-path: M\ntp_size: 4\ndisable-radix-cache: false\npage-size: 64\n")
    flags = read("sglang serve --config c.yml", tmp_path)
    assert (flags.model, flags.tensor_parallel_size, flags.block_size) == ("M", 4, 64)
    assert flags.enable_prefix_caching is None


def test_config_with_equals_sign_is_not_read(tmp_path: Path) -> None:
    """As in both engines: only the two-word form loads the file."""
    (tmp_path / "c.yaml").write_text("tensor-parallel-size: 4\n")
    assert read("vllm serve M --config=c.yaml", tmp_path).tensor_parallel_size is None


BOMB = "a: &a [x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [*{chr(97 + i)}, *{chr(97 + i)}]\n" for i in range(24)
)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("c.yaml", "a: [1"),
        ("c.yaml", "- list"),
        ("c.yaml", ""),
        ("c.yaml", "[" * 20_000),
        ("c.yaml", "x: " + "1" * 5000),
        ("c.yaml", "#" * 200_000),
        ("c.yaml", "a: !!python/object/apply:os.system ['true']"),
        ("c.yaml", b"\xff\xfe\xff"),
        ("c.json", "{}"),
        ("other.yaml", None),
    ],
)
def test_bad_config_file(tmp_path: Path, name: str, content: str | bytes | None) -> None:
    """The command line still counts, and it is known to be only a part."""
    if content is not None:
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    flags = read(f"vllm serve M --config {name} -tp 2", tmp_path)
    assert (flags.model, flags.tensor_parallel_size, flags.complete) == ("M", 2, False)


def test_relative_config_without_a_directory() -> None:
    """Our own working directory is not the engine's: no file of ours is read in its place."""
    assert read("vllm serve M --config pyproject.yaml").complete is False
    assert read("vllm serve M --config").complete is False


def test_alias_bomb(tmp_path: Path) -> None:
    """A small file whose text would be 2 ** 25 words long: nested values never become text."""
    (tmp_path / "c.yaml").write_text(BOMB + "served-model-name: *y\nmodel: *y\nport: 9000\n")
    flags = read("vllm serve --config c.yaml", tmp_path)
    assert (flags.port, flags.model, flags.served_model_name) == (9000, None, None)


def test_options_are_names_without_values(tmp_path: Path) -> None:
    """Whether spans are sent is of interest, where to is not: that URL may hold a password."""
    url = "http://user:hunter2@collector/v1/traces"
    file = tmp_path / "c.yaml"
    file.write_text(f"otlp-traces-endpoint: {url}\nkv_cache_metrics: true\n")
    said = {
        "words": ["vllm", "serve", "M", "--otlp-traces-endpoint", url, "--kv_cache_metrics"],
        "equals": ["vllm", "serve", "M", f"--otlp-traces-endpoint={url}", "--kv-cache-metrics"],
        "file": ["vllm", "serve", "M", "--config", str(file)],
    }
    for name, argv in said.items():
        found = parse_flags(argv)
        assert found is not None
        assert found.options == {"--otlp-traces-endpoint", "--kv-cache-metrics"}, name
        assert found.model == "M"
        assert "hunter2" not in repr(found)
    sglang = parse_flags(["sglang", "serve", "--model-path", "M", "--enable-trace", "--enable-metrics"])
    assert sglang is not None
    assert sglang.options == {"--enable-trace", "--enable-metrics"}


def test_no_field_holds_the_raw_line() -> None:
    """A field added for the whole command line would carry its secrets: the list is closed."""
    assert {f.name for f in fields(EngineFlags)} == {
        "software", "model", "served_model_name", "tensor_parallel_size", "pipeline_parallel_size",
        "data_parallel_size", "decode_context_parallel_size", "block_size", "max_model_len",
        "max_num_batched_tokens", "kv_cache_dtype", "dtype", "enable_prefix_caching",
        "hybrid_kv_cache_manager", "speculative", "speculative_method", "num_speculative_tokens", "port",
        "options", "complete", "environment", "working_directory", "pid",
    }  # fmt: skip
