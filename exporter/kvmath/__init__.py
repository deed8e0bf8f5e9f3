"""The arithmetic of the KV cache.  Pure: no I/O, no clock, no Prometheus.

``config.json`` -> :func:`~exporter.kvmath.model.read_model` (``families*.py``
list the model types; ``heads``, ``windows``, ``hybrids``, ``recurrents``,
``mixed``, ``sparse``, ``encoders`` and ``drafts`` read their fields) -> the caches
of every layer (``layers``, ``states``) -> bytes by cache dtype (``dtypes``,
``formats``) -> the engine's layout (:mod:`~exporter.kvmath.vllm` with
``vllm_pages``, ``vllm_groups`` and ``blocks``; :mod:`~exporter.kvmath.sglang`) ->
bytes, tokens and sequences (:mod:`~exporter.kvmath.capacity`).
"""
