"""A guard beside a test, and what a gang that it brought back looks like."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ENDS_S = 60.0
"""What a guard that is interrupted may take, on a busy machine."""


@contextmanager
def guarding(command: Sequence[str], environment: dict[str, str], said: Path) -> Iterator[None]:
    """A guard runs meanwhile; `said` is where it writes what it says.

    It takes SIGINT even where this process was started in a shell's background, which ignores it.
    """
    with said.open("w") as file:
        guard = subprocess.Popen(["env", "--default-signal=INT", *command], env=environment, stdout=file, stderr=file)
        try:
            yield
        finally:
            guard.send_signal(signal.SIGINT)
            try:
                guard.wait(ENDS_S)
            except subprocess.TimeoutExpired:
                guard.kill()
                guard.wait()
                raise


def serving(gang: dict[str, Any], nodes: Sequence[str]) -> bool:
    """Whether it answers on exactly these nodes, in the order of their ranks; gang: as `status --json` says."""
    members = sorted((node["node_rank"], node["name"]) for node in gang["nodes"] if node["node_rank"] is not None)
    return bool(gang["service"] and gang["service"]["healthy"]) and [name for _, name in members] == list(nodes)
