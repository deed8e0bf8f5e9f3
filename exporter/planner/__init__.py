"""``kvcache-exporter plan``: the arithmetic of ``exporter.kvmath`` asked before anything is deployed."""
