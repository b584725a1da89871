"""Runs one of our playbooks; its progress, and what became of each host, are values, in the words of an operator.

Ansible runs with our settings: of the user's ansible.cfg, only what is needed to read the inventory counts (vaults,
plugins). Nothing is written to the user's home, and a connection that stays silent is given up (`ServerAliveInterval`).
"""

from __future__ import annotations

import difflib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import ansible_runner

from orchestrator.hosts.steps.parts import DIFFERS, HASHES_DIFFER
from orchestrator.loading.resources import data_dir
from orchestrator.loading.sources import reading_settings
from orchestrator.model.per_node import PerNode
from orchestrator.protocol.errors import DeployError, InputError, NodeError, Unreachable

_HERE = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
LOCALHOST: Mapping[str, Any] = {"all": {"hosts": {"localhost": _HERE}}}
"""An inventory of this machine alone."""

SSH_ARGUMENTS = (
    "-o ControlMaster=auto -o ControlPersist=30s -o ServerAliveInterval=5 -o ServerAliveCountMax=3 "
    "-o ConnectTimeout=10 -o BatchMode=yes"
)
"""A connection ends after 15 s of silence, also that of a shared master whose host has gone away."""

GRACE_S = 10.0
"""Seconds that Ansible has to end its workers, and the workers to end their modules, before it is killed."""

Outcome = Literal["started", "ok", "changed", "skipped", "remark", "failed", "unreachable"]


@dataclass(frozen=True, slots=True)
class HostEvent:
    """Something that happened on a host.

    role:    the role that the task is part of, '' for none
    outcome: `remark` is a message of the playbook's own
    seconds: how long the task took there; 0 for `started`
    diff:    what the task changed, as lines of a unified diff; '' where it reported none
    """

    host: str
    task: str
    outcome: Outcome
    message: str = ""
    seconds: float = 0.0
    role: str = ""
    diff: str = ""


@dataclass(frozen=True, slots=True)
class HostResult:
    """How many tasks ended in which way, on a host where none failed."""

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
    on_step: Callable[[HostEvent], None] = lambda _: None,
) -> PerNode[HostResult]:
    """Run `playbooks/<playbook>` and give each host's result or failure.

    inventory: an Ansible inventory file, or the same as a mapping
    only:      names of the hosts to run on; empty for all
    check:     change nothing, say what would change
    forks:     how many hosts are worked on at a time
    become_password: for sudo; it travels in a file that only we can read, for as long as the run lasts
    deadline_s: seconds for the whole run; hosts that are not done by then are failures (`Unreachable`)
    on_step:   called from another thread, one call at a time; an exception in it ends the run and is raised here

    Raises InputError where Ansible could not start at all (a broken inventory, no such host). An interrupt ends
    the run on every host and is raised again.
    """
    options = ["--check", "--diff"] if check else []
    options += [f"--tags={','.join(sorted(tags))}"] if tags else []
    with tempfile.TemporaryDirectory(prefix="l40s-ansible-") as folder:
        return _PlaybookRun(on_step, deadline_s).outcome(
            private_data_dir=folder,
            # Ansible works where we do: relative paths in an inventory (keys, known_hosts) mean the same to both
            project_dir=str(Path.cwd()),
            playbook=str(data_dir("playbooks") / playbook),
            inventory=str(inventory.absolute()) if isinstance(inventory, Path) else dict(inventory),
            extravars=dict(variables or {}),
            envvars=_settings(Path(folder), forks, become_password),
            limit=",".join(sorted(only)) or None,
            cmdline=" ".join(options) or None,
        )


def count_tasks(playbook: str, *, inventory: Path, tags: Collection[str] = (), deadline_s: float = 60.0) -> list[int]:
    """How many tasks each play of a playbook has, by `ansible-playbook --list-tasks`; [] where it can't tell."""
    with tempfile.TemporaryDirectory(prefix="l40s-ansible-") as folder:
        program = str(Path(sys.executable).with_name("ansible-playbook"))
        words = [program, "--list-tasks", "-i", str(inventory.absolute()), str(data_dir("playbooks") / playbook)]
        words += [f"--tags={','.join(sorted(tags))}"] if tags else []
        try:
            listed = subprocess.run(
                words,
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


class _PlaybookRun:
    """One ansible-playbook process, run by a thread so that this one can handle an interrupt; what its events say."""

    def __init__(self, on_step: Callable[[HostEvent], None], deadline_s: float) -> None:
        self._on_step = on_step
        self._deadline_s = deadline_s
        self._ends_at = time.monotonic() + deadline_s
        self._timed_out = False
        self._broken: BaseException | None = None
        """What ends the run early."""
        self._pid = 0
        self._term_sent_at: float | None = None
        self._at: dict[str, str] = {}
        self._failures: dict[str, DeployError] = {}
        self._counts: dict[str, HostResult] = {}

    def outcome(self, **arguments: Any) -> PerNode[HostResult]:
        """Waits until the process has ended, whatever happens; raises what ended it early."""
        thread, runner = ansible_runner.run_async(
            quiet=True, event_handler=self._hear, cancel_callback=self._should_be_killed, **arguments
        )
        try:
            while thread.is_alive():
                thread.join(0.2)
        except BaseException as interrupt:
            self._broken = interrupt
            thread.join(GRACE_S + 5)
            raise
        with runner.stdout as stream:
            message = failure_message({"stdout": str(stream.read())})
        if self._broken is not None:
            raise self._broken
        if not self._at:
            raise self._unfinished("ansible-playbook", message)
        for host in self._at.keys() - self._failures.keys() - self._counts.keys():
            self._failures[host] = self._unfinished(host, message)
        done = {host: counts for host, counts in self._counts.items() if host not in self._failures}
        return PerNode(done, self._failures)

    def _unfinished(self, where: str, message: str) -> DeployError:
        """What became of a host that was at a task when the run ended, or of a run that never came to one.

        said: Ansible's output
        """
        task, late = self._at.get(where), f"within {self._deadline_s:.0f} s"
        if self._timed_out:
            what = f"no task started {late}" if task is None else f"did not end {late}; last task: {task!r}"
            return Unreachable(what, where=where, fix=_AGAIN)
        if task is None:
            return InputError(message, where=where, fix="fix what the message names")
        return NodeError(f"Ansible ended at {task!r}: {message}", where=where, fix=_AGAIN)

    def _should_be_killed(self) -> bool:
        """ansible-runner asks this again and again, and kills with SIGKILL; Ansible gets SIGTERM and some time first.

        Its workers have sessions of their own: only Ansible itself, when asked to end, ends them and their modules.
        """
        self._timed_out = self._timed_out or time.monotonic() > self._ends_at
        if not self._timed_out and self._broken is None:
            return False
        if self._term_sent_at is None:
            self._term_sent_at = time.monotonic()
            if self._pid:
                os.kill(self._pid, signal.SIGTERM)
        return time.monotonic() - self._term_sent_at > (GRACE_S if self._pid else 0.0)

    def _hear(self, event: Mapping[str, Any]) -> bool:
        """ansible-runner's event handler; False: keep no file of the event."""
        kind, data = event.get("event", ""), event.get("event_data") or {}
        try:
            if kind == "playbook_on_start":
                self._pid = int(data.get("pid") or event.get("pid") or 0)
            elif kind == "playbook_on_stats":
                self._counts = {
                    host: HostResult(*(data.get(end, {}).get(host, 0) for end in ("ok", "changed", "skipped")))
                    for host in data.get("processed") or ()
                }
            elif kind.startswith("runner_on_") and (step := _step(kind.removeprefix("runner_on_"), data)):
                self._keep(step)
        except BaseException as failure:  # raised again by the thread that asked for the run
            self._broken = failure
        return False

    def _keep(self, step: HostEvent) -> None:
        if step.outcome == "started":
            self._at[step.host] = step.task
        elif step.outcome == "unreachable":
            fix = f"check the login: `ssh {step.host}`"
            self._failures[step.host] = Unreachable(step.message, where=step.host, fix=fix)
        elif step.outcome == "failed":
            what, fix = f"{step.task!r} failed: {step.message}", advice(step.message) or _AGAIN
            self._failures[step.host] = NodeError(what, where=step.host, fix=fix)
        self._on_step(step)


_AGAIN = "fix what the message names, then run it again; finished tasks are skipped"


_OUTCOMES: Mapping[str, Outcome] = {
    "start": "started",
    "ok": "ok",
    "skipped": "skipped",
    "failed": "failed",
    "unreachable": "unreachable",
}
"""By kind of event; other kinds are of no interest."""


def _step(kind: str, data: Mapping[str, Any]) -> HostEvent | None:
    """What an event `runner_on_<kind>` says, None where it is of no interest."""
    result = data.get("res") or {}
    if (outcome := _outcome(kind, data, result)) is None:
        return None
    return HostEvent(
        host=str(data.get("host")),
        task=str(data.get("task") or ""),
        outcome=outcome,
        message=_SAID[outcome](result) if outcome in _SAID else "",
        seconds=float(data.get("duration") or 0.0),
        role=str(data.get("role") or ""),
        diff=diff_text(result) if outcome in ("ok", "changed") else "",
    )


def _outcome(kind: str, data: Mapping[str, Any], result: Mapping[str, Any]) -> Outcome | None:
    if kind == "ok" and str(data.get("task_action")).endswith("debug"):
        return "remark"
    if kind == "ok" and result.get("changed"):
        return "changed"
    return None if kind == "failed" and data.get("ignore_errors") else _OUTCOMES.get(kind)


def _settings(folder: Path, forks: int, become_password: str | None) -> dict[str, str]:
    """Ansible's environment. Only how the inventory is read comes from the user's own configuration: a run depends on
    nothing else there."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("ANSIBLE_")}
    if become_password is not None:
        secret = folder / "become"
        secret.touch(mode=0o600)
        secret.write_text(become_password)
        inherited["ANSIBLE_BECOME_PASSWORD_FILE"] = str(secret)
    (folder / "ansible.cfg").touch()
    ours = {
        # ansible-playbook is beside our interpreter, in a folder that need not be on PATH
        "PATH": f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}",
        "LC_ALL": "C.UTF-8",  # Ansible refuses to run in a locale without UTF-8
        "ANSIBLE_CONFIG": str(folder / "ansible.cfg"),
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
    return {**inherited, **reading_settings(), **ours}


LONGEST_MESSAGE = 2000
"""Characters kept of one message. The beginning is dropped: an output ends with the reason."""

_UNHELPFUL = ("non-zero return code", "MODULE FAILURE", "Module result deserialization failed")


def failure_message(result: Mapping[str, Any]) -> str:
    """What went wrong, from a failed task's `res`. Never empty.

    A command's own words (stderr, else stdout) take the place of a message that says only that it failed; of a loop,
    the failed items are named.
    """
    if items := [item for item in result.get("results") or () if isinstance(item, Mapping) and item.get("failed")]:
        return _shortened("; ".join(f"{_item(item)}: {failure_message(item)}" for item in items))
    message = _message(result)
    output = _first(result, "stderr", "module_stderr", "stdout", "module_stdout")
    if not output or (message and not message.startswith(_UNHELPFUL)):
        return _shortened(message) or "failed without a reason"
    status = result.get("rc")
    return _shortened(output) + (f" (exit status {status})" if isinstance(status, int) else "")


def unreachable_message(result: Mapping[str, Any]) -> str:
    """Why a host could not be reached, without Ansible's advice about its own options."""
    return _shortened(_message(result).removeprefix("Failed to connect to the host via ssh: ")) or "does not answer"


def _message(result: Mapping[str, Any]) -> str:
    return _first(result, "msg").removeprefix("Task failed: ")


def _first(result: Mapping[str, Any], *keys: str) -> str:
    """The text of the first key that has one, else ''."""
    return next((text for key in keys if (text := str(result.get(key) or "").strip())), "")


_SAID: Mapping[Outcome, Callable[[Mapping[str, Any]], str]] = {
    "failed": failure_message,
    "unreachable": unreachable_message,
    "remark": lambda result: str(result.get("msg") or ""),
}
"""What of a task's result an operator reads."""
_ADVICE = {
    "(?i:missing sudo password|a password is required|a terminal is required)": (
        "use `--ask-become-pass` to enter the sudo password, once for all nodes"
    ),
    "(?i:incorrect sudo password|incorrect password)": "type the password again",
    "is not in the sudoers file|is not allowed to (execute|run)|may not run sudo": (
        "allow that user to become root on the node, or log in as another user"
    ),
    "sudo: (command )?not found|sudo: No such file": "install sudo on the node, or log in as root",
    "this needs root, and the tasks run as": (
        "use `--become` for sudo, or set `ansible_become: true` in the inventory for all commands"
    ),
    "No space left on device": "free space on the node, or set another path as l40s_venv in the inventory",
    "No package matching|Unable to locate package|Failed to update apt cache|Failed to fetch": (
        "configure a package source on the node, install the packages yourself, or set system_packages_wanted"
    ),
    DIFFERS: HASHES_DIFFER,
    "No matching distribution found|Could not find a version that satisfies": (
        "give pip an index that has it (`--find-links`), or install from a bundle (`stack build`)"
    ),
}
"""Words that sudo, pip and apt are known to use -> what to do about it."""


def advice(message: str) -> str:
    """What an operator can do about a failure, '' where nothing is known."""
    return next((fix for pattern, fix in _ADVICE.items() if re.search(pattern, message)), "")


def diff_text(result: Mapping[str, Any]) -> str:
    """What a task changed or would change, as unified diffs, file by file; '' if it has none."""
    diffs = result.get("diff") or []
    several = diffs if isinstance(diffs, list) else [diffs]
    place = str(result.get("dest") or result.get("path") or "")
    return "\n".join(text for diff in several if isinstance(diff, Mapping) and (text := _unified(diff, place)))


def _unified(diff: Mapping[str, Any], place: str) -> str:
    if diff.get("prepared"):
        return str(diff["prepared"]).strip("\n")
    before, after = (_lines(diff.get(side)) for side in ("before", "after"))
    old, new = (place or _header(diff, side) for side in ("before", "after"))
    return "\n".join(difflib.unified_diff(before, after, old, new, lineterm="", n=1))


def _header(diff: Mapping[str, Any], side: str) -> str:
    """The file's name; the template's own where Ansible names only the place on this machine where it was filled in."""
    name = str(diff.get(f"{side}_header") or diff.get("after_header") or side)
    return name.rpartition("/")[2].removesuffix(".j2") if "/ansible-local-" in name else name


def _lines(text: object) -> list[str]:
    """The lines of a file's text, or a module's own facts as `name: value`."""
    if isinstance(text, Mapping):
        return [f"{name}: {text[name]}" for name in sorted(text)]
    return str(text or "").splitlines()


def _item(result: Mapping[str, Any]) -> str:
    label = result.get("_ansible_item_label", result.get("item", "?"))
    return str(label) if isinstance(label, (str, int)) else "item"


def _shortened(text: str) -> str:
    """As one line; warnings are left out where something else was said."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    important = [line for line in lines if not line.startswith(("WARNING", "[WARNING]"))] or lines
    joined = " | ".join(important)
    return joined if len(joined) <= LONGEST_MESSAGE else "..." + joined[-LONGEST_MESSAGE:]
