"""Has a hung gang's evidence gathered, in a process of its own (role `hang-look`): the agent's loop never waits."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
from dataclasses import dataclass

from orchestrator.node import dispatch, files

GIVEN_UP_S = 11.0
"""The process ends by itself after 9 s, where nothing that it reads hangs."""
AGAIN_S = 60.0
"""Where what was seen moves: a compilation may have ended, and the gang may still stand."""

MOVED = 10
"""Exit status: what was seen goes on by itself, so that another look may show something else."""


@dataclass(frozen=True)
class HangQuestion:
    """What the agent asks for. ranks: (TP rank, process id); parent: the engine's; ready_at: node's epoch seconds."""

    ranks: tuple[tuple[int, int], ...] = ()
    parent: int = 0
    ready_at: float = 0.0

    def words(self) -> str:
        """As an argument."""
        return json.dumps({"ranks": self.ranks, "parent": self.parent, "ready_at": self.ready_at})

    @classmethod
    def of(cls, words: str) -> HangQuestion:
        """From that argument."""
        raw = json.loads(words)
        return cls(tuple((int(rank), int(pid)) for rank, pid in raw["ranks"]), int(raw["parent"]), raw["ready_at"])


@dataclass
class HangInquiry:
    """One look a hang; another one only where the last has seen something that goes on by itself."""

    folder: str
    moved: bool = False
    """The last look saw a compiler, or data that flows."""
    _child: subprocess.Popen[bytes] | None = None
    _began: float = float("-inf")

    @property
    def pid(self) -> int:
        """Of the process that gathers, 0 for none: it and what is below it are none of the engine's."""
        return self._child.pid if self._child is not None else 0

    def due(self, now: float, *, first: bool) -> bool:
        """Whether to have all nodes look. first: the gang was only now called hung."""
        return self._child is None and (first or now - self._began >= AGAIN_S)

    def start(self, now: float, wanted: HangQuestion, *, again: bool) -> bool:
        """Begin, unless a look is under way, or the last one of this hang has told all. False where nothing began."""
        if self._child is not None or (again and not self.moved):
            return False
        self._began = now
        if not again:
            with contextlib.suppress(OSError):
                files.remove(f"{self.folder}/{files.HANG_FILE}")  # of an earlier hang
        try:
            self._child = subprocess.Popen(
                dispatch.command("hang-look", self.folder, wanted.words()),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError:
            return False
        return True

    def ended(self, now: float) -> bool:
        """Whether the look that was under way has ended, or was ended because it took too long."""
        if self._child is None:
            return False
        status = self._child.poll()
        if status is None and now - self._began < GIVEN_UP_S:
            return False
        self.moved = status == MOVED
        self.close()
        return True

    def close(self) -> None:
        """End it, with what it has started."""
        child, self._child = self._child, None
        if child is not None and child.returncode is None:
            with contextlib.suppress(OSError):
                os.killpg(child.pid, signal.SIGKILL)
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(0.2)
