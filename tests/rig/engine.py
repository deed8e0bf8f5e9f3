"""One real vLLM on this CPU."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from .server import Server, free_port
from .waiting import wait_for

_READY_S = 240.0  # 17 to 25 s on two idle cores; a busy machine takes longer

# As the log of 0.32.0 has it; the line starts with the platform ("CPU KV cache size").
_CAPACITY_LINE = re.compile(
    r"KV cache size: ([\d,]+) tokens, Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x"
)


@dataclass(frozen=True, slots=True)
class CapacityLine:
    """What the engine's log says about its pool when it starts."""

    kv_cache_tokens: int
    max_model_len_tokens: int
    max_concurrency: float


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
    ) -> None:
        """Prepare the command; `developer_mode` opens the endpoints that hold the scheduler still."""
        port = free_port()
        self.model_name = model_directory.name
        command = [
            str(python), "-m", "vllm.entrypoints.cli.main", "serve", str(model_directory),
            "--served-model-name", self.model_name,
            "--host", "127.0.0.1", "--port", str(port),
            "--load-format", "dummy", "--enforce-eager",
            "--max-model-len", "4096", "--max-num-seqs", "64",
            "--kv-cache-memory-bytes", str(kv_cache_bytes),
            *flags,
        ]  # fmt: skip
        # The tests' own python and whatever this machine tells its other engines must not leak in.
        inherited = {
            name: text
            for name, text in os.environ.items()
            if not name.startswith(("PYTHON", "VIRTUAL_ENV", "VLLM_", "KVCACHE_"))
        }
        environment = {
            **inherited,
            "VLLM_SERVER_DEV_MODE": "1" if developer_mode else "0",
            # Fewer processes and threads: several cores are not to be had where this runs.
            "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
            "OMP_NUM_THREADS": "1",
            # Else 0.32.0 (utils/ompmultiprocessing.py) wants a NUMA node for every rank.
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",
            # Nothing leaves the machine, nothing is looked up.
            "VLLM_HOST_IP": "127.0.0.1",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
        }
        super().__init__(command, environment, log_path, port)

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
