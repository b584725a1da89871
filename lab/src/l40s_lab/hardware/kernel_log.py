"""Lines of GPU and card drivers in the kernel's log on such a machine, as read from /dev/kmsg."""

from __future__ import annotations

from collections.abc import Iterator

from l40s_lab.hardware.edit import gpus, nic_with
from l40s_lab.hardware.machine import Gpu, NodeMachine


def render(node: NodeMachine, at_us: int = 90_000_000) -> str:
    """Records `priority,number,microseconds,-;text` (Documentation/ABI/testing/dev-kmsg); '' if nothing is wrong.

    at_us: their time, on the monotonic clock
    """
    return "".join(f"4,{2000 + number},{at_us + number},-;{text}\n" for number, text in enumerate(_complaints(node)))


def _complaints(node: NodeMachine) -> Iterator[str]:
    """Numbers and texts from NVIDIA's catalogue of Xid errors; failed links in the words of mlx5 (en_main.c)."""
    for interface in node.interfaces:
        found = nic_with(node.machine, interface.name)
        if found is not None and interface.enabled and not interface.carrier:
            yield f"mlx5_core {found[1].address} {interface.name}: Link down"
    for index, function in enumerate(gpus(node.machine)):
        card = function.card
        assert isinstance(card, Gpu)
        place = function.address.rpartition(".")[0]
        if card.lost:
            yield f"NVRM: Xid (PCI:{place}): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
            yield f"NVRM: GPU {function.address}: GPU has fallen off the bus."
        if card.uncorrected:
            yield (
                f"NVRM: Xid (PCI:{place}): 48, pid='<unknown>', name=<unknown>, An uncorrectable double bit error"
                " (DBE) has been detected on GPU in the framebuffer at partition 5, subpartition 0."
            )
            yield (
                f"NVRM: Xid (PCI:{place}): 63, pid='<unknown>', name=<unknown>, Row Remapper: New row"
                " (0x0000000001ff2134) marked for remapping, reset gpu to activate."
            )
        if node.machine.system.wedged and index == 0:
            yield (
                f"NVRM: Xid (PCI:{place}): 119, pid='<unknown>', name=<unknown>, Timeout after 6s of waiting for RPC"
                " response from GPU0 GSP! Expected function 76 (GSP_RM_CONTROL)."
            )
