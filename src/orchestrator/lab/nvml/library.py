"""Compile the lab's libnvidia-ml.so.1 once, and keep it by the digest of its source."""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

from orchestrator.lab.engine import cache_root
from orchestrator.model.errors import NodeError

NAME = "libnvidia-ml.so.1"
_SOURCE = Path(__file__).with_name("nvml.c")


def build() -> Path:
    """The compiled library; raises NodeError where there is no compiler."""
    source = _SOURCE.read_bytes()
    built = cache_root() / "lab" / hashlib.sha256(source + os.uname().machine.encode()).hexdigest()[:16] / NAME
    if built.exists():
        return built
    built.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=built.parent) as scratch:
        fresh = Path(scratch) / NAME
        command = ["gcc", "-O2", "-shared", "-fPIC", f"-Wl,-soname,{NAME}", "-o", str(fresh), str(_SOURCE)]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        except FileNotFoundError:
            raise NodeError(
                "there is no C compiler for the lab's NVML", where="gcc", fix="apt-get install gcc libc6-dev"
            ) from None
        if done.returncode:
            raise NodeError(
                f"the lab's NVML does not compile: {done.stderr.strip()[:400]}",
                where=str(_SOURCE),
                fix="apt-get install gcc libc6-dev",
            )
        fresh.replace(built)
    return built
