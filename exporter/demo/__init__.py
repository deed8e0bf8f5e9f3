"""A built-in pair of engines for trying the exporter: recorded runs, replayed.

Nothing here invents a number: every page is one that vLLM 0.32.0 or SGLang
0.5.23 served while it ran out of KV cache (see ``data/README.md``).
"""

from exporter.demo.recording import NAMES, load
from exporter.demo.text import what_to_look_at

__all__ = ["NAMES", "load", "what_to_look_at"]
