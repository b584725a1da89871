"""Verb `prerequisites`: what an engine will find here beside the hardware: its checkpoint's config.json, its
virtual environment, the C library.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

from orchestrator.node import files
from orchestrator.node.requests import request_of
from orchestrator.protocol.looks import PrerequisitesAnswer, PrerequisitesRequest

CONFIG = "config.json"
MOST_BYTES = 1 << 20


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Reads two small files; nothing is executed."""
    asked = request_of(PrerequisitesRequest, request)
    config, wrong = _text(Path(asked.model_path, CONFIG))
    venv = Path(asked.venv)
    return PrerequisitesAnswer(
        config=config,
        config_error=wrong,
        engine=(venv / "bin" / "python3").exists(),
        engine_python=_python(venv),
        vocabularies=(venv / "vocabularies").is_dir(),
        glibc=_glibc(),
    ).as_json()


def _text(path: Path) -> tuple[str | None, str]:
    try:
        with open(files.opened(path), "rb") as file:
            data = file.read(MOST_BYTES + 1)
    except OSError as error:
        return None, errno.errorcode.get(error.errno or 0, "EIO")
    if len(data) > MOST_BYTES:
        return None, "EFBIG"
    return data.decode("utf-8", "replace"), ""


def _python(venv: Path) -> str:
    """The version that `venv` or `virtualenv` wrote down when it made the environment."""
    text, _ = _text(venv / "pyvenv.cfg")
    for line in (text or "").splitlines():
        name, _, value = line.partition("=")
        if name.strip() in ("version", "version_info"):
            return value.strip()
    return ""


def _glibc() -> str:
    try:
        name, _, version = (os.confstr("CS_GNU_LIBC_VERSION") or "").partition(" ")
    except (OSError, ValueError):
        return ""
    return version if name == "glibc" else ""
