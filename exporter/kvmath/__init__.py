"""The arithmetic of the KV cache.  Pure: no I/O, no clock, no Prometheus.

``config.json`` -> :func:`~exporter.kvmath.model.read_model` -> the cache of
every layer -> the engine's layout (:mod:`~exporter.kvmath.vllm`,
:mod:`~exporter.kvmath.sglang`) -> bytes, tokens and sequences
(:mod:`~exporter.kvmath.capacity`).
"""
