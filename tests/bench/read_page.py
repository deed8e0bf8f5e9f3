"""Reading one recorded page: ours against prometheus_client's parser over the whole page.

``first`` is a page whose label sets were never seen, as after a start; every later
poll of the engine is ``read``.  The parser stands for what any reader of the page
would pay that does not choose its lines first.  ``derive`` comes after reading.
"""

from __future__ import annotations

from prometheus_client.parser import text_string_to_metric_families

from exporter.derive.derive import derive
from exporter.engines import detect, exposition
from tests.bench._common import ENGINES, Engine, Times, in_turns, quick, show, tell


def measure(engine: Engine, rounds: int) -> dict[str, Times]:
    """Times of the whole parser, of reading, and of deriving, on ``engine``'s page."""
    text = engine.page
    state = engine.state(engine.name)
    page = detect.read(text)
    samples = detect.samples(page)

    def first() -> None:
        exposition._labels.cache_clear()
        detect.read(text)

    return in_turns(
        rounds,
        {
            "full_parser": lambda: list(text_string_to_metric_families(text)),
            "first": first,
            "read": lambda: detect.read(text),
            "read_and_samples": lambda: detect.samples(detect.read(text)),
            "derive": lambda: [derive(s, state.facts, state.model, state.contexts) for s in samples],
        },
    )


def main() -> None:
    rounds = 5 if quick(__doc__) else 50
    rows: list[list[object]] = [
        [
            "page",
            "kB",
            "lines",
            "full parser",
            "first",
            "read",
            "+ samples",
            "full / read",
            "full / both",
            "derive",
        ]
    ]
    figures: dict[str, object] = {}
    for engine in ENGINES.values():
        text = engine.page
        times = measure(engine, rounds)
        full, first, read, both, derived = (times[k].best_ms for k in times)
        size = (len(text) // 1000, text.count("\n"))
        rows.append([engine.name, *size, full, first, read, both, full / read, full / both, derived])
        figures[engine.name] = {
            **{f"{name}_ms": time.best_ms for name, time in times.items()},
            "full_over_first": full / first,
            "full_over_read": full / read,
            "full_over_read_and_samples": full / both,
            "derive_share": derived / (both + derived),
        }
    print(f"ms, best of {rounds}")
    show(rows)
    tell("read_page", figures)


if __name__ == "__main__":
    main()
