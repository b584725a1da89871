from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import replace

from l40s_lab.hardware import pci
from l40s_lab.hardware.machine import Gpu, Machine, NodeMachine, PciePort, RootComplex

Make = Callable[..., NodeMachine]


def test_bus_numbers_are_given_depth_first_and_never_twice(node: Make) -> None:
    layout = pci.lay_out(node().machine)
    addresses = [function.address for function in layout.functions]
    assert len(set(addresses)) == len(addresses)
    assert [one.address for one in layout.functions if isinstance(one.card, Gpu)] == [
        f"0000:{bus:02x}:00.0" for bus in (0x18, 0x19, 0x1A, 0x1B, 0x9A, 0x9B, 0x9C, 0x9D)
    ]
    for function in layout.functions:
        above = next((one for one in layout.functions if one.path == function.path.rpartition("/")[0]), None)
        if above is not None:
            assert above.buses is not None
            bus = int(function.address[5:7], 16)
            assert above.buses[1] == bus
            assert above.buses[0] < bus <= above.buses[2]


def test_a_slot_says_what_is_behind_it(node: Make) -> None:
    slots = {slot.name: slot for slot in pci.lay_out(node("wrong").machine).slots}
    assert slots["17"].address == "0000:b8:00"
    assert slots["17"].now == 4, "the card in the wrong place"
    assert slots["15"].now == 0, "its own slot is empty"


def test_configuration_space_holds_ids_buses_and_capabilities(node: Make) -> None:
    layout = pci.lay_out(node().machine)
    upstream = next(one for one in layout.functions if one.kind == pci.UPSTREAM)
    space = pci.config_space(upstream)
    assert len(space) == 4096
    assert struct.unpack_from("<HH", space, 0) == (0x1000, 0xC010)
    assert space[0x0E] & 0x7F == 1
    assert tuple(space[0x18:0x1B]) == upstream.buses
    assert space[space[0x34]] == 0x10
    card = next(one for one in layout.functions if one.port)
    assert struct.unpack_from("<H", pci.config_space(card), 0x40 + 8)[0] >> 12 & 7 == 5, "MaxReadReq 4096"


def capability(space: bytes, wanted: int) -> int:
    at = 0x100
    while at:
        (header,) = struct.unpack_from("<I", space, at)
        if header & 0xFFFF == wanted:
            return at
        at = header >> 20
    return 0


def test_acs_redirects_show_in_the_control_word_of_the_port_only() -> None:
    port = PciePort(device=1, card=Gpu())
    for acs, control in ((False, 0), (True, 0x1D)):
        root = RootComplex(bus=0x10, numa=0, ports=(replace(port, acs=acs),))
        bridge, gpu = pci.lay_out(Machine(primary="x", roots=(root,))).functions
        at = capability(pci.config_space(bridge), 0x000D)
        assert struct.unpack_from("<H", pci.config_space(bridge), at + 6) == (control,)
        assert capability(pci.config_space(gpu), 0x000D) == 0
