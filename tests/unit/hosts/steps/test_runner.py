"""Small playbooks through the real Ansible on this machine: every possible end of a host or a run."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from tests.support.waiting import until
from tests.unit.remote.test_commands import gone

from orchestrator.hosts.steps import runner
from orchestrator.hosts.steps.runner import (
    LONGEST_MESSAGE,
    HostEvent,
    advice,
    diff_text,
    failure_message,
    run_playbook,
    unreachable_message,
)
from orchestrator.protocol.errors import InputError, NodeError, Unreachable

TASKS = """
- hosts: all
  gather_facts: false
  tasks:
    - name: Say it
      ansible.builtin.command: "{{ command }}"
      changed_when: changes | default(false)
"""


@pytest.fixture
def playbooks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(runner, "data_dir", lambda kind: tmp_path)
    (tmp_path / "play.yml").write_text(TASKS)
    return tmp_path


def test_progress_and_results_are_values(playbooks: Path) -> None:
    steps: list[HostEvent] = []
    outcome = run_playbook(
        "play.yml", variables={"command": "true", "changes": True}, deadline_s=60, on_step=steps.append
    )
    assert not outcome.failures
    assert (outcome.values["localhost"].ok, outcome.values["localhost"].changed) == (1, 1)
    assert [(step.host, step.task, step.outcome) for step in steps] == [
        ("localhost", "Say it", "started"),
        ("localhost", "Say it", "changed"),
    ]


def test_a_failed_host_and_an_unreachable_one_stand_beside_a_good_one(playbooks: Path) -> None:
    here = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    hosts = {
        "good": here | {"command": "true"},
        "bad": here | {"command": "sh -c 'echo no space >&2; exit 3'"},
        "away": {"ansible_host": "127.0.0.1", "ansible_port": 1, "command": "true"},
    }
    outcome = run_playbook("play.yml", inventory={"all": {"hosts": hosts}}, deadline_s=60)
    assert set(outcome.values) == {"good"}
    assert set(outcome.failures) == {"bad", "away"}
    bad, away = outcome.failures["bad"], outcome.failures["away"]
    assert isinstance(bad, NodeError)
    assert (bad.where, bad.what) == ("bad", "'Say it' failed: no space (exit status 3)")
    assert isinstance(away, Unreachable)
    # where ssh has ended before Ansible has written to it, Ansible tells of its own pipe
    assert "Connection refused" in away.what or "Broken pipe" in away.what


@pytest.mark.turns(of="runner: what a run takes and leaves", play=2)
def test_an_inventory_file_and_a_choice_of_hosts(playbooks: Path, tmp_path: Path) -> None:
    inventory = tmp_path / "hosts.yml"
    inventory.write_text("all: {hosts: {a: {ansible_connection: local}, b: {ansible_connection: local}}}")
    outcome = run_playbook("play.yml", inventory=inventory, only=["b"], variables={"command": "true"}, deadline_s=60)
    assert set(outcome.values) == {"b"}


@pytest.mark.turns(of="runner: what a run takes and leaves", play=2)
def test_a_relative_key_counts_from_the_working_directory_as_for_ssh(
    playbooks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A stand-in for ssh that accepts only a key that it can read, and runs the command here."""
    ssh = tmp_path / "ssh"
    ssh.write_text(
        '#!/bin/sh\nkey=$(printf "%s\\n" "$@" | sed -n \'s/^IdentityFile="\\(.*\\)"$/\\1/p\')\n'
        'grep -q secret "$key" || exit 255\nfor last; do :; done\nexec sh -c "$last"\n'
    )
    ssh.chmod(0o755)
    here = tmp_path / "here"
    (here / "keys").mkdir(parents=True)
    (here / "keys" / "id").write_text("secret")
    monkeypatch.chdir(here)
    reach = {"ansible_ssh_executable": str(ssh), "ansible_python_interpreter": sys.executable}
    hosts = {"a": reach | {"ansible_ssh_private_key_file": "keys/id", "command": "true"}}
    outcome = run_playbook("play.yml", inventory={"all": {"hosts": hosts}}, deadline_s=60)
    assert set(outcome.values) == {"a"}


@pytest.mark.turns(of="runner: what a run takes and leaves", play=2)
def test_check_mode_changes_nothing(playbooks: Path, tmp_path: Path) -> None:
    made = tmp_path / "made"
    run_playbook("play.yml", variables={"command": f"touch {made}"}, check=True, deadline_s=60)
    assert not made.exists()


@pytest.mark.parametrize("inventory", ["all: [nonsense", "all: {hosts: {}}"], ids=["not YAML", "no host"])
def test_a_run_that_can_t_begin_is_the_input_s_fault(playbooks: Path, tmp_path: Path, inventory: str) -> None:
    hosts = tmp_path / "hosts.yml"
    hosts.write_text(inventory)
    with pytest.raises(InputError) as caught:
        run_playbook("play.yml", inventory=hosts, only=["node7"], variables={"command": "true"}, deadline_s=60)
    assert caught.value.what


@pytest.mark.turns(of="runner: ended early")
def test_a_deadline_ends_the_run_and_what_it_started(playbooks: Path, tmp_path: Path) -> None:
    started = tmp_path / "pid"
    command = f"sh -c 'echo $$ > {started}; exec sleep 300'"
    for deadline_s in (8, 60, 300):  # a busy machine takes longer to come as far as the task
        failure = run_playbook("play.yml", variables={"command": command}, deadline_s=deadline_s).failures["localhost"]
        if started.exists() and (pid := started.read_text()):
            break
    assert isinstance(failure, Unreachable)
    assert failure.what == f"did not end within {deadline_s} s; last task: 'Say it'"
    until(lambda: gone(int(pid)))


@pytest.mark.turns(of="runner: ended early")
def test_an_interrupt_while_it_runs_ends_it_and_is_raised(playbooks: Path, tmp_path: Path) -> None:
    started = tmp_path / "pid"

    def interrupt(step: HostEvent) -> None:
        until(started.exists if step.outcome != "started" else lambda: True)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_playbook("play.yml", variables={"command": f"touch {started}"}, deadline_s=60, on_step=interrupt)


@pytest.mark.turns(of="runner: what a run takes and leaves", play=2)
def test_no_ansible_settings_of_a_user_count(playbooks: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    settings = tmp_path / "ansible.cfg"
    settings.write_text(
        "[defaults]\nlibrary = /nonexistent\ncallbacks_enabled = nonsense.nonsense.nonsense\nforks = x\n"
    )
    monkeypatch.setenv("ANSIBLE_CONFIG", str(settings))
    monkeypatch.setenv("ANSIBLE_FORKS", "not a number")
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    assert run_playbook("play.yml", variables={"command": "true"}, deadline_s=60).values


@pytest.mark.turns(of="runner: what a run takes and leaves", play=2)
def test_nothing_is_left_in_the_temp_folder(playbooks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(scratch))
    run_playbook("play.yml", variables={"command": "true"}, deadline_s=60)
    assert not list(scratch.iterdir())


def test_the_tasks_of_each_play_are_counted_beside_a_run(playbooks: Path, tmp_path: Path) -> None:
    (tmp_path / "two.yml").write_text(TASKS + TASKS.replace("hosts: all", "hosts: router"))
    hosts = tmp_path / "hosts.yml"
    hosts.write_text("all: {hosts: {a: }}")
    assert runner.count_tasks("two.yml", inventory=hosts) == [1, 1]
    assert runner.count_tasks("none.yml", inventory=hosts) == []


NO_ZERO = "non-zero return code"


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({"msg": NO_ZERO, "rc": 2, "stderr": "tar: no such file\n", "stdout": ""}, "tar: no such file (exit status 2)"),
        ({"msg": NO_ZERO, "rc": 1, "stderr": "", "stdout": "ERROR: no space\n"}, "ERROR: no space (exit status 1)"),
        ({"msg": "Path /x does not exist !", "failed": True}, "Path /x does not exist !"),
        ({"msg": "the check failed", "stdout": "noise"}, "the check failed"),
        (
            {"msg": "MODULE FAILURE: see stdout/stderr", "module_stderr": "Traceback\nImportError: no json", "rc": 1},
            "Traceback | ImportError: no json (exit status 1)",
        ),
        ({"msg": NO_ZERO, "stderr": "WARNING: old pip\nERROR: No match", "rc": 1}, "ERROR: No match (exit status 1)"),
        ({"msg": NO_ZERO, "stderr": "WARNING: gave up"}, "WARNING: gave up"),
        (
            {"msg": "Module result deserialization failed: No start of json char found", "module_stdout": "",
             "module_stderr": "python3.13: command not found\n", "rc": 127},
            "python3.13: command not found (exit status 127)",
        ),
        (
            {"msg": "One or more items failed", "results": [
                {"item": "gcc", "failed": False},
                {"item": "numactl", "failed": True, "msg": "No package matching"},
                {"item": {"src": "a"}, "_ansible_item_label": "a", "failed": True, "msg": "refused"},
            ]},
            "numactl: No package matching; a: refused",
        ),
        ({"msg": NO_ZERO, "rc": 7, "stderr": ""}, NO_ZERO),
        ({}, "failed without a reason"),
    ],
)  # fmt: skip
def test_a_failure_says_why(result: dict[str, Any], said: str) -> None:
    assert failure_message(result) == said


def test_of_a_long_output_the_end_is_kept() -> None:
    said = failure_message({"msg": "non-zero return code", "stderr": "x" * 5000 + " the reason"})
    assert said.endswith("the reason")
    assert len(said) <= LONGEST_MESSAGE + len("...")


def test_a_host_without_an_answer_is_told_in_ssh_s_words() -> None:
    said = "Task failed: Failed to connect to the host via ssh: ssh: connect to host n1 port 22: Connection refused"
    assert unreachable_message({"unreachable": True, "msg": said}) == (
        "ssh: connect to host n1 port 22: Connection refused"
    )
    assert unreachable_message({}) == "does not answer"


SAID_BY_NODES = {
    "Missing sudo password": "--ask-become-pass",
    "Incorrect sudo password": "again",
    "sudo: a password is required (exit status 1)": "--ask-become-pass",
    "deploy is not in the sudoers file. (exit status 1)": "allow that user to become root",
    "/bin/sh: 1: sudo: not found (exit status 127)": "install sudo",
    "this needs root, and the tasks run as deploy": "--become",
    "[Errno 28] No space left on device": "free space",
    "No package matching 'numactl' is available": "system_packages_wanted",
    "ERROR: No matching distribution found for torch==2.13.0+cpu": "--find-links",
    "something that nobody has seen before": "",
}


@pytest.mark.parametrize("message", SAID_BY_NODES)
def test_what_is_known_to_go_wrong_has_a_way_out(message: str) -> None:
    told = advice(message)
    assert SAID_BY_NODES[message] in told
    assert bool(told) == bool(SAID_BY_NODES[message])


FILLED = "/tmp/l40s-ansible-1/local/ansible-local-2/tmp3/limits.conf.j2"


@pytest.mark.parametrize(
    ("res", "lines"),
    [
        ({}, []),
        ({"diff": []}, []),
        ({"diff": "odd"}, []),
        ({"path": "/d", "diff": {"before": {"state": "absent"}, "after": {"state": "directory"}}}, ["-state: absent"]),
        ({"diff": [{"prepared": "-old\n+new\n"}]}, ["-old", "+new"]),
        ({"diff": [{"before": "", "after": "a\n", "after_header": FILLED}]}, ["+++ limits.conf"]),
        (
            {
                "dest": "/x",
                "diff": [{"before": "a\nb\n", "after": "a\nc\n", "before_header": "/x", "after_header": "y"}],
            },
            ["--- /x", "+++ /x", "@@ -1,2 +1,2 @@", " a", "-b", "+c"],
        ),
    ],
    ids=["none", "empty", "no mapping", "a directory", "prepared", "a template's name", "a file's own name"],
)
def test_what_changed_is_shown_as_a_unified_diff(res: dict[str, Any], lines: list[str]) -> None:
    text = diff_text(res)
    assert set(lines) <= set(text.splitlines()) and bool(text) == bool(lines)
