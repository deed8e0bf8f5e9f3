"""The exporter itself."""

from __future__ import annotations

from exporter.catalogue.metric import Group, Metric, metric


def own(kind: str, name: str, extra: tuple[str, ...], help_text: str) -> Metric:
    """An entry about the exporter, by target."""
    return metric(kind, name, Group.OURSELVES, extra, help_text, "exporter", rank=False)


BUILD_INFO = own("gauge", "exporter_build_info", ("version",), "1; the exporter's version.")
FETCH_SECONDS = own("gauge", "exporter_fetch_duration_seconds", (), "Duration of the last fetch of the page.")
FETCHES = own("counter", "exporter_fetches_total", (), "Polls of the engine's page.")
ERRORS = own("counter", "exporter_errors_total", ("reason",), "Failed polls by reason.")
LAST_SUCCESS = own(
    "gauge", "exporter_last_success_timestamp_seconds", (), "When the page was last read successfully."
)
READOUT_AGE = own("gauge", "exporter_readout_age_seconds", (), "Age of the figures served.")
POLL_INTERVAL = own(
    "gauge",
    "exporter_poll_interval_seconds",
    (),
    "Interval in force, stretched where the engine renders slowly.",
)
DROPPED = own(
    "counter",
    "exporter_dropped_samples_total",
    ("reason",),
    "Samples on the engine's page that were unusable.",
)
ENGINE_RESTARTS = own(
    "counter", "exporter_engine_restarts_total", (), "Times that the engine's counters went back (a restart)."
)
CONFIG_LOADED = own(
    "gauge", "exporter_model_config_loaded", (), "1 where the model's config.json was found and understood."
)
CONFIG_RELOAD_SUCCESSFUL = own(
    "gauge",
    "exporter_config_last_reload_successful",
    (),
    "1 unless the last reload of the settings failed and the old ones stayed in force.",
)
CONFIG_RELOAD_TIMESTAMP = own(
    "gauge",
    "exporter_config_last_reload_success_timestamp_seconds",
    (),
    "When the settings in force were read.",
)
WEB_CONFIG_SUCCESSFUL = own(
    "gauge",
    "exporter_web_config_last_reload_successful",
    (),
    "1 unless --web-config-file or a certificate changed and could not be read, so that the old ones stay.",
)
PROBE_REQUESTS = own(
    "counter", "exporter_probe_requests_total", ("outcome",), "Requests to /probe, by how they ended."
)
