"""``kvcache-exporter check URL``: an engine examined by the one readout that ``serve`` would make of it."""
