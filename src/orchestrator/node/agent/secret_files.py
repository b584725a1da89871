"""A gang's secrets on a node: files for the engine's user, and the agent's own secrets. All have mode 0600.

They belong to the gang, not to one run, so that somebody who does not have them can start the same plan again.
"""

from __future__ import annotations

from orchestrator.node import files
from orchestrator.protocol.run_files import KeptSecrets
from orchestrator.protocol.staging import Replaced, SecretFile, Secrets

FILE = "secrets.json"
BEFORE_FILE = "secrets.before.json"
"""Secrets that the newest plan replaced, for a rollback to the plan before it."""


def keep(gang_dir: str, asked: Secrets, owner: tuple[int, int] | None, *, before: str = "") -> None:
    """Write the secrets of a staging request; the ones that they replace are kept as those of the run `before`."""
    replaced = files.read_as(Replaced, f"{gang_dir}/{BEFORE_FILE}")
    if asked.of_run is not None:
        if replaced is not None and replaced.run == asked.of_run:
            _write(gang_dir, replaced.secrets, owner)
            files.remove(f"{gang_dir}/{BEFORE_FILE}")
        return
    had = _now(gang_dir)
    if before and had != asked:
        files.write_json(f"{gang_dir}/{BEFORE_FILE}", Replaced(run=before, secrets=had).as_json())
    _write(gang_dir, asked, owner)


def _now(gang_dir: str) -> Secrets:
    """The current secrets, in the form of a request."""
    known = kept(gang_dir)
    names = [files.plain(name, "secret file") for name in known.files]
    held = tuple(SecretFile(name=name, text=files.read_text(f"{gang_dir}/{name}") or "") for name in names)
    return Secrets(files=held, redact=known.redact, authorization=known.authorization)


def _write(gang_dir: str, asked: Secrets, owner: tuple[int, int] | None) -> None:
    wanted = {files.plain(file.name, "secret file"): file.text for file in asked.files}
    for name in kept(gang_dir).files:
        if name not in wanted:
            files.remove(f"{gang_dir}/{files.plain(name, 'secret file')}")
    for name, text in wanted.items():
        files.write(f"{gang_dir}/{name}", text, owner=owner)
    if asked == Secrets():
        files.remove(f"{gang_dir}/{FILE}")
        return
    known = KeptSecrets(redact=asked.redact, authorization=asked.authorization, files=tuple(sorted(wanted)))
    files.write_json(f"{gang_dir}/{FILE}", known.as_json())


def kept(gang_dir: str) -> KeptSecrets:
    """A gang's secrets; empty if none were kept."""
    return files.read_as(KeptSecrets, f"{gang_dir}/{FILE}") or KeptSecrets()


def path(gang_dir: str, name: str) -> str:
    """Path of one of the gang's secret files; '' for none."""
    return f"{gang_dir}/{files.plain(name, 'secret file')}" if name else ""
