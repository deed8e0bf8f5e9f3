"""Alert rules for the KV cache: their source, and what makes the rule files from it."""
