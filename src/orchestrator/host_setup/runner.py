"""Run one of our playbooks: progress as values, and what became of each host as a value too.

Ansible runs with our settings only: of the user's ansible.cfg, what reads the inventory counts (vaults, plugins) and
nothing else. Nothing is written to the user's home, and every connection is given up when it stays silent
(`ServerAliveInterval`).
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import ansible_runner

from orchestrator.host_setup.messages import advice, diff_text, failure_message, unreachable_message
from orchestrator.loading.ansible_settings import reading_settings
from orchestrator.loading.resources import data_dir
from orchestrator.model.errors import DeployError, InputError, NodeError, Unreachable
from orchestrator.model.per_node import PerNode

LOCALHOST: Mapping[str, Any] = {
    "all": {
        "hosts": {"localhost": {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}},
    }
}
"""An inventory of this machine alone."""

SSH_ARGUMENTS = (
    "-o ControlMaster=auto -o ControlPersist=30s -o ServerAliveInterval=5 -o ServerAliveCountMax=3 "
    "-o ConnectTimeout=10 -o BatchMode=yes"
)
"""15 s of silence end a connection, also that of a shared master whose host went away."""

GRACE_S = 10.0
"""Seconds that Ansible has to end its workers, and they their modules, before it is killed."""


@dataclass(frozen=True, slots=True)
class Step:
    """Something that happened on a host.

    role:    of the task, '' where it is none's
    outcome: `remark` is a message of the playbook's own
    seconds: how long the task took there; 0 for `started`
    diff:    of a changed task, as lines of a unified diff; '' where it told none
    """

    host: str
    task: str
    outcome: Literal["started", "ok", "changed", "skipped", "remark", "failed", "unreachable"]
    message: str = ""
    seconds: float = 0.0
    role: str = ""
    diff: str = ""


@dataclass(frozen=True, slots=True)
class HostResult:
    """How many tasks ended how on a host where none failed."""

    ok: int
    changed: int
    skipped: int


def run_playbook(
    playbook: str,
    *,
    inventory: Path | Mapping[str, Any] = LOCALHOST,
    variables: Mapping[str, Any] | None = None,
    only: Collection[str] = (),
    tags: Collection[str] = (),
    check: bool = False,
    forks: int = 16,
    become_password: str | None = None,
    deadline_s: float,
    on_step: Callable[[Step], None] = lambda _: None,
) -> PerNode[HostResult]:
    """Run `playbooks/<playbook>` and give each host's result or failure.

    inventory: an Ansible inventory file, or the same as a mapping
    only:      names of the hosts to run on; empty for all
    check:     change nothing, say what would change
    forks:     hosts that are worked on at a time
    become_password: for sudo; it travels in a file that only we can read, for as long as the run lasts
    deadline_s: seconds for the whole run; hosts that are not done by then are failures (`Unreachable`)
    on_step:   called from another thread, one call at a time; an exception in it ends the run and is raised here

    Raises InputError where Ansible could not start at all (a broken inventory, no such host). An interrupt ends
    the run on every host and is raised again.
    """
    report = _Report(on_step)
    with tempfile.TemporaryDirectory(prefix="l40s-ansible-") as folder:
        run = _Run(report, deadline_s)
        run.start(
            private_data_dir=folder,
            # Ansible works where we do: relative paths in an inventory (keys, known_hosts) mean the same to both
            project_dir=str(Path.cwd()),
            playbook=str(data_dir("playbooks") / playbook),
            inventory=str(inventory.absolute()) if isinstance(inventory, Path) else dict(inventory),
            extravars=dict(variables or {}),
            envvars=_settings(Path(folder), forks, become_password),
            limit=",".join(sorted(only)) or None,
            cmdline=_options(tags, check),
        )
        run.wait()
        return report.outcome(run)


def count_tasks(playbook: str, *, inventory: Path, tags: Collection[str] = (), deadline_s: float = 60.0) -> list[int]:
    """How many tasks each play of a playbook has, by `ansible-playbook --list-tasks`; [] where it can't tell."""
    with tempfile.TemporaryDirectory(prefix="l40s-ansible-") as folder:
        words = [
            "ansible-playbook",
            "--list-tasks",
            "-i",
            str(inventory.absolute()),
            str(data_dir("playbooks") / playbook),
        ]
        words[0] = str(Path(sys.executable).with_name(words[0]))
        try:
            listed = subprocess.run(
                [*words, *([f"--tags={','.join(sorted(tags))}"] if tags else [])],
                env=_settings(Path(folder), 1, None),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=deadline_s,
                check=False,
            ).stdout
        except (OSError, subprocess.SubprocessError):
            return []
    return [len(re.findall(r"^ {6}\S.*\tTAGS: ", play, re.MULTILINE)) for play in listed.split("\n  play #")[1:]]


class _Run:
    """One ansible-playbook process, watched from a thread so that an interrupt finds us awake."""

    def __init__(self, report: _Report, deadline_s: float) -> None:
        self.timed_out = False
        self.output = ""
        self.deadline_s = deadline_s
        self._report = report
        self._ends_at = time.monotonic() + deadline_s
        self._interrupted = threading.Event()
        self._term_sent_at: float | None = None

    def start(self, **arguments: Any) -> None:
        self._thread, self._runner = ansible_runner.run_async(
            quiet=True,
            event_handler=self._report.hear,
            cancel_callback=self._should_be_killed,
            **arguments,
        )

    def wait(self) -> None:
        """Until the process has ended, whatever happens; raises what ended it early."""
        try:
            while self._thread.is_alive():
                self._thread.join(0.2)
        except BaseException:
            self._interrupted.set()
            self._thread.join(GRACE_S + 5)
            raise
        self.output = self._output()
        if self._report.broken is not None:
            raise self._report.broken

    def _should_be_killed(self) -> bool:
        """ansible-runner asks again and again, and kills with SIGKILL; Ansible gets SIGTERM and some time first.

        Its workers are sessions of their own: only Ansible itself, when asked to end, ends them and their modules.
        """
        self.timed_out = self.timed_out or time.monotonic() > self._ends_at
        if not (self.timed_out or self._interrupted.is_set() or self._report.broken is not None):
            return False
        if self._term_sent_at is None:
            self._term_sent_at = time.monotonic()
            if self._report.pid:
                os.kill(self._report.pid, signal.SIGTERM)
        return time.monotonic() - self._term_sent_at > (GRACE_S if self._report.pid else 0.0)

    def _output(self) -> str:
        with self._runner.stdout as stream:
            return str(stream.read())

    def never_began(self) -> DeployError:
        """No task was started on any host."""
        if self.timed_out:
            return Unreachable(f"no task started within {self.deadline_s:.0f} s", where="ansible-playbook", fix=_AGAIN)
        said = failure_message({"stdout": self.output})
        return InputError(said, where="ansible-playbook", fix="fix what the message names")

    def left_unfinished(self, host: str, task: str) -> DeployError:
        """A host that was at `task` when the run ended."""
        if self.timed_out:
            return Unreachable(
                f"did not end within {self.deadline_s:.0f} s; last task: {task!r}", where=host, fix=_AGAIN
            )
        said = failure_message({"stdout": self.output})
        return NodeError(f"Ansible ended at {task!r}: {said}", where=host, fix=_AGAIN)


class _Report:
    """What Ansible's events say, host by host."""

    def __init__(self, on_step: Callable[[Step], None]) -> None:
        self.pid = 0
        self.broken: BaseException | None = None
        self._on_step = on_step
        self._at: dict[str, str] = {}
        self._failures: dict[str, DeployError] = {}
        self._counts: dict[str, HostResult] | None = None

    def hear(self, event: Mapping[str, Any]) -> bool:
        """ansible-runner's event handler; False: keep no file of the event."""
        kind, data = event.get("event", ""), event.get("event_data") or {}
        try:
            if kind == "playbook_on_start":
                self.pid = int(data.get("pid") or event.get("pid") or 0)
            elif kind == "playbook_on_stats":
                self._counts = _counts(data)
            elif kind.startswith("runner_on_"):
                self._host_event(kind.removeprefix("runner_on_"), data)
        except BaseException as failure:  # raised again by the thread that asked for the run
            self.broken = failure
        return False

    def outcome(self, run: _Run) -> PerNode[HostResult]:
        if not self._at:
            raise run.never_began()
        counts = self._counts or {}
        for host in self._at.keys() - self._failures.keys() - counts.keys():
            self._failures[host] = run.left_unfinished(host, self._at[host])
        return PerNode({host: counts[host] for host in counts if host not in self._failures}, self._failures)

    def _host_event(self, kind: str, data: Mapping[str, Any]) -> None:
        host, task, result = str(data.get("host")), str(data.get("task") or ""), data.get("res") or {}
        seconds, role = float(data.get("duration") or 0.0), str(data.get("role") or "")
        if kind == "start":
            self._at[host] = task
            self._on_step(Step(host, task, "started", role=role))
        elif kind == "ok" and str(data.get("task_action")).endswith("debug"):
            self._on_step(Step(host, task, "remark", str(result.get("msg") or ""), seconds, role))
        elif kind == "ok":
            outcome: Literal["changed", "ok"] = "changed" if result.get("changed") else "ok"
            self._on_step(Step(host, task, outcome, seconds=seconds, role=role, diff=diff_text(result)))
        elif kind == "skipped":
            self._on_step(Step(host, task, "skipped", seconds=seconds, role=role))
        elif kind == "failed" and not data.get("ignore_errors"):
            message = failure_message(result)
            self._failures[host] = NodeError(f"{task!r} failed: {message}", where=host, fix=advice(message) or _AGAIN)
            self._on_step(Step(host, task, "failed", message, seconds, role))
        elif kind == "unreachable":
            message = unreachable_message(result)
            self._failures[host] = Unreachable(message, where=host, fix=f"check the login: `ssh {host}`")
            self._on_step(Step(host, task, "unreachable", message, seconds, role))


_AGAIN = "fix what the message names, then run it again; finished tasks are skipped"


def _counts(stats: Mapping[str, Any]) -> dict[str, HostResult]:
    return {
        host: HostResult(
            ok=stats.get("ok", {}).get(host, 0),
            changed=stats.get("changed", {}).get(host, 0),
            skipped=stats.get("skipped", {}).get(host, 0),
        )
        for host in stats.get("processed") or ()
    }


def _options(tags: Collection[str], check: bool) -> str | None:
    words = ["--check", "--diff"] if check else []
    if tags:
        words.append("--tags=" + ",".join(sorted(tags)))
    return " ".join(words) or None


def _settings(folder: Path, forks: int, become_password: str | None) -> dict[str, str]:
    """Ansible's environment: ours alone, but for how the inventory is read, so that a run depends on nothing else that
    a user has configured elsewhere."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    if become_password is not None:
        secret = folder / "become"
        secret.touch(mode=0o600)
        secret.write_text(become_password)
        inherited["ANSIBLE_BECOME_PASSWORD_FILE"] = str(secret)
    return (
        inherited
        | reading_settings()
        | {
            # ansible-playbook stands beside our interpreter, which need not be on PATH
            "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
            "LC_ALL": "C.UTF-8",  # Ansible refuses to run in a locale without UTF-8
            "ANSIBLE_CONFIG": str(_empty_file(folder / "ansible.cfg")),
            "ANSIBLE_HOME": str(folder / "home"),
            "ANSIBLE_LOCAL_TEMP": str(folder / "local"),
            "ANSIBLE_NOCOLOR": "1",
            "ANSIBLE_PIPELINING": "1",
            "ANSIBLE_PYTHON_INTERPRETER": "/usr/bin/python3",  # where the inventory names none: no guessing on the host
            "ANSIBLE_FORKS": str(forks),
            "ANSIBLE_TIMEOUT": "10",
            "ANSIBLE_RETRY_FILES_ENABLED": "0",
            "ANSIBLE_SSH_ARGS": SSH_ARGUMENTS,
            "ANSIBLE_SSH_CONTROL_PATH_DIR": str(folder / "cp"),
        }
    )


def _empty_file(path: Path) -> Path:
    path.touch()
    return path
