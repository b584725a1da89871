"""The kernel's reason for a rank's death: its GPU, its process, the gang's network, its memory; in the kernel's words.

The lines are as the kernel's and NVIDIA's sources print them; dev_printk puts driver and device before the text, and
netdev_printk the interface too.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from orchestrator.node.engine.kernel_words import NEAR_S, DeadProcess, Devices, reason

LOST = "NVRM: Xid (PCI:0000:9b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
OOM = "Out of memory: Killed process 4711 (sglang::schedul) total-vm:181232kB, anon-rss:99kB, file-rss:0kB, UID:0"
CGROUP = "Memory cgroup out of memory: Killed process 4711 (sglang::schedul) total-vm:181232kB"
SIGBUS = "Memory failure: 0x1021ad: Sending SIGBUS to sglang::schedul:4711 due to hardware memory corruption"
AER = "nvidia 0000:9b:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Requester ID)"
AER_NEW = (
    "nvidia 0000:9b:00.0: AER: PCIe Bus Error: severity=Uncorrectable (Non-Fatal), type=Data Link Layer, (Receiver ID)"
)
AER_ABOVE = (
    "pcieport 0000:99:04.0: AER: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)"
)
AER_CARD = (
    "mlx5_core 0000:9e:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, (Requester ID)"
)
AER_MILD = "nvidia 0000:9b:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)"
DPC = "pcieport 0000:99:04.0: DPC: containment event, status:0x1f01 source:0x0000"
MLX5 = "mlx5_core 0000:9e:00.0 ens3f0np0: Link down"
BNXT = "bnxt_en 0000:9e:00.0 ens3f0np0: NIC Link is Down"
MLX5_UP = "mlx5_core 0000:9e:00.0 ens3f0np0: Link up"
BOND = "bond0: now running without any active interface!"
MCE = "mce: [Hardware Error]: CPU 2: Machine Check Exception: 5 Bank 5: bea0000000000108"
MCE_MILD = "mce: [Hardware Error]: Machine check events logged"
EDAC = (
    "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0 (channel:0 slot:0 page:0x1021ad offset:0x180)"
)
EDAC_MILD = EDAC.replace("1 UE", "4858 CE")
NOW_S = 1000.0
DEAD = DeadProcess(
    pid=4711,
    gpu=5,
    place="00000000:9B:00.0",
    around=Devices(
        above=("0000:99:04.0", "0000:98:00.0", "0000:97:01.0"),
        network={"bond0": "", "ens3f0np0": "mlx5_2"},
        cards={"0000:9e:00.0": "mlx5_2"},
    ),
)


def record(text: str, ago_s: float = 1.0) -> str:
    return f"3,1201,{int((NOW_S - ago_s) * 1e6)},-;{text}"


def signature(text: str, dead: DeadProcess = DEAD) -> str:
    found = reason(["6,1,1,-;Linux version 6.8", record(text), " SUBSYSTEM=pci", ""], NOW_S, dead)
    if found is None:
        return ""
    assert found.line == text and found.text and found.fix
    return found.signature


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (LOST, "XID-79"),
        (LOST.replace(": 79,", ": 48,"), "XID-48"),
        (LOST.replace(": 79,", ": 45,"), ""),
        (LOST.replace("9b", "1b"), ""),
        (OOM, "OUT-OF-MEMORY"),
        (CGROUP, "OUT-OF-MEMORY"),
        (OOM.replace("4711", "4712"), ""),
        (SIGBUS, "MEMORY-BROKEN"),
        (SIGBUS.replace("4711", "4712"), ""),
        (AER, "PCIE-ERROR"),
        (AER_NEW, "PCIE-ERROR"),
        (AER_ABOVE, "PCIE-ERROR"),
        (AER_CARD, "PCIE-ERROR"),
        (AER_MILD, ""),
        (AER.replace("9b", "9c"), ""),
        (DPC, "PCIE-ERROR"),
        (MLX5, "NIC-DOWN"),
        (BNXT, "NIC-DOWN"),
        (MLX5_UP, ""),
        (MLX5.replace("ens3f0np0", "ens20np0"), ""),
        (BOND, "NIC-DOWN"),
        (MCE, "MACHINE-CHECK"),
        (MCE_MILD, ""),
        (EDAC, "MACHINE-CHECK"),
        (EDAC_MILD, ""),
        ("usb 1-1: new device", ""),
    ],
)
def test_what_a_line_says_of_a_death(text: str, said: str) -> None:
    assert signature(text) == said


@pytest.mark.parametrize("place", ["0000:9b:00.0", "00000000:9B:00.0"])
def test_nvml_and_the_kernel_write_one_address(place: str) -> None:
    assert signature(LOST, replace(DEAD, place=place)) == "XID-79"
    assert signature(AER, replace(DEAD, place=place)) == "PCIE-ERROR"
    assert signature(LOST, replace(DEAD, place="")) == signature(AER, replace(DEAD, place="")) == ""


@pytest.mark.parametrize(
    ("signal", "explained", "said"),
    [
        (9, False, {"XID-79", "OUT-OF-MEMORY", "MEMORY-BROKEN"}),  # somebody's, or the OOM killer's
        (15, False, {"XID-79", "OUT-OF-MEMORY", "MEMORY-BROKEN"}),
        (6, True, {"XID-79", "OUT-OF-MEMORY", "MEMORY-BROKEN"}),  # its log says why
        (6, False, {"XID-79", "OUT-OF-MEMORY", "MEMORY-BROKEN", "PCIE-ERROR", "NIC-DOWN"}),
        (7, False, {"XID-79", "OUT-OF-MEMORY", "MEMORY-BROKEN", "PCIE-ERROR", "NIC-DOWN", "MACHINE-CHECK"}),
        (None, False, {"XID-79", "OUT-OF-MEMORY", "MEMORY-BROKEN", "PCIE-ERROR", "NIC-DOWN", "MACHINE-CHECK"}),
    ],
)
def test_a_fault_nearby_explains_only_what_it_can(signal: int | None, explained: bool, said: set[str]) -> None:
    dead = replace(DEAD, signal=signal, explained=explained)
    assert {signature(text, dead) for text in (LOST, OOM, SIGBUS, AER, MLX5, MCE)} - {""} == said


def test_what_is_long_past_is_no_reason_and_the_newest_is() -> None:
    assert reason([record(LOST, NEAR_S + 1)], NOW_S, DEAD) is None
    old, new = LOST.replace(": 79,", ": 48,"), LOST
    found = reason([record(old, 3.0), record(new, 2.0)], NOW_S, DEAD)
    assert found is not None and found.text == "GPU 5 fell off the bus (Xid 79)"


def test_of_several_the_nearest_to_the_process_counts() -> None:
    lines = [MCE, MLX5, AER_ABOVE, LOST]
    for last in range(len(lines), 0, -1):
        found = reason([record(text, 20.0 - place) for place, text in enumerate(reversed(lines[:last]))], NOW_S, DEAD)
        assert found is not None and found.line == lines[last - 1]


def test_words_name_the_device() -> None:
    def text(line: str) -> str:
        found = reason([record(line)], NOW_S, DEAD)
        assert found is not None
        return found.text

    assert text(MLX5) == "the link of ens3f0np0 (mlx5_2) went down"
    assert text(AER) == "PCIe error at GPU 5 (Uncorrected (Fatal))"
    assert text(AER_ABOVE) == "PCIe error at 0000:99:04.0, above GPU 5 (Uncorrected (Fatal))"
    assert text(AER_CARD) == "PCIe error at the card of mlx5_2 (Uncorrected (Non-Fatal))"
