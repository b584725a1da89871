"""Ansible's results, as its modules really write them, in the words that an operator reads."""

from __future__ import annotations

from typing import Any

import pytest

from orchestrator.host_setup.messages import LONGEST_MESSAGE, failure_message, unreachable_message

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
    "nothing at all": ({}, "failed, and gave no reason"),
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
