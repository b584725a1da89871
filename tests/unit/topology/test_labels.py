"""Serial numbers, BMC and switch ports from the output of boards, ipmitool and lldpcli."""

from __future__ import annotations

import pytest

from orchestrator.topology.labels import Bmc, bmc, serial, switch_ports

NEIGHBOURS = """\
lldp.ens1f0.via=LLDP
lldp.ens1f0.rid=2
lldp.ens1f0.age=9 days, 16:38:06
lldp.ens1f0.chassis.mac=80:6a:00:73:41:54
lldp.ens1f0.chassis.name=tor-413-1.example
lldp.ens1f0.chassis.descr=Juniper Networks, Inc. qfx5200-32c-32q
lldp.ens1f0.chassis.mgmt-ip=172.28.9.26
lldp.ens1f0.chassis.Bridge.enabled=on
lldp.ens1f0.port.ifname=et-0/0/1:3
lldp.ens1f0.port.descr=to node2
lldp.ens1f0.port.ttl=120
lldp.eno1.chassis.mac=80:6a:00:73:41:55
lldp.eno1.port.local=17
lldp.bond0.100.chassis.name=leaf-b
lldp.bond0.100.port.descr=Ethernet1/5
"""


def test_switch_and_port_by_interface() -> None:
    assert switch_ports(NEIGHBOURS) == {
        "ens1f0": "tor-413-1.example et-0/0/1:3",
        "eno1": "80:6a:00:73:41:55 17",
        "bond0.100": "leaf-b Ethernet1/5",
    }
    again = NEIGHBOURS.replace("tor-413-1.example", "first") + NEIGHBOURS
    assert switch_ports(again)["ens1f0"] == "first et-0/0/1:3"


@pytest.mark.parametrize("text", ["", "no neighbour", "lldp.=x\nlldp.eth0.port=\n", "\0" * 50, "lldp." + "a" * 5000])
def test_other_text_names_no_port(text: str) -> None:
    assert switch_ports(text) == {}


@pytest.mark.parametrize(
    ("said", "number"),
    [
        ({"chassis_serial": "C815", "product_serial": "S123"}, "C815"),
        ({"chassis_serial": "To Be Filled By O.E.M.", "product_serial": "S123"}, "S123"),
        ({"chassis_serial": "Default string", "product_serial": "0000000", "board_serial": "OM18"}, "OM18"),
        ({"chassis_serial": "None", "product_serial": " "}, ""),
        ({}, ""),
    ],
)
def test_a_chassis_is_known_by_its_own_number(said: dict[str, str], number: str) -> None:
    assert serial(said) == number


def test_the_bmcs_addresses() -> None:
    lines = ("IP Address Source       : DHCP Address", "IP Address              : 10.155.8.180",
             "MAC Address             : 00:26:fd:a0:0d:52")  # fmt: skip
    assert bmc(lines) == Bmc("10.155.8.180", "00:26:fd:a0:0d:52")
    assert bmc(("IP Address              : 0.0.0.0",)) == bmc(()) == Bmc()
