"""Ansible's results in the words of an operator."""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

LONGEST_MESSAGE = 2000
"""Characters kept of one message. The beginning is dropped: an output ends with the reason."""

_UNHELPFUL = ("non-zero return code", "MODULE FAILURE", "Module result deserialization failed")


def failure_message(result: Mapping[str, Any]) -> str:
    """What went wrong, from a failed task's `res`. Never empty.

    A command's own words (stderr, else stdout) take the place of a message that says only that it failed; of a loop,
    the failed items are named.
    """
    items = [item for item in result.get("results") or () if isinstance(item, Mapping) and item.get("failed")]
    if items:
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


DIFFERS = "DO NOT MATCH THE HASHES"
"""What pip says of a file that is not among those that the lock was made with."""
HASHES_DIFFER = (
    "find out who changed that package: it is not the file that the lock was made with; where the lock lacks only this "
    "Python's wheel, add it from a place that you trust: scripts/lock_hashes.py LOCK --python VERSION"
)
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
        "give pip an index that has it (`--find-links`), or install from a bundle (`l40s-deploy stack build`)"
    ),
}
"""Words that sudo, pip and apt are known to use -> what to do about it."""


def advice(message: str) -> str:
    """What an operator can do about a failure, '' where nothing is known."""
    return next((fix for pattern, fix in _ADVICE.items() if re.search(pattern, message)), "")


def diff_text(result: Mapping[str, Any]) -> str:
    """What a task changed or would change, as unified diffs, file by file; '' if it has none."""
    told = result.get("diff") or []
    several = told if isinstance(told, list) else [told]
    place = str(result.get("dest") or result.get("path") or "")
    return "\n".join(text for one in several if isinstance(one, Mapping) and (text := _unified(one, place)))


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
    said = [line for line in lines if not line.startswith(("WARNING", "[WARNING]"))] or lines
    joined = " | ".join(said)
    return joined if len(joined) <= LONGEST_MESSAGE else "..." + joined[-LONGEST_MESSAGE:]
