"""Ansible's results in the words of an operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LONGEST_MESSAGE = 2000
"""Characters kept of one message; the end of an output holds the reason, so the beginning is dropped."""

_UNHELPFUL = ("non-zero return code", "MODULE FAILURE", "Module result deserialization failed")


def failure_message(result: Mapping[str, Any]) -> str:
    """What went wrong, from a failed task's `res`.

    A command's own words (stderr, else stdout) stand where Ansible only says that it failed; a loop's failed items
    are named. Never empty.
    """
    items = [item for item in result.get("results") or () if isinstance(item, Mapping) and item.get("failed")]
    if items:
        return _shortened("; ".join(f"{_item(item)}: {failure_message(item)}" for item in items))
    message = str(result.get("msg") or "").strip()
    output = str(result.get("stderr") or result.get("module_stderr") or "").strip()
    output = output or str(result.get("stdout") or result.get("module_stdout") or "").strip()
    if message and not (output and message.startswith(_UNHELPFUL)):
        return _shortened(message)
    if output:
        status = result.get("rc")
        return _shortened(output) + (f" (exit status {status})" if isinstance(status, int) else "")
    return "failed, and gave no reason"


def unreachable_message(result: Mapping[str, Any]) -> str:
    """Why a host could not be reached, without Ansible's advice about its own options."""
    message = str(result.get("msg") or "").strip()
    message = message.removeprefix("Task failed: ").removeprefix("Failed to connect to the host via ssh: ")
    return _shortened(message) or "does not answer"


def _item(result: Mapping[str, Any]) -> str:
    label = result.get("_ansible_item_label", result.get("item", "?"))
    return str(label) if isinstance(label, (str, int)) else "item"


def _shortened(text: str) -> str:
    """One line; warnings are left out where something else was said."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    said = [line for line in lines if not line.startswith(("WARNING", "[WARNING]"))] or lines
    joined = " | ".join(said)
    return joined if len(joined) <= LONGEST_MESSAGE else "..." + joined[-LONGEST_MESSAGE:]
