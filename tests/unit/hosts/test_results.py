"""Ansible's results, as its modules really write them, as messages for the operator."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.hosts.results import LONGEST_MESSAGE, advice, diff_text, failure_message, unreachable_message

CASES: dict[str, tuple[dict[str, Any], str]] = {
    "a command's own words": (
        {"msg": "non-zero return code", "rc": 2, "stderr": "tar: no such file\n", "stdout": "", "failed": True},
        "tar: no such file (exit status 2)",
    ),
    "stdout where stderr is empty": (
        {"msg": "non-zero return code", "rc": 1, "stderr": "", "stdout": "ERROR: no space\n"},
        "ERROR: no space (exit status 1)",
    ),
    "a module's message": ({"msg": "Path /x does not exist !", "failed": True}, "Path /x does not exist !"),
    "a message beats the output where it says something": (
        {"msg": "the check failed", "stdout": "noise"},
        "the check failed",
    ),
    "a module that crashed": (
        {"msg": "MODULE FAILURE: see stdout/stderr", "module_stderr": "Traceback\nImportError: no json", "rc": 1},
        "Traceback | ImportError: no json (exit status 1)",
    ),
    "an error among warnings": (
        {"msg": "non-zero return code", "stderr": "WARNING: an old pip\nERROR: No matching distribution", "rc": 1},
        "ERROR: No matching distribution (exit status 1)",
    ),
    "only a warning": ({"msg": "non-zero return code", "stderr": "WARNING: gave up"}, "WARNING: gave up"),
    "an interpreter that isn't one": (
        {
            "msg": "Module result deserialization failed: No start of json char found",
            "module_stdout": "",
            "module_stderr": "python3.13: command not found\n",
            "rc": 127,
        },
        "python3.13: command not found (exit status 127)",
    ),
    "the failed items of a loop": (
        {
            "msg": "One or more items failed",
            "results": [
                {"item": "gcc", "failed": False},
                {"item": "numactl", "failed": True, "msg": "No package matching"},
                {"item": {"src": "a"}, "_ansible_item_label": "a", "failed": True, "msg": "refused"},
            ],
        },
        "numactl: No package matching; a: refused",
    ),
    "a command that said nothing": ({"msg": "non-zero return code", "rc": 7, "stderr": ""}, "non-zero return code"),
    "nothing at all": ({}, "failed without a reason"),
}


@pytest.mark.parametrize("case", CASES)
def test_a_failure_says_why(case: str) -> None:
    result, expected = CASES[case]
    assert failure_message(result) == expected


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


def test_a_changed_file_is_shown_as_a_unified_diff_under_its_own_name() -> None:
    res = {
        "dest": "/etc/x",
        "diff": [{"before": "a\nb\n", "after": "a\nc\n", "before_header": "/etc/x", "after_header": "y"}],
    }
    assert diff_text(res).splitlines() == ["--- /etc/x", "+++ /etc/x", "@@ -1,2 +1,2 @@", " a", "-b", "+c"]


def test_a_new_file_of_a_template_has_the_template_s_name() -> None:
    filled = "/tmp/l40s-ansible-1/local/ansible-local-2/tmp3/limits.conf.j2"
    assert (
        "+++ limits.conf" in diff_text({"diff": [{"before": "", "after": "a\n", "after_header": filled}]}).splitlines()
    )


@pytest.mark.parametrize(
    ("res", "lines"),
    [
        ({}, []),
        ({"diff": []}, []),
        ({"diff": "odd"}, []),
        ({"path": "/d", "diff": {"before": {"state": "absent"}, "after": {"state": "directory"}}}, ["-state: absent"]),
        ({"diff": [{"prepared": "-old\n+new\n"}]}, ["-old", "+new"]),
    ],
    ids=["none", "empty", "no mapping", "a directory", "prepared"],
)
def test_other_shapes_of_diffs(res: dict[str, Any], lines: list[str]) -> None:
    text = diff_text(res)
    assert all(line in text.splitlines() for line in lines)
    assert bool(text) == bool(lines)
