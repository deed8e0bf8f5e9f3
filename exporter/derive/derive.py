"""One rank's readout: the pool, the counters, the inputs and their trust."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from exporter import catalogue as c
from exporter.derive.inputs import REPORT_ASSUMED, Inputs, Model, choose
from exporter.derive.readout import Notebook, Readout
from exporter.derive.sglang_pool import TokenPool
from exporter.derive.vllm_pool import BlockPool
from exporter.engines.sample import EngineSample
from exporter.facts import Facts, Source
from exporter.kvmath.known import Reason, Unavailable, known


def derive(
    sample: EngineSample,
    facts: Mapping[Source, Facts],
    model: Model,
    contexts: Sequence[int],
    route: str = "",
    prefix_objectives: Mapping[str, float] | None = None,
) -> Readout:
    """Every figure of ``sample``.

    ``contexts``: the tiers, in tokens; those above what the engine serves are
    left out, and what it serves at most is added.  ``route``: the one route of
    this target, where the page names none.
    """
    inputs = choose(sample, facts, model)
    out = Notebook()
    info: Mapping[str, str] = {}
    if not sample.whole_server:
        tiers = _tiers(inputs, contexts, out)
        kind = TokenPool if sample.software == "sglang" else BlockPool
        pool = kind(sample, inputs, tiers, out)
        pool.derive()
        out.put(c.USAGE_RATIO, sample.usage_ratio)
        out.put(c.RUNNING_SEQUENCES, sample.running_sequences)
        out.put(c.WAITING_SEQUENCES, sample.waiting_sequences)
        out.put(c.MODEL_WEIGHTS_BYTES, model.weights_bytes)
        if sample.software == "vllm":
            out.put(
                c.CACHED_TOKENS, Unavailable(Reason.NOT_REPORTED, "vLLM does not tell how much is cached")
            )
        info = _info(sample, inputs, pool.dtype)
        _contradictions(inputs, out)
    _pressure(sample, out)
    out.put(c.DECODE_GAPS, sample.itl.counts[-1] if known(sample.itl) else sample.itl)
    _prefix(sample, inputs, route, prefix_objectives or {}, out)
    # Some tiers may have a figure and others a reason: then the series is there.
    present = {figure.metric for figure in out.figures}
    missing = {m: why for m, why in out.missing.items() if m not in present}
    if sample.whole_server:
        missing = {}
    return Readout(
        sample, inputs, tuple(out.figures), missing, tuple(out.steps), tuple(out.contradictions), info
    )


def _tiers(inputs: Inputs, contexts: Sequence[int], out: Notebook) -> tuple[int, ...]:
    longest = inputs.count("max_model_len", Reason.MAX_MODEL_LEN)
    out.put(c.MAX_MODEL_LEN_TOKENS, longest)
    if not known(longest):
        return tuple(sorted(set(contexts)))
    longer = sorted(context for context in set(contexts) if context > longest)
    if longer:
        left_out = ", ".join(f"{context:,}" for context in longer)
        out.show(
            "context tiers", f"left out above max_model_len: {left_out}", f"{longest:,}", "tokens at most"
        )
    return tuple(sorted({context for context in contexts if context <= longest} | {longest}))


def _pressure(sample: EngineSample, out: Notebook) -> None:
    out.put(c.PREEMPTIONS, sample.preemptions)
    out.put(c.EVICTED_TOKENS, sample.evicted_tokens)
    out.put(c.PREEMPTED_REQUESTS, sample.preempted_requests)
    if known(sample.preempted_requests):
        out.put(c.PREEMPTED_REQUESTS_LOWER_BOUND, 0 if sample.preempted_requests_exact else 1)
    if known(sample.requests):
        for outcome, count in sample.requests.items():
            out.put(c.REQUESTS, count, outcome=outcome)
    else:
        out.put(c.REQUESTS, sample.requests)


def _prefix(
    sample: EngineSample, inputs: Inputs, route: str, objectives: Mapping[str, float], out: Notebook
) -> None:
    if known(sample.prefix):
        for named, tokens in sample.prefix.query_tokens.items():
            out.put(c.PREFIX_QUERY_TOKENS, tokens, route=named or route)
        for (named, source), tokens in sample.prefix.hit_tokens.items():
            out.put(c.PREFIX_HIT_TOKENS, tokens, route=named or route, cache_source=source)
    else:
        out.put(c.PREFIX_QUERY_TOKENS, sample.prefix)
        out.put(c.PREFIX_HIT_TOKENS, sample.prefix)
    if sample.whole_server:
        return
    for named, objective in objectives.items():
        out.put(c.PREFIX_HIT_OBJECTIVE, objective, route=named)
    if inputs.flag("enable_prefix_caching") is False:
        out.put(
            c.PREFIX_MATCHABLE_TOKENS, Unavailable(Reason.PREFIX_CACHING_OFF, "the engine runs without it")
        )
    else:
        # Where the engine's block size is not the one its states need, it is no prefix's either.
        wrong = out.missing.get(c.BYTES_PER_TOKEN)
        block = inputs.count("block_size", Reason.BLOCK_SIZE)
        out.put(
            c.PREFIX_MATCHABLE_TOKENS,
            wrong if wrong is not None and wrong.reason is Reason.BLOCK_SIZE else block,
        )


def _info(sample: EngineSample, inputs: Inputs, dtype: str | Unavailable) -> Mapping[str, str]:
    shape = inputs.model.shape
    choices = inputs.choices

    def said(name: str) -> str:
        value = choices[name].value
        return "" if value is None else str(value)

    def source(name: str) -> str:
        return str(choices[name].source or "")

    return {
        "software": sample.software,
        "version": said("version"),
        "kv_cache_dtype": dtype if known(dtype) else said("kv_cache_dtype"),
        "kv_cache_dtype_source": source("kv_cache_dtype"),
        "block_size": said("block_size"),
        "attention": shape.attention if known(shape) else "unknown",
        "config_source": inputs.model.source if inputs.model.override is None else "set_by_hand",
        "tensor_parallel_size": said("tensor_parallel_size"),
        "pipeline_parallel_size": said("pipeline_parallel_size"),
        "parallel_source": source("tensor_parallel_size"),
    }


def _contradictions(inputs: Inputs, out: Notebook) -> None:
    for name, choice in inputs.choices.items():
        if name in ("model", "served_model_name", "software"):
            continue  # spelled differently by nature: a path here, an alias there
        for source, value in choice.disagrees:
            out.disagree(
                name,
                str(choice.source),
                str(source),
                f"{choice.value} ({choice.source}) against {value} ({source})",
            )
        if choice.assumed and name in REPORT_ASSUMED:
            out.put(c.INPUT_ASSUMED, 1, input=name)
