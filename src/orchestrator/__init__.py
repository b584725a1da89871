"""l40s-deploy: one very large model on PCIe GPU servers, started, watched and restarted as one gang."""

import sys
from _thread import RLock
from types import ModuleType

__version__ = "0.1.0"

_loading = RLock()


class _AtFirstUse(ModuleType):
    """A module of the standard library that is loaded when one of its names is asked for."""

    def __getattr__(self, name: str) -> object:
        with _loading:
            if self.__spec__ is None:
                self._load()
        return ModuleType.__getattribute__(self, name)

    def _load(self) -> None:
        from importlib.machinery import PathFinder

        self.__spec__ = PathFinder.find_spec(self.__name__)
        assert self.__spec__ is not None and self.__spec__.loader is not None
        self.__spec__.loader.exec_module(self)


# `dataclasses` imports it, and uses it for classes without a docstring only. It brings `ast`, `dis` and `tokenize`:
# a third of what a process costs that starts on a node.
sys.modules.setdefault("inspect", _AtFirstUse("inspect"))
