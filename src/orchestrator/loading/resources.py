"""Where templates/, examples/, playbooks/ and inventory/ are: in the wheel, in a checkout, beside an inventory."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import yaml

_PACKAGE = Path(__file__).resolve().parents[1]


def data_dir(kind: Literal["templates", "playbooks", "inventory", "examples"]) -> Path:
    """The folder of shipped data files; the wheel carries them in `_data`, a checkout at its top level."""
    shipped = _PACKAGE / "_data" / kind
    return shipped if shipped.is_dir() else _PACKAGE.parents[1] / kind


def read_regular(path: Path) -> tuple[int, bytes]:
    """(mode, content). Raises OSError for what is no regular file: a pipe would be waited for, a device has no end."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        mode = os.fstat(file.fileno()).st_mode
        if not stat.S_ISREG(mode):
            raise OSError(errno.ENXIO, "not a regular file")
        return mode, file.read()


def template(name: str) -> str:
    """The template's text, for example of launch.sh.j2."""
    return (data_dir("templates") / name).read_text("utf-8")


def templates(*names: str) -> str:
    """Several, one after the other: what the earlier ones define, the later ones use."""
    return "".join(map(template, names))


def role_defaults(role: str) -> dict[str, Any]:
    """The variables of `playbooks/roles/ROLE/defaults/main.yml`, with Ansible's expressions as they stand there."""
    text = (data_dir("playbooks") / "roles" / role / "defaults" / "main.yml").read_text("utf-8")
    defaults: dict[str, Any] = yaml.safe_load(text)
    return defaults


Kind = Literal["models", "stacks", "tuned"]

_beside: list[Path] = []
"""The folder of the inventory that this process reads; empty until it has read one."""
_by_path: list[Path] = []
"""Stack files that this inventory names by their path: what runs is known by the stack's name alone."""


def remember(inventory: Path) -> None:
    """Count the folder of this inventory among those that are searched, before all others. Until it has been read, what
    an inventory in that folder named by a path is found as before: a guard reads it again while it plans."""
    folder = inventory.absolute().parent
    if _beside != [folder]:
        _by_path.clear()
    _beside[:] = [folder]


def remember_stacks(names: Iterable[str]) -> None:
    """Count the folders of those that are a path to a .yml among those that are searched for stacks."""
    _by_path[:] = sorted({Path(name).absolute() for name in names if name.endswith((".yml", ".yaml"))})


def stacks_by_path() -> tuple[Path, ...]:
    """The files of stacks that the inventory names by a path."""
    return tuple(_by_path)


def folders(kind: Kind) -> tuple[Path, ...]:
    """Every folder that may hold NAME.yml, the first that has it wins: DIR/stacks and DIR/inventory/stacks of the
    inventory's DIR, where a stack's path leads that the inventory names, inventory/stacks of the working directory,
    the shipped one. The same for models, but for paths."""
    beside = [place for folder in _beside for place in (folder / kind, folder / "inventory" / kind)]
    if kind == "stacks":
        beside += dict.fromkeys(path.parent for path in _by_path)
    return (*beside, Path("inventory") / kind, data_dir("inventory") / kind)


def new_file(kind: Kind, name: str) -> Path:
    """Where a file that is made for the operator belongs: beside the inventory, else in the working directory."""
    return (_beside[0] if _beside else Path("inventory")) / kind / f"{name}.yml"
