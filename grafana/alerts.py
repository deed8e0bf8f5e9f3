"""Where an alert is seen: the board that its annotation links to, and the panel on it."""

from __future__ import annotations

from typing import Final

from grafana import fleet, health, latency, pressure

# Alert -> (uid of the board, title of the panel).
PANELS: Final = {
    "KVCacheUsageHigh": (pressure.UID, "KV cache usage"),
    "KVCacheUsageHighP95": (pressure.UID, "Share of the last hour above 85%"),
    "KVCacheWillFill": (pressure.UID, "Time until full"),
    "KVCachePreemptions": (pressure.UID, "Preempted share of requests"),
    "KVCachePrefixHitLow": (pressure.UID, "Prefix hit ratio against its objective"),
    "KVCacheContextHog": (pressure.UID, "Long contexts: share of the cache, share of requests"),
    "KVCacheEngineStuck": (pressure.UID, "Running and waiting"),
    "KVCacheITLRegression": (latency.UID, "ITL over its baseline"),
    "KVCacheLongContextSlow": (latency.UID, "Long tiers over the everyday one"),
    "KVCacheCapacityDropped": (fleet.UID, "Pool against its best of the last hours"),
    "KVCacheArithmeticMismatch": (fleet.UID, "Our bytes over the engine's"),
    "KVCacheMaxModelLenTooLarge": (fleet.UID, "Longest sequence, share of the pool"),
    "KVCacheEngineDown": (health.UID, "Failed polls by reason"),
    "KVCacheExporterDown": (health.UID, "Exporters scraped"),
    "KVCacheInputMissing": (health.UID, "Missing series by reason"),
}
