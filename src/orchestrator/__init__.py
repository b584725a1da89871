"""l40s-deploy: one very large model on PCIe GPU servers, started, watched and restarted as one gang."""

import sys
from _thread import RLock
from types import ModuleType

__version__ = "0.1.0"

_loading = RLock()


class _Inspect(ModuleType):
    """The library's `inspect`, which is loaded when one of its names is asked for.

    `dataclasses` imports it, uses it for classes without a docstring, and since Python 3.12 for annotations. It brings
    `ast`, `dis` and `tokenize`: a third of what a process costs that starts on a node.
    """

    def __init__(self) -> None:
        super().__init__("inspect")

    def __getattr__(self, name: str) -> object:
        self._load()
        return ModuleType.__getattribute__(self, name)

    def get_annotations(self, of: object, **options: object) -> object:
        """Of a class, without the library, which replaces this once it is loaded."""
        if isinstance(of, type) and not options and sys.version_info < (3, 14):  # which evaluates them when asked
            return dict(vars(of).get("__annotations__", {}))
        self._load()
        return vars(self)["get_annotations"](of, **options)

    def _load(self) -> None:
        from importlib.machinery import PathFinder

        with _loading:
            if self.__spec__ is None:
                self.__spec__ = PathFinder.find_spec(self.__name__)
                assert self.__spec__ is not None and self.__spec__.loader is not None
                self.__spec__.loader.exec_module(self)


sys.modules.setdefault("inspect", _Inspect())
