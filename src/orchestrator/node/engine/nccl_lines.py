"""NCCL's log lines about its transport in this start, saved beside the report once a gang is ready.

The controller interprets them; here they are only extracted, without their process ids and without duplicates.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable

from orchestrator.node import files
from orchestrator.node.agent.run import Run
from orchestrator.node.files import ENGINE_LOG
from orchestrator.protocol.report import TransportLines

MOST_LINES = 300

_SAYS = re.compile(
    rb"NCCL INFO (NET/\w+ : (?:Using|GPU Direct|Made virtual)|Using network|comm 0x\w+ rank \d+ nRanks|"
    rb"\d+ coll channels|Channel \d+/\d+ : .{0,128} via NET/|NCCL version|NET/\w+ : No device)"
)
_WHO = re.compile(rb"^.*NCCL INFO ")
_COMM = re.compile(rb"comm 0x\w+ rank \d+")
_CHANNEL = re.compile(rb"Channel \d+/\d+ : .{0,128} via NET/")


def note(run: Run) -> None:
    """Extract the lines from the engine's log and save them. Reads the log once."""
    found: dict[str, None] = {}
    for name in (f"{ENGINE_LOG}.1", ENGINE_LOG):
        with contextlib.suppress(OSError), open(run.path(name), "rb") as file:
            _pick(file, found)
    with contextlib.suppress(OSError):
        said = TransportLines(network=run.network, lines=tuple(found))
        files.write_json(run.path(files.TRANSPORT_FILE), said.as_json())


def _pick(lines: Iterable[bytes], found: dict[str, None]) -> None:
    for line in lines:
        if len(found) >= MOST_LINES:
            return
        if _SAYS.search(line):
            words = _COMM.sub(b"comm", _WHO.sub(b"", line.rstrip()))
            words = _CHANNEL.sub(b"Channel 00/0 : any via NET/", words)
            found.setdefault(words.decode("utf-8", "replace")[:500])
