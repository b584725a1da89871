"""The systemd unit that keeps a guard running on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from orchestrator.model.errors import GangFailed, InputError

NAME = "l40s-deploy-guard.service"


def unit_folder() -> Path:
    """The system's for root, else the user's own."""
    if os.geteuid() == 0:
        return Path("/etc/systemd/system")
    base = os.environ.get("XDG_CONFIG_HOME") or str(Path("~/.config").expanduser())
    return Path(base) / "systemd" / "user"


def unit_text(inventory: Path, options: Sequence[str]) -> str:
    """options: words of `guard` after the inventory. A restart of the unit changes nothing at the gangs.

    A guard that has given up (its exit status) stays ended until an operator starts it: a new one would know of none
    of its restarts (systemd.service, RestartPreventExitStatus=).
    """
    words = [sys.executable, "-m", "orchestrator.cli.main", "guard", "--inventory", str(inventory), *options]
    target = "multi-user.target" if os.geteuid() == 0 else "default.target"
    return (
        f"# Written by `l40s-deploy guard --install`.\n"
        f"[Unit]\n"
        f"Description=l40s-deploy guard of {_plain(str(inventory))}\n"
        f"Wants=network-online.target\n"
        f"After=network-online.target\n"
        f"\n[Service]\n"
        f"ExecStart={' '.join(_quoted(word) for word in words)}\n"
        f"Restart=on-failure\n"
        f"RestartPreventExitStatus={GangFailed.exit_code}\n"
        f"RestartSec=10\n"
        f"\n[Install]\n"
        f"WantedBy={target}\n"
    )


def install(inventory: Path, options: Sequence[str], folder: Path | None = None) -> Path:
    """Write the unit file, whole or not at all; it is neither enabled nor started. Raises InputError."""
    path = (folder or unit_folder()) / NAME
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(unit_text(inventory.resolve(), options), encoding="utf-8")
        draft.chmod(0o644)
        draft.replace(path)
    except OSError as error:
        raise InputError(
            f"can't be written: {error.strerror or error}", where=str(path), fix="run as root, or as a user with a home"
        ) from None
    return path


def _quoted(word: str) -> str:
    """As systemd reads words: quotes and backslashes escaped, % and $ doubled (systemd.service, Command lines)."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{_plain(escaped)}"'


def _plain(text: str) -> str:
    """A line break would begin another setting."""
    return "".join(char if char.isprintable() else "?" for char in text)
