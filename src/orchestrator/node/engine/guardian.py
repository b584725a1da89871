"""The engine's parent process. It is forked from the agent before anything else, and outlives it just long enough.

It holds one end of a socket pair, which closes when the agent ends. The guardian then kills every process below it, and
first reports the agent's death unless the agent had released it. As a subreaper it is the parent of the engine's
orphans too. An agent that is alive but silent for as long as the gang's lease (stopped by a signal, or stuck) has been
given up by the other agents: the guardian kills it together with the engine.

If the guardian itself is killed, the engine gets SIGKILL by PR_SET_PDEATHSIG, and its orphans go to the agent, which is
a subreaper as well.

At the end: a program beside the engine or in its place. It runs as the engine's user too, and is killed when we exit.
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import re
import resource
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from orchestrator.node import processes, supervision
from orchestrator.node.agent import staged_run
from orchestrator.node.agent.staged_run import Run
from orchestrator.node.engine import engine_container, scratch
from orchestrator.protocol.errors import DeployError

KILL_FOR_S, HELPER_KILL_FOR_S = 60.0, 10.0
"""For an engine, and for a program beside it or in its place."""
CLOSE_S = 2.0
REPORT_S = 3.0
"""A little longer than a report takes if nobody receives it."""
_OF_THE_ENGINE = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1)
"""Signals that the guardian ignores and its engine obeys."""
_DROPPED = ("SSH_", "SUDO_", "PYTHON")
"""Variables of our own session that the engine must not inherit."""


@dataclass
class Guardian:
    """The agent's view of its guardian."""

    pid: int
    start: int
    channel: socket.socket
    log: int
    """Read end of the engine's stdout and stderr."""
    _rest: bytes = b""

    def close(self) -> None:
        """Release the guardian, and wait until it has ended."""
        with contextlib.suppress(OSError):
            self.channel.send(RELEASE)
        self.channel.close()
        end = time.monotonic() + CLOSE_S
        while processes.alive(self.pid, self.start) and time.monotonic() < end:
            time.sleep(0.01)

    def go(self) -> None:
        """Start the engine; `started` comes back as a message."""
        self.channel.sendall(GO)

    def beat(self) -> None:
        """Tell the guardian that the agent's loop runs. Does not wait if the guardian does not read."""
        with contextlib.suppress(OSError):
            self.channel.send(BEAT)

    def messages(self) -> list[dict[str, Any]] | None:
        """{"started": pid, "start": its start time}, {"exited": pid, "status": wait status}; None: the guardian is
        gone."""
        if self.channel.fileno() < 0:
            return []
        try:
            data = self.channel.recv(65536)
        except BlockingIOError:
            return []
        except OSError:
            return None
        if not data:
            return None
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [json.loads(line) for line in lines]


def fork(run: Run, report: Callable[[], None]) -> Guardian:
    """Fork the guardian; the process must be single-threaded. report: called in the guardian when the agent has
    died."""
    ours, theirs = socket.socketpair()
    log_read, log_write = os.pipe2(os.O_CLOEXEC)
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            ours.close()
            os.close(log_read)
            _Parent(run, theirs, log_write, report).live()
            status = 0
        finally:
            os._exit(status)
    theirs.close()
    os.close(log_write)
    ours.setblocking(False)
    os.set_blocking(log_read, False)
    return Guardian(pid=pid, start=processes.start_of(pid), channel=ours, log=log_read)


@dataclass
class _Parent:
    """Inside the forked process."""

    run: Run
    channel: socket.socket
    log: int
    report: Callable[[], None]
    agent: int = field(default_factory=os.getppid)
    vigil: AgentWatch = field(init=False)
    _held: int = -1

    def __post_init__(self) -> None:
        patience_s = max(self.run.armed_for_s, self.run.lease_s)
        self.vigil = AgentWatch(time.monotonic(), patience_s, self.run.lease_s)

    def live(self) -> None:
        supervision.adopt_orphans()
        supervision.name_process("l40s-guardian")
        for number in _OF_THE_ENGINE:
            signal.signal(number, signal.SIG_IGN)
        wake_read, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        while not self.vigil.over(time.monotonic()):
            ready, _, _ = select.select([self.channel.fileno(), wake_read], [], [], 1.0)
            if wake_read in ready:
                with contextlib.suppress(BlockingIOError):
                    os.read(wake_read, 4096)
            self._reap()
            if self.channel.fileno() in ready:
                self._obey()
        reporting = self._report_death()
        supervision.kill_below(KILL_FOR_S, self._reap)
        engine_container.remove(self.run)
        if reporting is not None:
            reporting.join(REPORT_S)
        if self.vigil.is_silent(time.monotonic()) and os.getppid() == self.agent:
            os.kill(self.agent, signal.SIGKILL)

    def _obey(self) -> None:
        try:
            words = self.channel.recv(4096)
        except OSError:
            words = b""
        if self.vigil.hear(time.monotonic(), words):
            self._start()

    def _report_death(self) -> threading.Thread | None:
        """In a thread beside the killing, which must not wait for a network."""
        if not self.vigil.reports_death(time.monotonic()):
            return None
        thread = threading.Thread(target=self.report, name="report", daemon=True)
        thread.start()
        return thread

    def _start(self) -> None:
        parent = os.getpid()
        stdin, self._held = self._standard_input()
        signal.pthread_sigmask(signal.SIG_BLOCK, _OF_THE_ENGINE)  # what hits the child before it is itself is kept
        pid = os.fork()
        if pid == 0:
            _become_engine(self.run, self.log, stdin, parent)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _OF_THE_ENGINE)
        os.close(stdin)
        os.close(self.log)  # only the engine holds the pipe, so the log ends when the engine does
        self._say(started=pid, start=processes.start_of(pid))

    def _standard_input(self) -> tuple[int, int]:
        """The engine's; a container lives for as long as we hold the other end (templates/launch_container.sh.j2)."""
        if self.run.container is not None:
            return os.pipe2(os.O_CLOEXEC)
        return os.open(os.devnull, os.O_RDONLY | os.O_CLOEXEC), -1

    def _reap(self) -> None:
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                self._say(exited=ended[0], status=ended[1])

    def _say(self, **message: int) -> None:
        with contextlib.suppress(OSError):
            self.channel.sendall(json.dumps(message).encode() + b"\n")


def _become_engine(run: Run, log: int, stdin: int, parent: int) -> None:
    """In the child: new session, the engine's user, limits and environment, then the launch script. Never returns."""
    try:
        script = staged_run.in_memory(staged_run.script_of(run))  # as the agent's user: the engine's may not read it
        os.setsid()
        for number in (*_OF_THE_ENGINE, signal.SIGCHLD):
            signal.signal(number, signal.SIG_DFL)
        signal.set_wakeup_fd(-1)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _OF_THE_ENGINE)
        os.dup2(stdin, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        for name, least in run.limits.items():
            raise_limit(name, least)  # as far as we may; preflight has checked whether that is far enough
        environment = engine_environment(run)
        if run.container is not None:  # the daemon talks to our user; inside the container, the engine's user applies
            environment |= engine_container.environment(run)
        else:
            environment |= {name: run.env.get(name, path) for name, path in scratch.make(run).items()}
            change_user(run)
        supervision.die_with_parent(signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(1)
        os.chdir(run.working_dir)
        os.execve("/bin/sh", ["/bin/sh", f"/proc/self/fd/{script}"], environment)  # noqa: S606 - the staged script
    except (OSError, DeployError) as error:
        sys.stderr.flush()
        os.write(2, f"the engine could not be started: {error}\n".encode())
    finally:
        os._exit(127)


def raise_limit(name: str, least: int) -> int:
    """Raise one limit (memlock, nofile, ...; -1 is unlimited) as far as allowed; returns the resulting soft limit."""
    kind = getattr(resource, f"RLIMIT_{name.upper()}")
    soft, hard = resource.getrlimit(kind)
    if _enough(soft, least):
        return soft
    for value in ((least, least if not _enough(hard, least) else hard), (hard, hard)):
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(kind, value)
            break
    return resource.getrlimit(kind)[0]


def _enough(value: int, least: int) -> bool:
    return value == resource.RLIM_INFINITY or (least != resource.RLIM_INFINITY and value >= least)


def engine_environment(run: Run) -> dict[str, str]:
    """The session's environment as at a login, with the run's on top; the launch script sets the run's again.

    L40S_GANG_DIR is the folder of the gang's secret files, for launch scripts that can't know it.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith(_DROPPED)}
    if run.engine_user is not None:
        user = pwd.getpwnam(run.engine_user)
        environment.update(HOME=user.pw_dir, USER=user.pw_name, LOGNAME=user.pw_name)
    return {**environment, "L40S_GANG_DIR": run.gang_dir, **run.env}


def change_user(run: Run) -> None:
    """Become the engine's user, if one is named and we may."""
    owner = run.owner()
    if owner is not None and run.engine_user is not None:
        uid, gid = owner
        os.initgroups(run.engine_user, gid)
        os.setgid(gid)
        os.setuid(uid)


BEAT, GO, RELEASE = b"beat\n", b"go\n", b"release\n"


@dataclass
class AgentWatch:
    """heard_at: when the agent was last heard, monotonic seconds; patience_s: how long it may be silent: at first the
    time that arming may take, then, once its loop runs, the lease."""

    heard_at: float
    patience_s: float
    lease_s: float
    released: bool = False
    """The agent ended as intended: this is no death."""
    gone: bool = False
    """The agent has closed its end."""

    def hear(self, now: float, words: bytes) -> bool:
        """Take the agent's message, b'' for end of file. Returns True if the engine is to be started."""
        if not words:
            self.gone = True
            return False
        self.heard_at = now
        self.released = self.released or RELEASE in words
        if BEAT in words:
            self.patience_s = self.lease_s
        return GO in words

    def is_silent(self, now: float) -> bool:
        """Whether the agent has been silent for too long: it must be killed with its engine."""
        return now - self.heard_at > self.patience_s

    def over(self, now: float) -> bool:
        """Whether there is no agent left to serve: all processes of the engine must be ended."""
        return self.gone or self.is_silent(now)

    def reports_death(self, now: float) -> bool:
        """Whether the other agents must be told. If the agent was silent, they have already given it up."""
        return not (self.released or self.is_silent(now))


def become(run: Run, parent: int) -> None:
    """In the child, before exec: become the engine's user, then `die_with`, which a change of user would undo."""
    change_user(run)
    die_with(parent)


def die_with(parent: int) -> None:
    """In the child of a program that runs as our own user: a new session, and death with the parent."""
    os.setsid()
    supervision.die_with_parent(signal.SIGKILL)
    if os.getppid() != parent:
        os._exit(1)


def end(child: subprocess.Popen[bytes]) -> None:
    """Kill the child and all that it started. We must be the parent of orphans: `supervision.adopt_orphans`."""
    supervision.kill_below(HELPER_KILL_FOR_S, child.poll)
    with contextlib.suppress(subprocess.TimeoutExpired):
        child.wait(1.0)
    for stream in (child.stdin, child.stdout, child.stderr):
        if stream is not None:
            stream.close()


def last_words(log: str) -> str:
    """The last line that is not blank."""
    lines = [line.strip() for line in re.split(r"[\r\n]+", log) if line.strip()]
    return (lines[-1] if lines else "it printed nothing")[:300]
