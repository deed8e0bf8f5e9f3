"""The GPU's name through NVML, where the optional extra is there."""

from __future__ import annotations

import sys
from types import SimpleNamespace

import pytest

from exporter.requests.floor import gpu_bytes_per_second, nvml_gpu_name


class NVMLError(Exception):
    """What the library raises without a driver."""


def library(name: object, fails: bool = False) -> SimpleNamespace:
    def start() -> None:
        if fails:
            raise NVMLError

    return SimpleNamespace(
        NVMLError=NVMLError,
        nvmlInit=start,
        nvmlShutdown=lambda: None,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetName=lambda handle: name,
    )


@pytest.mark.parametrize("name", ["NVIDIA H100 80GB HBM3", b"NVIDIA H100 80GB HBM3"])
def test_the_name_leads_to_the_bandwidth(monkeypatch: pytest.MonkeyPatch, name: object) -> None:
    """As the driver spells it; old bindings answer in bytes. H100 SXM: 3.35 TB/s."""
    monkeypatch.setitem(sys.modules, "pynvml", library(name))
    assert gpu_bytes_per_second(nvml_gpu_name()) == 3.35e12


def test_without_a_driver_there_is_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra may be installed on a machine without a GPU."""
    monkeypatch.setitem(sys.modules, "pynvml", library("x", fails=True))
    assert nvml_gpu_name() is None


def test_without_the_extra_there_is_no_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is optional."""
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert nvml_gpu_name() is None
