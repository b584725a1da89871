"""The systemd unit that keeps a guard running on this machine."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from orchestrator.model.errors import InputError
from orchestrator.model.exit_codes import Exit

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
        f"{_description(inventory)}\n"
        f"Wants=network-online.target\n"
        f"After=network-online.target\n"
        f"\n[Service]\n"
        f"ExecStart={' '.join(_quoted(word) for word in words)}\n"
        f"WorkingDirectory={_plain(str(Path.cwd())).replace('%', '%%')}\n"
        f"SuccessExitStatus={int(Exit.INTERRUPTED)}\n"
        f"Restart=on-failure\n"
        f"RestartPreventExitStatus={int(Exit.GANG_FAILED)}\n"
        f"RestartSec=10\n"
        f"\n[Install]\n"
        f"WantedBy={target}\n"
    )


def install(inventory: Path, options: Sequence[str], folder: Path | None = None, *, name: str = NAME) -> Path:
    """Write the unit file, complete or not at all; it is neither enabled nor started.

    Raises InputError where it can't be written, or where it is the guard of another inventory.
    """
    path = (folder or unit_folder()) / (name if name.endswith(".service") else f"{name}.service")
    _refuse_another(path, inventory.resolve())
    draft = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        draft.write_text(unit_text(inventory.resolve(), options), encoding="utf-8")
        draft.chmod(0o644)
        draft.replace(path)
    except OSError as error:
        raise InputError(
            f"can't be written: {error.strerror or error}",
            where=str(path),
            fix="run as root, or as a user with a home directory",
        ) from None
    return path


def _refuse_another(path: Path, inventory: Path) -> None:
    try:
        there = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return
    mine = _description(inventory)
    if mine not in there:
        described = [line.rpartition(" guard of ")[2] for line in there if line.startswith("Description=")]
        own = f"l40s-deploy-guard-{inventory.parent.name or 'two'}.service"
        raise InputError(
            f"already is the guard of {(described or ['something else'])[0]}; this one is of {inventory}",
            where=str(path),
            fix=f"use another unit name: --unit {own}; or remove {path} to replace it",
        )


def _description(inventory: Path) -> str:
    return f"Description=l40s-deploy guard of {_plain(str(inventory))}"


def _quoted(word: str) -> str:
    """As systemd reads words: quotes and backslashes escaped, % and $ doubled (systemd.service, Command lines)."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{_plain(escaped)}"'


def _plain(text: str) -> str:
    """A line break would begin another setting."""
    return "".join(char if char.isprintable() else "?" for char in text)
