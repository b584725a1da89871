"""Xid errors are counted once, however often the log is read."""

from __future__ import annotations

from pathlib import Path

from orchestrator.node.look.xids import Xids
from orchestrator.protocol.gauges import XidCount

RECORD = "4,{n},{n}000,-;NVRM: Xid (PCI:0000:3B:00): {xid}, pid=4711, name=python3, GPU has fallen off the bus.\n"


def test_new_records_add_to_what_was_counted(tmp_path: Path) -> None:
    log = tmp_path / "dev" / "kmsg"
    log.parent.mkdir()
    log.write_text("6,1,1,-;Linux version 6.1\n" + RECORD.format(n=2, xid=79))
    xids = Xids(str(tmp_path))
    assert xids.read() == xids.read() == (XidCount(pci_bus_id="0000:3b:00", xid=79, count=1),)
    with log.open("a") as file:
        file.write(RECORD.format(n=3, xid=79) + RECORD.format(n=4, xid=119))
    assert [(one.xid, one.count) for one in xids.read()] == [(79, 2), (119, 1)]


def test_another_log_is_counted_from_its_beginning(tmp_path: Path) -> None:
    log = tmp_path / "dev" / "kmsg"
    log.parent.mkdir()
    log.write_text(RECORD.format(n=2, xid=79))
    xids = Xids(str(tmp_path))
    assert xids.read()
    fresh = log.with_name("new")
    fresh.write_text(RECORD.format(n=1, xid=31))
    fresh.replace(log)
    assert [(one.xid, one.count) for one in xids.read()] == [(31, 1)]


def test_a_log_that_can_t_be_read_says_why(tmp_path: Path) -> None:
    xids = Xids(str(tmp_path))
    assert xids.read() == () and xids.error == "ENOENT"
