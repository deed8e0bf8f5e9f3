"""An answer as tables for people.  GB is 10^9 bytes and GiB 2^30, and every figure says which it is."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from exporter.kvmath.known import known
from exporter.kvmath.layers import Kind
from exporter.kvmath.plan import ContextPlan
from exporter.planner.answer import Answer
from exporter.planner.layouts import EngineLayout, LayerRow
from exporter.planner.output import number
from exporter.planner.remedies import remedies

GIB = 2**30
WIDTH = 240


def both(size: int) -> str:
    """``size`` bytes in GB and in GiB: "16.06 GB (14.96 GiB)"; below a tenth of a GB in MB and MiB."""
    if abs(size) < 10**8:
        return f"{size / 10**6:,.2f} MB ({size / 2**20:,.2f} MiB)"
    return f"{size / 10**9:,.2f} GB ({size / GIB:,.2f} GiB)"


def as_text(answer: Answer, location: str) -> str:
    """The answer as a page of tables, as wide as their figures."""
    # Only the tables need the library, and JSON should not wait for it.
    from io import StringIO  # noqa: PLC0415

    from rich.console import Console  # noqa: PLC0415

    page = StringIO()
    # Wider than any table: a figure that is cut short would be worse than a line that wraps.
    console = Console(file=page, width=WIDTH, highlight=False, emoji=False, markup=False, color_system=None)
    for part in _page(answer, location):
        console.print(part, soft_wrap=isinstance(part, str))
    return "\n".join(line.rstrip() for line in page.getvalue().splitlines()) + "\n"


def _page(answer: Answer, location: str) -> Iterator[Any]:
    yield from _head(answer, location)
    layout = answer.layout
    if not known(layout):
        yield f"\nUnavailable: {layout.reason}: {layout.detail}"
        return
    yield ""
    yield "One token, all GPUs of a replica"
    yield _layer_table(layout)
    yield from _pool_lines(answer)
    yield ""
    yield "One sequence, on one GPU"
    yield _context_table(answer)
    if answer.question.sequences:
        yield ""
        yield f"{answer.question.sequences:,} sequences, all GPUs of a replica"
        yield _total_table(answer, layout)
    yield from _notes(answer)
    found = remedies(answer)
    if found:
        yield ""
        yield "What would help:"
        for r in found:
            verdict = "fits" if r.fits else f"{r.fit:,} fit, not enough"
            yield f"  {r.tokens:,} tokens, {str(r.kind).replace('_', ' ')}: {r.change}: {verdict}"
    if known(answer.fits):
        yield ""
        yield f"Fits: {'yes' if answer.fits else 'NO'}"


def _head(answer: Answer, location: str) -> Iterator[str]:
    asked, shape, weights = answer.question, answer.shape, answer.weights
    machine = asked.machine
    split = machine.parallelism
    if known(shape):
        yield f"Model    {location}: {shape.model_type}, {shape.attention}"
    else:
        yield f"Model    {location}"
    yield (
        f"Machine  {machine.gpus} x {machine.name}, {both(machine.memory_bytes)} each, "
        f"of which the engine uses {asked.utilization:.0%}; "
        f"tensor x pipeline parallel {split.tensor} x {split.pipeline}"
        + (f", {machine.replicas} replicas (figures are for one)" if machine.replicas > 1 else "")
    )
    if known(weights):
        yield f"Weights  {both(weights.bytes)}: {weights.how}"
    else:
        yield f"Weights  unavailable: {weights.reason}: {weights.detail}; give --weights-gb"


def _layer_table(layout: EngineLayout) -> Any:
    columns = ("layers", "kind", "bytes per layer", "bytes in all", "kept for", "state bytes")
    rows = [
        (
            f"{row.count:,}",
            str(row.kind).replace("_", " "),
            f"{number(row.bytes_per_token):,}",
            f"{number(row.count * row.bytes_per_token):,}",
            _kept(row),
            f"{row.state_bytes:,}" if row.state_bytes else "",
        )
        for row in layout.layers
    ]
    return _table(columns, rows)


def _kept(row: LayerRow) -> str:
    if row.kind is Kind.CROSS:
        return f"{row.window_tokens:,} encoder tokens" if row.window_tokens else "encoder tokens"
    if row.window_tokens:
        return f"{row.window_tokens:,} tokens"
    return "a sequence" if row.state_bytes else "every token"


def _pool_lines(answer: Answer) -> Iterator[str]:
    layout, pool, deployment = answer.layout, answer.pool, answer.deployment
    if not known(layout):
        return
    if answer.question.choices.override.names:
        yield f"Set by hand: {', '.join(answer.question.choices.override.names)}"
    if layout.state_bytes_per_sequence:
        yield f"States take {both(layout.state_bytes_per_sequence)} a sequence, whatever its length"
    yield f"One token more of a long context takes {layout.bytes_per_token:,} bytes"
    yield (
        f"{layout.engine}: {layout.cache_dtype} cache, blocks of {layout.block_tokens:,} tokens, "
        f"{layout.block_bytes:,} bytes on one GPU"
    )
    if not known(pool):
        yield f"Pool     unavailable: {pool.reason}"
        return
    weights = deployment.device_weights_bytes
    yield (
        f"Pool     {both(pool.device_bytes)} on one GPU = {both(deployment.usable_bytes)} usable - "
        f"{both(weights if known(weights) else 0)} weights"
        + (f" - {both(deployment.overhead_bytes)} overhead" if deployment.overhead_bytes else "")
    )
    yield f"         {pool.blocks:,} blocks; {both(pool.replica_bytes)} in all GPUs of a replica"
    if pool.device_bytes == 0:
        yield "         The weights alone don't fit."
    longest, wanted = answer.longest_served, answer.max_model_len
    if known(longest) and known(wanted) and 0 < longest < wanted:
        yield (
            f"         One sequence of the maximum of {wanted:,} tokens doesn't fit: "
            f"start the engine with --max-model-len {longest} at most"
        )
    if known(pool.live_tokens):
        yield f"Tokens   {pool.live_tokens:,} at most"


def _context_table(answer: Answer) -> Any:
    asked = answer.question
    timed = known(answer.deployment.bandwidth_bytes_per_second) and known(answer.weights)
    columns = ["context", "holds at most", "blocks", "fit"]
    if asked.shared_prefix_tokens:
        columns.append("fit, sharing")
    if known(asked.price_per_hour):
        columns.append("dollars per hour")
    if timed:
        columns += ["read per step", "running", "step at least"]
    return _table(columns, (_cells(answer, c) for c in answer.contexts))


def _cells(answer: Answer, context: ContextPlan) -> Iterator[str]:
    asked = answer.question
    yield f"{context.tokens:,}{' *' if answer.beyond(context) else ''}"
    yield both(context.peak_bytes)
    yield f"{context.peak_blocks:,}"
    yield f"{context.fit:,}" if known(context.fit) else "?"
    if asked.shared_prefix_tokens:
        yield f"{context.fit_sharing:,}" if known(context.fit_sharing) else "?"
    if known(asked.price_per_hour):
        yield f"{context.cost_per_hour:.4g}" if known(context.cost_per_hour) else "?"
    if known(floor := context.floor):
        yield f"{floor.sequence_seconds * 1000:,.2f} ms"
        yield f"{floor.sequences:,}"
        yield f"{floor.seconds * 1000:,.1f} ms"


def _total_table(answer: Answer, layout: EngineLayout) -> Any:
    sequences, shared = answer.question.sequences, answer.question.shared_prefix_tokens
    columns = ["context", "apart", *(["sharing the prefix", "ratio"] if shared else [])]

    def cells(context: ContextPlan) -> Iterator[str]:
        apart = sequences * context.peak_blocks
        yield f"{context.tokens:,}"
        yield both(apart * layout.replica_block_bytes)
        if shared:
            together = context.sharing.blocks(sequences)
            yield both(together * layout.replica_block_bytes)
            yield f"{apart / together:.1f} x"

    return _table(columns, (cells(context) for context in answer.contexts))


def _table(columns: Iterable[str], rows: Iterable[Iterable[str]]) -> Any:
    from rich.table import Table  # noqa: PLC0415

    table = Table()
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    return table


def _notes(answer: Answer) -> Iterator[str]:
    if any(answer.beyond(context) for context in answer.contexts):
        yield f"* longer than the model's maximum of {answer.max_model_len:,} tokens"
    weights, bandwidth = answer.deployment.device_weights_bytes, answer.deployment.bandwidth_bytes_per_second
    if any(
        known(c.floor) and known(c.fit_sharing) and c.floor.sequences > c.fit_sharing for c in answer.contexts
    ):
        yield (
            f"The step is one of all {answer.question.sequences:,} sequences, also where they don't fit: "
            "an engine then runs fewer, and the others wait"
        )
    if known(weights) and known(bandwidth):
        yield (
            f"A decode step reads the weights once ({weights / bandwidth * 1000:,.2f} ms at "
            f"{bandwidth / 10**12:,.2f} TB/s) and every running sequence's cache"
        )
    if known(answer.weights) and known(answer.weights.active_parameters) and known(answer.weights.parameters):
        active, total = answer.weights.active_parameters, answer.weights.parameters
        if active < total:
            yield (
                f"A token uses {active / 10**9:,.1f} of {total / 10**9:,.1f} billion parameters: "
                "a step with few sequences reads less than all weights"
            )
