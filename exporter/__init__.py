"""KV-cache exporter for vLLM and SGLang: what the engine's usage ratio is a ratio *of*."""

__version__ = "0.1.0"
