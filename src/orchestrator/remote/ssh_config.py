"""~/.ssh/config and /etc/ssh/ssh_config: the options for one host, with `Include` followed."""

from __future__ import annotations

import glob
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import paramiko

from orchestrator.model.errors import InputError

SYSTEM_FILE = "/etc/ssh/ssh_config"
_DEEPEST_INCLUDE = 16  # as OpenSSH: READCONF_MAX_DEPTH in readconf.c


def user_file() -> str:
    """The config file that OpenSSH reads for this user."""
    return str(Path("~/.ssh/config").expanduser())


def look_up(host: str, file: str | None, said: tuple[tuple[str, str], ...] = ()) -> Mapping[str, Any]:
    """Options for a host by lower-case name; identityfile is a list.

    file: read in place of the user's and the system's file, as `ssh -F` has it ('none' reads nothing)
    said: options that are set already; they win, and `%p` or `%r` in the files mean their values
    Raises InputError for a file that cannot be parsed, and for a named one that cannot be read.
    """
    if file is not None and file.lower() == "none":
        return {}
    files = (file,) if file is not None else (user_file(), SYSTEM_FILE)
    if file is not None and not Path(file).is_file():
        raise InputError("is not a readable file", where=file, fix="correct the -F argument of ansible_ssh_common_args")
    try:
        return dict(_parsed(files, said).lookup(host))
    except (paramiko.SSHException, ValueError, KeyError) as error:
        raise InputError(
            f"cannot be followed for the host {host!r}: {error}",
            where=" and ".join(files),
            fix=f"run `ssh -G {host}`, which reads the same files",
        ) from None


@lru_cache(maxsize=64)
def _parsed(files: tuple[str, ...], said: tuple[tuple[str, str], ...]) -> paramiko.SSHConfig:
    first = "\n".join(f"{name} {value}" for name, value in said)
    text = "\nHost *\n".join((first, *(_text(Path(file), Path(file).parent, 0) for file in files)))
    try:
        return paramiko.SSHConfig.from_text(text)
    except (paramiko.SSHException, ValueError) as error:
        raise InputError(
            f"is not a valid ssh_config: {error}", where=" and ".join(files), fix="run `ssh -G HOST` to see the line"
        ) from None


def _text(file: Path, home: Path, depth: int) -> str:
    """A file's text with included files in place. After an include the enclosing Host or Match goes on.

    home: folder that relative includes are below: ~/.ssh for the user's file, /etc/ssh for the system's
    """
    if depth > _DEEPEST_INCLUDE:
        raise InputError("includes itself", where=str(file), fix="remove the Include line that closes the loop")
    try:
        text = file.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return ""
    section = ""
    parts = []
    for line in text.splitlines():
        words = line.strip().replace("=", " ", 1).split()
        keyword = words[0].lower() if words else ""
        if keyword in ("host", "match"):
            section = line
        if keyword != "include":
            parts.append(line)
            continue
        paths = [path for pattern in words[1:] for path in _included(pattern, home, file)]
        included = [_text(Path(path), home, depth + 1) for path in paths]
        _refuse_sections_below(section, included, file)
        parts.extend([*included, section or "Host *"])
    return "\n".join(parts)


def _included(pattern: str, home: Path, file: Path) -> list[str]:
    try:
        return sorted(glob.glob(str(home / Path(pattern.strip('"')).expanduser())))  # noqa: PTH207 - absolute too
    except (RuntimeError, ValueError, OSError) as wrong:
        raise InputError(
            f"`Include {pattern}` can't be followed: {wrong}",
            where=str(file),
            fix="use a user who exists on this machine",
        ) from None


def _refuse_sections_below(section: str, included: list[str], file: Path) -> None:
    """Inside a Host section, an included Host section would have to match both: we say so and stop."""
    if not section or section.split()[1:] == ["*"]:
        return
    for line in "\n".join(included).splitlines():
        if line.strip().lower().startswith(("host ", "match ")):
            raise InputError(
                f"includes `{line.strip()}` below `{section.strip()}`, which is not supported",
                where=str(file),
                fix="move the Include line above the first Host line",
            )
