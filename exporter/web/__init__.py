"""The web surface."""

from exporter.web.app import app
from exporter.web.run import serve

__all__ = ["app", "serve"]
