"""Systemd units that keep a command running on this machine: the guard, the exporter, doctor's watch."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from orchestrator.protocol.errors import Exit, InputError
from orchestrator.records.documents import write_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """A command that keeps running. verb: its first word; options: those that keep it running; kind: one word.

    stays_ended: an exit status after which it is not started again
    """

    verb: str
    kind: str
    options: tuple[str, ...] = ()
    stays_ended: int | None = None

    @property
    def name(self) -> str:
        """The unit's usual name."""
        return f"l40s-deploy-{self.kind}.service"


GUARD = Unit(verb="guard", kind="guard", stays_ended=int(Exit.GANG_FAILED))
"""A guard that has given up stays stopped until an operator starts it: a new one would not know its restarts."""
EXPORTER = Unit(verb="exporter", kind="exporter")
DOCTOR = Unit(verb="doctor", kind="doctor")


def unit_folder() -> Path:
    """The system's for root, else the user's own."""
    if os.geteuid() == 0:
        return Path("/etc/systemd/system")
    return Path(os.environ.get("XDG_CONFIG_HOME") or Path("~/.config").expanduser()) / "systemd" / "user"


def unit_text(unit: Unit, inventory: Path, options: Sequence[str]) -> str:
    """options: the verb's words after the inventory. A restart of the unit changes nothing at the gangs
    (systemd.service has the settings)."""
    words = [sys.executable, "-m", "orchestrator.cli.main", unit.verb, "--inventory", str(inventory), *options]
    stays = "" if unit.stays_ended is None else f"RestartPreventExitStatus={unit.stays_ended}\n"
    target = "multi-user.target" if os.geteuid() == 0 else "default.target"
    return (
        f"# Written by `l40s-deploy {unit.verb} --install`.\n"
        f"[Unit]\n"
        f"{_description(unit, inventory)}\n"
        f"Wants=network-online.target\n"
        f"After=network-online.target\n"
        f"\n[Service]\n"
        f"ExecStart={' '.join(_quoted(word) for word in words)}\n"
        f"WorkingDirectory={_plain(str(Path.cwd())).replace('%', '%%')}\n"
        f"SuccessExitStatus={int(Exit.INTERRUPTED)}\n"
        f"Restart=on-failure\n"
        f"{stays}"
        f"RestartSec=10\n"
        f"\n[Install]\n"
        f"WantedBy={target}\n"
    )


def install(unit: Unit, inventory: Path, options: Sequence[str], folder: Path | None = None) -> Path:
    """Write the unit file, complete or not at all; it is neither enabled nor started. Where the usual name is that of
    another inventory, it gets one of its own.

    Raises InputError where it can't be written, or where that name is another's too.
    """
    folder, description = folder or unit_folder(), _description(unit, inventory.resolve())
    own = f"l40s-deploy-{unit.kind}-{inventory.resolve().parent.name or 'two'}.service"
    path = next((folder / name for name in (unit.name, own) if _is_free(folder / name, description)), None)
    if path is None:
        raise InputError(
            f"already is the unit of something else; this one is of {inventory.resolve()}",
            where=str(folder / own),
            fix=f"remove {folder / own} to replace it",
        )
    text = unit_text(unit, inventory.resolve(), options)
    write_whole(path, text, folders=0o755, fix="run as root, or as a user with a home directory")
    return path


def _is_free(path: Path, description: str) -> bool:
    """There is none, or it is this very one."""
    try:
        return description in path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return True


def _description(unit: Unit, inventory: Path) -> str:
    return f"Description=l40s-deploy {unit.kind} of {_plain(str(inventory))}"


def _quoted(word: str) -> str:
    """As systemd reads words: quotes and backslashes escaped, % and $ doubled (systemd.service, Command lines)."""
    escaped = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{_plain(escaped)}"'


def _plain(text: str) -> str:
    """A line break would begin another setting."""
    return "".join(char if char.isprintable() else "?" for char in text)


def start_words(path: Path) -> tuple[str, ...]:
    """What to tell an operator to run once the unit is written: a command a line, short enough that none is broken."""
    own = "" if str(path).startswith("/etc/") else " --user"
    begin = (
        f"wrote {path}; start it:",
        f"  systemctl{own} daemon-reload",
        f"  systemctl{own} enable --now {path.name}",
    )
    return (*begin, "keep it running after logout and reboot: loginctl enable-linger") if own else begin
