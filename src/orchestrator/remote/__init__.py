"""SSH sessions, fan-out over nodes, and the node application's delivery. paramiko lives here only.

paramiko imports two things that cost every command a quarter of its start-up: invoke, for `Match exec` of an SSH
configuration alone, and importlib.metadata, for its own version. Here it is imported without them; `ssh_config` brings
invoke in when a configuration has such a line.
"""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType


def _version(name: str) -> str:
    """Of an installed package, by its folder's name (PyPA, recording installed projects); else by the library."""
    spec = find_spec(name)
    if spec is not None and spec.origin is not None:
        for folder in Path(spec.origin).parents[1].glob(f"{name}-*.dist-info"):
            return folder.name[len(name) + 1 : -len(".dist-info")]
    sys.modules.pop("importlib.metadata", None)
    from importlib import metadata

    return metadata.version(name)


def _import_paramiko() -> None:
    """None is how Python spells "not to be had"."""
    stand_in = ModuleType("importlib.metadata")
    vars(stand_in)["version"] = _version
    ours: dict[str, ModuleType | None] = {"invoke": None, "importlib.metadata": stand_in}
    ours = {name: module for name, module in ours.items() if name not in sys.modules}
    sys.modules.update(ours)  # type: ignore[arg-type]
    try:
        import paramiko  # noqa: F401
    finally:
        for name, module in ours.items():
            if sys.modules.get(name, stand_in) is module:
                del sys.modules[name]


if "paramiko" not in sys.modules:
    _import_paramiko()
