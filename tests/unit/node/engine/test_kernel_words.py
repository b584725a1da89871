"""The kernel's reason for a rank's death: its own GPU's Xid, or the OOM killer; the words are the kernel's own."""

from __future__ import annotations

import pytest

from orchestrator.node.engine.kernel_words import NEAR_S, of_rank

LOST = "NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
OOM = "Out of memory: Killed process 4711 (sglang::schedul) total-vm:181232kB, anon-rss:99kB, file-rss:0kB, UID:0"
CGROUP = "Memory cgroup out of memory: Killed process 4711 (sglang::schedul) total-vm:181232kB"
NOW_S = 1000.0


def record(text: str, ago_s: float = 1.0) -> str:
    return f"3,1201,{int((NOW_S - ago_s) * 1e6)},-;{text}"


@pytest.mark.parametrize(
    ("text", "place", "signature"),
    [
        (LOST, "00000000:9B:00.0", "XID-79"),
        (LOST, "0000:9b:00.0", "XID-79"),
        (LOST, "00000000:1B:00.0", ""),
        (LOST, "", ""),
        (LOST.replace(": 79,", ": 45,"), "0000:9b:00.0", ""),
        (LOST.replace(": 79,", ": 48,"), "0000:9b:00.0", "XID-48"),
        (OOM, "", "OUT-OF-MEMORY"),
        (CGROUP, "", "OUT-OF-MEMORY"),
        (OOM.replace("4711", "4712"), "", ""),
        ("usb 1-1: new device", "0000:9b:00.0", ""),
    ],
)
def test_a_reason_is_of_this_gpu_or_this_process(text: str, place: str, signature: str) -> None:
    found = of_rank(
        ["6,1,1,-;Linux version 6.8", record(text), " SUBSYSTEM=pci", ""], NOW_S, pid=4711, gpu=5, place=place
    )
    assert (found.signature if found else "") == signature
    if found is not None:
        assert found.line == text and found.text and found.fix


def test_what_is_long_past_is_no_reason_and_the_newest_is() -> None:
    old = record(LOST, NEAR_S + 1)
    assert of_rank([old], NOW_S, pid=1, gpu=5, place="0000:9b:00.0") is None
    found = of_rank([record(OOM, 3.0), record(LOST, 2.0)], NOW_S, pid=4711, gpu=5, place="0000:9b:00.0")
    assert found is not None and found.text == "GPU 5 fell off the bus (Xid 79)"
