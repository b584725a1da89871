"""An engine in a container. Its processes are children of a daemon, not of ours, so we find them by the container's
name.

No call here waits for the daemon longer than a deadline: if it hangs, we must still be able to end the engine. We can
kill the container's first process ourselves (the kernel then ends all others of its PID namespace, pid_namespaces(7)).
"""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.node import processes, supervision
from orchestrator.node.agent.staged_run import Run
from orchestrator.node.processes import Process
from orchestrator.protocol.staging import Container

PYTHON = "python3"
"""The image's own."""
_OF_THE_HOST = ("PATH", "HOME", "LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "TIKTOKEN_ENCODINGS_BASE")
"""Variables with paths of the node; the image has its own."""
ASK_S = 20.0
REMOVE_S = 20.0
ASK_EVERY_S = 0.5


def environment(run: Run) -> dict[str, str]:
    """The variables that the launch script takes from its caller."""
    user = {"L40S_ENGINE_USER": run.engine_user} if run.engine_user else {}
    return {"L40S_CONTAINER": run.unit_name, **user}


def of_the_image(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables of a run's environment that another container of its image needs."""
    return {name: value for name, value in environment.items() if name not in _OF_THE_HOST}


def run_words(order: Container, name: str, owner: tuple[int, int] | None) -> list[str]:
    """`docker run` in the foreground, on the host network. owner: user and group inside; None for our own"""
    uid, gid = owner or (os.geteuid(), os.getegid())
    words = [order.program, "run", "--rm", "--init", "--interactive", "--name", name, "--pull", "never"]
    return [*words, "--log-driver", "none", "--network", "host", "--user", f"{uid}:{gid}"]


def remove(run: Run) -> None:
    """End the run's container, if there is one, and wait for that. Blocks: not for the agent's loop."""
    if run.container is not None:
        remove_named(run.container.program, run.unit_name)


def remove_named(program: str, name: str) -> None:
    """End a container of this name, if there is one, and wait for that."""
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        _done([program, "rm", "--force", name], REMOVE_S)


def _done(words: Sequence[str], within_s: float) -> subprocess.CompletedProcess[str]:
    """Raises OSError and TimeoutExpired."""
    return subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=within_s, check=False
    )


def missing(wanted: Container) -> tuple[str, str] | None:
    """Why the image can't be started, as (what is missing: program, daemon or image; message); None if it can."""
    program = wanted.program
    try:
        done = _done([program, "image", "inspect", "--format", "{{.Id}}", wanted.image], ASK_S)
    except OSError as error:
        return "program", f"{program} can't be run: {error.strerror}"
    except subprocess.TimeoutExpired:
        return "daemon", f"{program} did not respond within {ASK_S:.0f} s"
    if done.returncode == 0:
        return None
    last_line = (done.stderr.strip().splitlines() or ["it gave no reason"])[-1]
    kind = "image" if re.search(r"no such (image|object)|image not known", last_line, re.IGNORECASE) else "daemon"
    return kind, f"{program}: {last_line}"


@dataclass
class EngineContainer:
    """The container of a run that is being watched."""

    program: str
    name: str
    helpers: set[int] = field(default_factory=set)
    """Our client processes that talk to the daemon."""
    _asking: subprocess.Popen[str] | None = None
    _asked_at: float = float("-inf")
    _first: tuple[int, int] = (0, 0)

    @classmethod
    def of(cls, run: Run) -> EngineContainer | None:
        """None if the engine does not run in a container."""
        return cls(run.container.program, run.unit_name) if run.container is not None else None

    def processes(self, everything: Sequence[Process]) -> list[Process]:
        """Its first process and all below it; none until the daemon has named the first one."""
        pid, start = self._first
        if not pid or not processes.alive(pid, start):
            self._ask()
            pid, start = self._first
        first = [process for process in everything if (process.pid, process.start) == (pid, start)]
        return [*first, *supervision.descendants([pid], everything)] if first else []

    def removal(self) -> subprocess.Popen[str] | None:
        """Begin to remove the container through the daemon; None if the program can't be run."""
        return self._begin("rm", "--force", self.name)

    def _ask(self) -> None:
        """Does not wait: the answer is read in a later round."""
        now = time.monotonic()
        if self._asking is not None:
            if self._asking.poll() is not None:
                self._take(self._asking)
                self._asking = None
            elif now - self._asked_at > ASK_S:
                self._asking.kill()
        elif now - self._asked_at >= ASK_EVERY_S:
            self._asked_at = now
            self._asking = self._begin("container", "inspect", "--format", "{{.State.Pid}}", self.name)

    def _take(self, asked: subprocess.Popen[str]) -> None:
        self.helpers.discard(asked.pid)
        assert asked.stdout is not None
        with asked.stdout:
            words = asked.stdout.read().split()
        if asked.returncode == 0 and words and words[-1].isdigit():
            pid = int(words[-1])
            self._first = (pid, processes.start_of(pid)) if pid > 1 else (0, 0)

    def _begin(self, *words: str) -> subprocess.Popen[str] | None:
        try:
            begun = subprocess.Popen(
                [self.program, *words],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
                start_new_session=True,
            )
        except OSError:
            return None
        self.helpers.add(begun.pid)
        return begun
