"""Where templates/, playbooks/, examples/ and the built-in inventory/ are: inside the wheel, or in a checkout."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

_PACKAGE = Path(__file__).resolve().parents[1]


def data_dir(kind: Literal["templates", "playbooks", "inventory", "examples"]) -> Path:
    """The folder of shipped data files; the wheel carries them in `_data`, a checkout at its top level."""
    shipped = _PACKAGE / "_data" / kind
    return shipped if shipped.is_dir() else _PACKAGE.parents[1] / kind
