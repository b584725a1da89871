"""The driver's messages in the kernel's log: only its own lines, and a reason if there are none."""

from __future__ import annotations

from pathlib import Path

from orchestrator.node.look.kernel_log import Xids, driver_errors
from orchestrator.protocol.gauges import XidCount

XID = "3,1201,73000,-;NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def log(root: Path, text: bytes) -> str:
    (root / "dev").mkdir()
    (root / "dev/kmsg").write_bytes(text)
    return str(root)


def test_lines_with_an_xid_are_kept_as_they_are(tmp_path: Path) -> None:
    root = log(tmp_path, f"6,1,1,-;Linux version 6.8\n{XID}\n SUBSYSTEM=pci\n".encode())
    assert driver_errors(root) == {"xid": [XID]}


def test_a_log_without_any_is_not_the_same_as_no_log(tmp_path: Path) -> None:
    xids = Xids(str(tmp_path))
    assert (driver_errors(str(tmp_path)), xids.read(), xids.error) == ({"error": "ENOENT"}, (), "ENOENT")
    assert driver_errors(log(tmp_path, b"")) == {"xid": []}
    (tmp_path / "dev/kmsg").unlink()
    (tmp_path / "dev/kmsg").mkdir()
    assert driver_errors(str(tmp_path)) == {"error": "EISDIR"}


def test_the_last_ones_are_kept_of_very_many_and_of_any_bytes(tmp_path: Path) -> None:
    lines = [b"4,%d,1,-;NVRM: Xid (PCI:0000:18:00): %d, \xff\xfe" % (number, number) for number in range(400)]
    found = driver_errors(log(tmp_path, b"\n".join(lines)))["xid"]
    assert len(found) == 50
    assert "Xid (PCI:0000:18:00): 399," in found[-1]


RECORD = "4,{n},{n}000,-;NVRM: Xid (PCI:0000:3B:00): {xid}, pid=4711, name=python3, GPU has fallen off the bus.\n"


def test_new_records_add_to_what_was_counted_and_another_log_is_counted_from_its_beginning(tmp_path: Path) -> None:
    root = log(tmp_path, ("6,1,1,-;Linux version 6.1\n" + RECORD.format(n=2, xid=79)).encode())
    xids, kmsg = Xids(root), tmp_path / "dev/kmsg"
    assert xids.read() == xids.read() == (XidCount(pci_bus_id="0000:3b:00", xid=79, count=1),)
    with kmsg.open("a") as file:
        file.write(RECORD.format(n=3, xid=79) + RECORD.format(n=4, xid=119))
    assert [(one.xid, one.count) for one in xids.read()] == [(79, 2), (119, 1)]
    fresh = kmsg.with_name("new")
    fresh.write_text(RECORD.format(n=1, xid=31))
    fresh.replace(kmsg)
    assert [(one.xid, one.count) for one in xids.read()] == [(31, 1)]
