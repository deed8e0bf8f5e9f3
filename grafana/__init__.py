"""Grafana boards for the KV cache: as code, the JSON made from it, and how to bring it into a Grafana."""
