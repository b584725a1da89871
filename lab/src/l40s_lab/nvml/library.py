"""Compiles the lab's libraries once, mainly libnvidia-ml.so.1, and caches them by the digest of their source."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

from l40s_lab.engine.environment import cache_root
from orchestrator.protocol.errors import NodeError

NAME = "libnvidia-ml.so.1"
_SOURCE = Path(__file__).with_name("nvml.c")


def build() -> Path:
    """The compiled library; raises NodeError if there is no compiler."""
    return compiled(_SOURCE, NAME)


def compiled(source: Path, name: str) -> Path:
    """One C file as a shared library of this name, cached by digest; raises NodeError if there is no compiler."""
    digest = hashlib.sha256(source.read_bytes() + os.uname().machine.encode()).hexdigest()[:16]
    built = cache_root() / "lab" / digest / name
    if built.exists():
        return built
    built.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=built.parent) as scratch:
        fresh = Path(scratch) / name
        command = ["gcc", "-O2", "-shared", "-fPIC", f"-Wl,-soname,{name}", "-o", str(fresh), str(source)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        except FileNotFoundError:
            raise NodeError(
                "the lab needs a C compiler for the libraries that its nodes load",
                where="gcc",
                fix="run `apt-get install gcc libc6-dev`",
            ) from None
        if done.returncode:
            raise NodeError(
                f"{source.name} does not compile: {done.stderr.strip()[:400]}",
                where=str(source),
                fix="run `apt-get install gcc libc6-dev`",
            )
        fresh.replace(built)
    return built
