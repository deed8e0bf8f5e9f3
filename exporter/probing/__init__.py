"""``/probe``: engines that Prometheus discovers, fetched when it asks."""
