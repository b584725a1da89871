"""The verb `labels`: files and programs that may exist, be unreadable, slow or missing."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.node.look import labels
from orchestrator.protocol.looks import LabelsAnswer

LAN = """Set in Progress         : Set Complete
IP Address Source       : Static Address
IP Address              : 10.12.4.62
MAC Address             : 3c:ec:ef:2f:7a:79
SNMP Community String   : public
"""


def program(folder: Path, name: str, script: str) -> None:
    (folder / name).write_text(f"#!/bin/sh\n{script}\n")
    (folder / name).chmod(0o755)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(labels, "_FOLDERS", (str(tmp_path / "bin"), "/bin"))
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


def answered(root: Path) -> LabelsAnswer:
    found = LabelsAnswer.read(labels.answer({"fs_root": str(root)}))
    assert isinstance(found, LabelsAnswer)
    return found


def test_what_is_there_is_kept_and_the_community_is_not(tools: Path, tmp_path: Path) -> None:
    program(tools, "ipmitool", f"[ \"$*\" = 'lan print' ] && cat <<'X'\n{LAN}X")
    program(tools, "lldpcli", "echo lldp.eth0.chassis.name=leaf-a")
    dmi, bonds = tmp_path / "sys/class/dmi/id", tmp_path / "proc/net/bonding"
    dmi.mkdir(parents=True)
    bonds.mkdir(parents=True)
    (dmi / "chassis_serial").write_text("C815\n")
    (bonds / "bond0").write_text(
        "Bonding Mode: IEEE 802.3ad\nSlave Interface: ens9f0np0\nMII Status: up\nPermanent HW addr: b8:ce:f6:00:00:08\n"
    )
    found = answered(tmp_path)
    assert found.serials == {"chassis_serial": "C815"}
    assert found.bmc == ("IP Address              : 10.12.4.62", "MAC Address             : 3c:ec:ef:2f:7a:79")
    assert found.neighbours == "lldp.eth0.chassis.name=leaf-a\n"
    assert found.macs == {"ens9f0np0": "b8:ce:f6:00:00:08"}
    assert found.unread == {}


def test_what_is_missing_fails_or_hangs_is_said(tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert answered(tmp_path).unread == {
        "bmc": "ipmitool is not installed", "neighbours": "lldpcli is not installed",
    }  # fmt: skip
    monkeypatch.setattr(labels, "_DEADLINE_S", 0.5)
    program(tools, "ipmitool", "echo 'Could not open device at /dev/ipmi0' >&2; exit 1")
    program(tools, "lldpcli", "exec sleep 60")
    found = answered(tmp_path)
    assert found.unread["bmc"] == "ipmitool: Could not open device at /dev/ipmi0"
    assert found.unread["neighbours"] == "lldpcli gave no answer within 0.5 s"
