"""A guard that runs beside a test, and checks of a gang that it restarted."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ENDS_S = 60.0
"""The longest that an interrupted guard may take to end, on a busy machine."""


@contextmanager
def guarding(command: Sequence[str], environment: dict[str, str], said: Path) -> Iterator[int]:
    """Runs a guard meanwhile, and gives its process id; `said` is the file for its output.

    It takes SIGINT even where this process was started in a shell's background, which ignores it.
    """
    with said.open("w") as file:
        guard = subprocess.Popen(["env", "--default-signal=INT", *command], env=environment, stdout=file, stderr=file)
        try:
            yield guard.pid
        finally:
            guard.send_signal(signal.SIGINT)
            try:
                guard.wait(ENDS_S)
            except subprocess.TimeoutExpired:
                guard.kill()
                guard.wait()
                raise


def serving(gang: dict[str, Any], nodes: Sequence[str]) -> bool:
    """Whether the gang serves on exactly these nodes, in rank order; gang: as in `status --json`."""
    members = sorted((node["node_rank"], node["name"]) for node in gang["nodes"] if node["node_rank"] is not None)
    return bool(gang["service"] and gang["service"]["healthy"]) and [name for _, name in members] == list(nodes)
