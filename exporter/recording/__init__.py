"""Recorded engine runs: recording one, reading the file, playing it.

A recording holds what the exporter reads of an engine and nothing else
(:mod:`exporter.recording.redaction`); ``format`` says how it lies on disk.
"""

from exporter.recording.engine import engine_app
from exporter.recording.format import Frame, Header, Recording, RecordingError
from exporter.recording.reader import read
from exporter.recording.recorder import Limits, NothingRecordedError, Summary, capture, record
from exporter.recording.replay import Replayed, replayed

__all__ = [
    "Frame",
    "Header",
    "Limits",
    "NothingRecordedError",
    "Recording",
    "RecordingError",
    "Replayed",
    "Summary",
    "capture",
    "engine_app",
    "read",
    "record",
    "replayed",
]
