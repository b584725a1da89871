"""Stands in for sglang-kernel, which exists as a CUDA build only, where SGLang runs on CPU.

SGLang imports names from this package when its modules load, also on CPU, and calls them on a GPU only. So every
name can be imported here, and calling one says that something took a GPU's path.
"""

from __future__ import annotations

from typing import NoReturn

__version__ = "0.0.0+cpu"
__path__: list[str] = []  # a package without submodules: importing one fails as it does where none is installed


class _Missing:
    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *_arguments: object, **_named: object) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{self._name} is a CUDA kernel; this environment runs on CPU")


def __getattr__(name: str) -> _Missing:
    if name.startswith("__"):
        raise AttributeError(name)
    return _Missing(name)
