"""The command that puts bad files right: from a good copy, only what differs."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping, Sequence

from orchestrator.checkpoint.copies import FileDifference


def repair_command(source: str, node: str, name: str = "") -> str:
    """source: a directory of this machine, or NODE:/path; name: of the copy, where it is not the source's own."""
    other = name and _last(source) != name
    words = [
        "l40s-deploy",
        "checkpoint",
        "push",
        source,
        "--node",
        node,
        *(["--as", name] if other else []),
        "--repair",
    ]
    return shlex.join(words)


def repairs(
    differences: Sequence[FileDifference], directories: Mapping[str, str], read: Sequence[str]
) -> Iterator[str]:
    """What to do about copies that differ, one line each. read: nodes whose copy could be read."""
    odd = dict.fromkeys(node for one in differences for node in one.odd if not one.is_extra)
    good = next((node for node in read if not any(node in one.odd for one in differences)), None)
    if good is not None:
        for node in odd:
            yield repair_command(f"{good}:{directories[good]}", node, _last(directories[node]))
    for one in differences:
        if one.is_extra:
            yield f"remove {one.path} on {', '.join(one.odd)}: the other nodes do not have it"
    if any(not one.odd for one in differences) or (odd and good is None):
        first, *others = read
        command = repair_command(f"{first}:{directories[first]}", ",".join(others))
        yield f"find the right copy by its publisher's checksums, then push from that one: {command}"


def _last(path: str) -> str:
    return path.rstrip("/").rpartition("/")[2].rpartition(":")[2]
