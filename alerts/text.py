"""Texts of alerts: where, how much, and which threshold holds there, as Go templates.

Prometheus, Mimir, Thanos and vmalert know all functions used here.
"""

from __future__ import annotations

from typing import Final

OVERRIDE: Final = "kvcache:alert_threshold:override"
# Labels that tell one exporter's engine from another's; a series lacks those its scrape does not add.
POD: Final = ("cluster", "namespace", "pod", "target")

WHERE: Final = (
    "{{ with $labels.model_name }}{{ . }}{{ with $labels.engine }} (rank {{ . }}){{ end }} on {{ end }}"
    "{{ $labels.target }}"
    "{{ with $labels.pod }}, pod {{ . }}{{ end }}{{ with $labels.cluster }}, cluster {{ . }}{{ end }}"
)

_AS: Final = {
    "percent": "humanizePercentage",
    "duration": "humanizeDuration",
    "times": 'printf "%.2f times"',
    "number": 'printf "%.0f"',
}


def told(value: float, unit: str) -> str:
    """A number of the thresholds as the text has it.  Raises KeyError for an unknown unit."""
    return {
        "percent": f"{value * 100:g}%",
        "duration": f"{value / 60:g}m 0s",
        "times": f"{value:.2f} times",
        "number": f"{value:g}",
    }[unit]


def value(unit: str) -> str:
    """The alert's own value."""
    return f"{{{{ $value | {_AS[unit]} }}}}"


def limit(alert: str, threshold: float, unit: str, *, override: bool) -> str:
    """The threshold in force: the pod's own where the user gave one, else the default."""
    default = told(threshold, unit)
    if not override:
        return default
    selector = ",".join(f"{label}=%q" for label in POD)
    # A label that is not there is an empty text in Prometheus, in an old vmalert (1.79) it is nil.
    values = " ".join(f'(or $labels.{label} "")' for label in POD)
    query = f"printf \"max({OVERRIDE}{{alert='{alert}',{selector}}})\" {values} | query"
    return (
        f"{{{{ with {query} }}}}{{{{ . | first | value | {_AS[unit]} }}}}{{{{ else }}}}{default}{{{{ end }}}}"
    )
