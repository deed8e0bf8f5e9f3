"""One real vLLM."""

from __future__ import annotations

import json
import os
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from .hardware import VLLM_ON_CPU, wants_gpu
from .server import Server, free_port
from .waiting import wait_for

_MEMPROBE = Path(__file__).with_name("memprobe")
# Spans are exported in batches; the default of five seconds is long for a test.
EXPORT_EVERY_MS = 200
_READY_S = 240.0  # 17 to 25 s on two idle cores; a busy machine takes longer

# As the log of 0.32.0 has it, with the platform before it ("CPU KV cache size"); 0.26.0 takes two lines.
_CAPACITY_LINE = re.compile(
    r"KV cache size: ([\d,]+) tokens(?:, |\n.*)Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x"
)


@dataclass(frozen=True, slots=True)
class CapacityLine:
    """What the engine's log says about its pool when it starts."""

    kv_cache_tokens: int
    max_model_len_tokens: int
    max_concurrency: float


@dataclass(frozen=True, slots=True)
class MeasuredPool:
    """The KV cache as torch has it, in bytes, all ranks together; the last two on a GPU only."""

    tensor_bytes: int
    tensors: int
    """How many storages."""
    allocated_bytes: int | None
    """What torch's allocator was asked for."""
    device_bytes: int | None
    """What the driver has less of."""

    @classmethod
    def of(cls, workers: Sequence[Mapping[str, Any]]) -> Self:
        """The sum of what the memory probe wrote in each worker."""

        def total(name: str) -> int | None:
            return sum(told[name] for told in workers) if all(name in told for told in workers) else None

        return cls(
            sum(told["storage_bytes"] for told in workers),
            sum(told["storages"] for told in workers),
            total("requested_by_pool"),
            total("device_free_drop"),
        )


def installed_by_hand() -> Path | None:
    """The python of a vLLM that is there already, from KVCACHE_RIG_VLLM_PYTHON."""
    named = os.environ.get("KVCACHE_RIG_VLLM_PYTHON")
    return Path(named) if named else None


def without_flash_attention(model_directory: Path) -> tuple[str, ...]:
    """The flags for a host whose flash-attention 3 does not work (KVCACHE_RIG_WITHOUT_FA3=1); else none.

    vLLM refuses a backend that is not for MLA where the model is.
    """
    if os.environ.get("KVCACHE_RIG_WITHOUT_FA3") != "1":
        return ()
    config = json.loads((model_directory / "config.json").read_text())
    text = config.get("text_config", config)
    return ("--attention-backend", "TRITON_MLA" if text.get("kv_lora_rank") else "TRITON_ATTN")


class Engine(Server):
    """vLLM serving one model directory on a port of 127.0.0.1, for the length of a `with` block."""

    def __init__(
        self,
        python: Path,
        model_directory: Path,
        log_path: Path,
        *,
        kv_cache_bytes: int,
        flags: Sequence[str] = (),
        developer_mode: bool = True,
        load_format: str = "dummy",
    ) -> None:
        """Prepare the command; `developer_mode` opens the endpoints that hold the scheduler still.

        `kv_cache_bytes` of 0: the engine sizes its pool by profiling, or as `flags` say.
        KVCACHE_RIG_VLLM_FLAGS adds flags to every engine (another attention backend, say).
        """
        port = free_port()
        self._memory_path = log_path.with_suffix(".memory.jsonl")
        self.model_name = model_directory.name
        command = [
            str(python), "-m", "vllm.entrypoints.cli.main", "serve", str(model_directory),
            "--served-model-name", self.model_name,
            "--host", "127.0.0.1", "--port", str(port),
            "--load-format", load_format, "--enforce-eager",
            "--max-model-len", "4096", "--max-num-seqs", "64",
            *(("--kv-cache-memory-bytes", str(kv_cache_bytes)) if kv_cache_bytes else ()),
            *flags,
            *without_flash_attention(model_directory),
            *shlex.split(os.environ.get("KVCACHE_RIG_VLLM_FLAGS", "")),
        ]  # fmt: skip
        # The tests' own python and whatever this machine tells its other engines must not leak in, but for an
        # engine that was installed by hand, which is what it was told.
        leaks = ("KVCACHE_",) if installed_by_hand() else ("PYTHON", "VIRTUAL_ENV", "VLLM_", "KVCACHE_")
        inherited = {name: text for name, text in os.environ.items() if not name.startswith(leaks)}
        environment = {
            **inherited,
            "VLLM_SERVER_DEV_MODE": "1" if developer_mode else "0",
            **({} if wants_gpu() else VLLM_ON_CPU),
            # Nothing leaves the machine, nothing is looked up.
            "VLLM_HOST_IP": "127.0.0.1",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
        }
        super().__init__(command, environment, log_path, port)

    def on_path(self, directory: Path) -> None:
        """Let it import what lies there."""
        before = self._environment.get("PYTHONPATH")
        self._environment["PYTHONPATH"] = f"{directory}{os.pathsep}{before}" if before else str(directory)

    def tracing_to(self, url: str) -> None:
        """Send its traces there, with the flags that the README names."""
        self._command += ["--otlp-traces-endpoint", f"{url}/v1/traces"]
        self._environment |= {
            "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "http/protobuf",
            "OTEL_TRACES_SAMPLER": "always_on",
            "OTEL_BSP_SCHEDULE_DELAY": str(EXPORT_EVERY_MS),
        }

    def measure_memory(self) -> None:
        """Have the bytes of its KV tensors written down when it starts; `memory` reads them."""
        self.on_path(_MEMPROBE)
        self._environment["MEMPROBE_OUT"] = str(self._memory_path)

    def memory(self, ranks: int = 1) -> MeasuredPool:
        """What the plugin wrote in each rank; raises LookupError where one did not, or could not measure."""
        try:
            lines = [json.loads(line) for line in self._memory_path.read_text().splitlines()]
        except OSError:
            lines = []
        if len(lines) != ranks or any("error" in told for told in lines):
            raise LookupError(f"the memory probe of {ranks} workers was expected, not {lines}")
        return MeasuredPool.of(lines)

    def version(self) -> str:
        """The release, as it names itself."""
        return str(self._http.get("/version").raise_for_status().json()["version"])

    def wait_ready(self) -> None:
        """Return when /health answers; raises TimeoutError, or RuntimeError if the engine died."""
        wait_for(lambda: self.answers("/health"), _READY_S, f"vLLM serving {self.model_name}")

    def capacity_line(self) -> CapacityLine:
        """The pool as the engine logged it; raises LookupError if the line is not there."""
        found = _CAPACITY_LINE.search(self.log())
        if found is None:
            raise LookupError(f"no capacity line in {self.log_path}")
        tokens, length, concurrency = found.groups()
        return CapacityLine(int(tokens.replace(",", "")), int(length.replace(",", "")), float(concurrency))

    def num_blocks(self) -> int:
        """Blocks of the pool, the null block included, as the engine's info metric has them."""
        return int(self.scrape().one("vllm:cache_config_info").labels["num_gpu_blocks"])
