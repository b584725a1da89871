"""A gang's secrets on a node: files for the engine's user, and what the agent itself must know. All of mode 0600.

They belong to the gang and not to one run, so that the same plan can be started again by somebody who does not
have them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.node import files

FILE = "secrets.json"
BEFORE_FILE = "secrets.before.json"
"""What the newest plan replaced, so that one can go back to the plan before it."""


@dataclass(frozen=True)
class Secrets:
    """redact: taken out of the engine's log; authorization: the header that the engine's HTTP asks for."""

    redact: tuple[str, ...] = ()
    authorization: str = ""


def keep(gang_dir: str, request: Mapping[str, Any], owner: tuple[int, int] | None, *, before: str = "") -> None:
    """Write what a staging request brings: {"files": [{"name", "text"}], "redact": [...], "authorization"}, in
    place of what was there, which is kept as that of the run `before`. A request without the key `secrets` leaves
    all as it is; {"of_run": RUN} takes back what that run had, where a later plan replaced it."""
    if "secrets" not in request:
        return
    asked = request["secrets"] or {}
    replaced = files.read_json(f"{gang_dir}/{BEFORE_FILE}")
    if "of_run" in asked:
        if replaced.get("run") == asked["of_run"]:
            _write(gang_dir, replaced.get("secrets") or {}, owner)
            _remove(f"{gang_dir}/{BEFORE_FILE}")
        return
    had = _now(gang_dir)
    if before and had != asked:
        files.write_json(f"{gang_dir}/{BEFORE_FILE}", {"run": before, "secrets": had})
    _write(gang_dir, asked, owner)


def _now(gang_dir: str) -> dict[str, Any]:
    """What is kept, as a request would bring it."""
    known = files.read_json(f"{gang_dir}/{FILE}")
    names = [files.plain(name, "secret file") for name in known.get("files") or ()]
    told: dict[str, Any] = {key: known[key] for key in ("redact", "authorization") if key in known}
    if not names:
        return told
    return {"files": [{"name": name, "text": files.read_text(f"{gang_dir}/{name}") or ""} for name in names], **told}


def _write(gang_dir: str, asked: Mapping[str, Any], owner: tuple[int, int] | None) -> None:
    wanted = {files.plain(file["name"], "secret file"): str(file["text"]) for file in asked.get("files") or ()}
    for name in files.read_json(f"{gang_dir}/{FILE}").get("files") or ():
        if name not in wanted:
            _remove(f"{gang_dir}/{files.plain(name, 'secret file')}")
    for name, text in wanted.items():
        files.write(f"{gang_dir}/{name}", text, owner=owner)
    if not asked:
        _remove(f"{gang_dir}/{FILE}")
        return
    known = {key: asked[key] for key in ("redact", "authorization") if key in asked}
    files.write_json(f"{gang_dir}/{FILE}", {**known, "files": sorted(wanted)})


def kept(gang_dir: str) -> Secrets:
    """A gang's secrets; none where nothing was kept."""
    known = files.read_json(f"{gang_dir}/{FILE}")
    return Secrets(
        redact=tuple(str(word) for word in known.get("redact") or ()),
        authorization=str(known.get("authorization") or ""),
    )


def _remove(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
