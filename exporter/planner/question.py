"""From flags to the figures the arithmetic wants; contradictions end here."""

from __future__ import annotations

from dataclasses import dataclass

from exporter.kvmath.hardware import GPUS, Gpu, find_gpu
from exporter.kvmath.known import Reason, Unavailable
from exporter.kvmath.overrides import Override
from exporter.kvmath.parallel import Parallelism
from exporter.planner.layouts import Choices
from exporter.planner.names import cache_dtype, draft_method
from exporter.planner.settings import PlanSettings

DEFAULT_GPU = "H100"


@dataclass(frozen=True, slots=True)
class Machine:
    """GPUs alike: ``memory_bytes`` and bandwidth of one, and how the model is spread over them."""

    name: str
    memory_bytes: int
    bandwidth_bytes_per_second: int | Unavailable
    parallelism: Parallelism
    replicas: int

    @property
    def gpus(self) -> int:
        """All GPUs, of all replicas."""
        return self.parallelism.gpus * self.replicas


@dataclass(frozen=True, slots=True)
class Question:
    """Everything ``plan`` was asked, checked."""

    machine: Machine
    choices: Choices
    utilization: float
    overhead_bytes: int
    price_per_hour: float | Unavailable  # of one replica, in dollars
    contexts: tuple[int, ...]
    sequences: int  # of one replica; 0: not asked
    all_sequences: int  # over all replicas; 0: not asked
    shared_prefix_tokens: int
    in_flight_tokens: int  # 0: the engine's default for the model
    max_model_len: int  # 0: the config's


def question(settings: PlanSettings) -> Question:
    """``settings`` made definite.  Raises ``ValueError`` where two of them contradict each other."""
    machine = _machine(settings)
    if settings.weights_gb is not None and settings.weights_dtype is not None:
        raise ValueError("--weights-gb and --weights-dtype: either the size or how it is counted")
    override = Override(settings.bytes_per_token, settings.state_bytes_per_sequence, settings.window_tokens)
    if override.names and (problem := override.problem) is not None:
        raise ValueError(problem.detail)
    price = settings.price_per_hour
    return Question(
        machine=machine,
        choices=Choices(
            engine=settings.engine,
            kv_cache_dtype=cache_dtype(settings.kv_cache_dtype),
            parallelism=machine.parallelism,
            block_tokens=settings.block_size or 0,
            hybrid_manager=not settings.no_hybrid_manager,
            prefix_caching=not settings.no_prefix_caching,
            speculative=draft_method(settings.speculative),
            max_model_len=settings.max_model_len or 0,
            override=override,
        ),
        utilization=settings.gpu_memory_utilization,
        overhead_bytes=round(settings.overhead_gb * 10**9),
        price_per_hour=Unavailable(Reason.NOT_REPORTED, "no --price-per-hour")
        if price is None
        else price / machine.replicas,
        contexts=tuple(sorted(set(settings.context))),
        # The busiest replica gets the remainder.
        sequences=-(-settings.sequences // machine.replicas) if settings.sequences else 0,
        all_sequences=settings.sequences or 0,
        shared_prefix_tokens=settings.shared_prefix,
        in_flight_tokens=settings.max_num_batched_tokens or 0,
        max_model_len=settings.max_model_len or 0,
    )


def _machine(settings: PlanSettings) -> Machine:
    memory = settings.gpu_memory_gb
    gpu = None if settings.gpu is None and memory is not None else _gpu(settings.gpu or DEFAULT_GPU)
    stages, replicas = settings.pipeline_parallel_size, settings.data_parallel_size
    tensor = settings.tensor_parallel_size
    if tensor is None:
        tensor, rest = divmod(settings.gpus or stages * replicas, stages * replicas)
        if rest or not tensor:
            raise ValueError(
                f"--gpus {settings.gpus}: not a multiple of {stages} stages x {replicas} replicas"
            )
    split = tensor * stages * replicas
    if settings.gpus is not None and settings.gpus != split:
        raise ValueError(
            f"--gpus {settings.gpus}: "
            f"tensor x pipeline x data parallel size is {tensor} x {stages} x {replicas}"
        )
    if tensor % settings.decode_context_parallel_size:
        raise ValueError(
            f"--decode-context-parallel-size {settings.decode_context_parallel_size}: "
            f"doesn't divide the tensor-parallel size, {tensor}"
        )
    return Machine(
        name=gpu.name if gpu else "GPU",
        memory_bytes=round(memory * 10**9) if memory is not None else gpu.memory_bytes if gpu else 0,
        bandwidth_bytes_per_second=gpu.bandwidth_bytes_per_second
        if gpu
        else Unavailable(Reason.NOT_REPORTED, "no --gpu, so no memory bandwidth"),
        parallelism=Parallelism(tensor, stages, settings.decode_context_parallel_size),
        replicas=replicas,
    )


def _gpu(name: str) -> Gpu:
    found = find_gpu(name)
    if isinstance(found, Gpu):
        return found
    # Every known name when nothing is near, for a guess at what was meant would be noise.
    names = found or tuple(gpu.name for gpu in GPUS)
    raise ValueError(
        f"--gpu {name[:80]!r}: not known; did you mean {', '.join(names)}? Or give --gpu-memory-gb"
    )
