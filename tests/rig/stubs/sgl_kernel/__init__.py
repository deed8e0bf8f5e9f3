"""Stands where SGLang's compiled kernels would be, so that SGLang can be imported without them.

SGLang 0.5.23 imports names of this package all over (`layers/moe/topk.py`, `layers/attention/...`) before it
knows which it needs. On a CPU with the torch_native backend a plain Llama needs none. Any name and any
submodule is there; using one as a kernel says so.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any, NoReturn


class MissingKernelError(RuntimeError):
    """A kernel of the stub was called."""


class MissingKernel:
    """What every name of the package stands for: it can be imported and asked for parts, not called."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> MissingKernel:
        if name.startswith("__"):  # inspection, copying, pickling: the answer is that there is none
            raise AttributeError(name)
        return MissingKernel(f"{self._name}.{name}")

    def __call__(self, *arguments: Any, **named: Any) -> NoReturn:
        raise MissingKernelError(
            f"{self._name} was called, but this is an import-only stub of sgl_kernel: "
            "the model, backend or flag needs SGLang's compiled kernels"
        )


def _names_of(module: str) -> Callable[[str], MissingKernel]:
    def name_in_module(name: str) -> MissingKernel:
        if name.startswith("__"):
            raise AttributeError(name)
        return MissingKernel(f"{module}.{name}")

    return name_in_module


class _Submodules(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Finds every submodule of this package, at any depth."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if not fullname.startswith(__name__ + "."):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        module.__dict__["__getattr__"] = _names_of(module.__name__)


__getattr__ = _names_of(__name__)
sys.meta_path.append(_Submodules())
