"""One real SGLang."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from .hardware import SGLANG_CPU_FLAGS, SGLANG_GPU_FLAGS, SGLANG_ON_CPU, wants_gpu
from .server import Server, free_port
from .waiting import wait_for

_READY_S = 240.0  # 9 to 13 s on two idle cores; a busy machine takes longer
_STUBS = Path(__file__).with_name("stubs")

# As the log of 0.5.23 has it.
_CAPACITY_LINE = re.compile(r"\bmax_total_num_tokens=(\d+), .*\bcontext_len=(\d+)")


class SglangEngine(Server):
    """SGLang serving one model directory on a port of 127.0.0.1, for the length of a `with` block."""

    def __init__(
        self, python: Path, model_directory: Path, log_path: Path, flags: Sequence[str] = ()
    ) -> None:
        """Prepare the command."""
        port = free_port()
        self.model_name = model_directory.name
        command = [
            str(python), "-m", "sglang.launch_server",
            "--model-path", str(model_directory),
            "--served-model-name", self.model_name,
            "--host", "127.0.0.1", "--port", str(port),
            "--load-format", "dummy",
            *(SGLANG_GPU_FLAGS if wants_gpu() else SGLANG_CPU_FLAGS),
            "--enable-metrics", "--decode-log-interval", "1",
            # Its own first request would be counted with ours.
            "--skip-server-warmup",
            # Else the scheduler keeps a core busy while it has nothing to do.
            "--sleep-on-idle",
            *flags,
        ]  # fmt: skip
        # The tests' own python and whatever this machine tells its other engines must not leak in.
        inherited = {
            name: text
            for name, text in os.environ.items()
            if not name.startswith(("PYTHON", "VIRTUAL_ENV", "SGLANG_", "KVCACHE_", "PROMETHEUS_"))
        }
        environment = {
            **inherited,
            # Released packages have their kernels; on a CPU they are only imported, never called.
            **({} if wants_gpu() else {"PYTHONPATH": str(_STUBS), **SGLANG_ON_CPU}),
            # Reserve little for what a request may still generate: a pool that is never full never retracts.
            "SGLANG_CLIP_MAX_NEW_TOKENS_ESTIMATION": "16",
            # Nothing is looked up outside.
            "HF_HUB_OFFLINE": "1",
        }
        super().__init__(command, environment, log_path, port)

    def wait_ready(self) -> None:
        """Return when it can take requests; raises TimeoutError, or RuntimeError if the engine died.

        Never /health: it runs a prefill and moves the counters that are compared here.
        """
        wait_for(lambda: self.answers("/model_info"), _READY_S, f"SGLang serving {self.model_name}")

    def version(self) -> str:
        """The release, as it names itself."""
        return str(self._http.get("/server_info").raise_for_status().json()["version"])

    def logged_capacity(self) -> tuple[int, int]:
        """Tokens of the pool and of the longest context, from its log; LookupError if the line is missing."""
        found = _CAPACITY_LINE.search(self.log())
        if found is None:
            raise LookupError(f"no capacity line in {self.log_path}")
        return int(found[1]), int(found[2])
