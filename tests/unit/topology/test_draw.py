"""The drawing: positions, and what is highlighted."""

from __future__ import annotations

from collections.abc import Iterator

from tests.support.machine_files import PLX, MachineFiles, reference_machine

from orchestrator.topology.build import build
from orchestrator.topology.draw import TreeLine, summary, tree
from orchestrator.topology.network import tcp_interface


def walk(part: TreeLine) -> Iterator[TreeLine]:
    yield part
    for child in part.children:
        yield from walk(child)


def drawn(machine: MachineFiles) -> TreeLine:
    topology = build(machine.snapshot())
    return tree(topology, tcp_interface({topology.node: topology}).get(topology.node))


def one(root: TreeLine, kind: str, words: str) -> TreeLine:
    (found,) = [part for part in walk(root) if part.kind == kind and words in part.label]
    return found


def test_a_right_node() -> None:
    root = drawn(reference_machine())
    assert root.label == "node0  driver 570.86.10  Intel(R) Xeon(R) Platinum 8462Y+"
    assert [part for part in walk(root) if part.fault] == []
    switch = one(root, "switch", "0000:98:00.0")
    assert one(root, "numa", "NUMA 1").children == (switch,)
    assert [part.kind for part in switch.children] == ["gpu"] * 4 + ["nic"]
    assert switch.children[0].label == "GPU 4  0000:9a:00.0  NVIDIA L40S  45.0 GiB  2.5 GT/s x16 (idle; can 16)"
    nic = switch.children[-1]
    assert nic.label == "NIC  0000:9e:00  ConnectX-6 Dx  slot 6  16 GT/s x16"
    assert [port.label for port in nic.children] == [
        "mlx5_2  port 1  ACTIVE  100 Gb/s  Ethernet  ens3f0np0  10.3.0.11/24  MTU 9000  GID 3",
        "mlx5_3  port 1  ACTIVE  100 Gb/s  Ethernet  ens3f1np1  10.4.0.11/24  MTU 9000  GID 3",
    ]
    assert one(root, "root", "0000:37:01.0").children[0].label.startswith("NIC  0000:38:00")
    assert one(root, "interface", "bond of").label == (
        "bond0  bond of ens9f0np0, ens9f1np1  10.0.0.11/24  MTU 9000  200 Gb/s  TCP side"
    )


def test_the_drawing_judges_nothing_and_shows_the_marks_that_it_is_given() -> None:
    topology = build(reference_machine(right=False).snapshot())
    side = tcp_interface({topology.node: topology}).get(topology.node)
    assert not [part for part in walk(tree(topology, side)) if part.fault]
    marks = {
        "0000:c1:00": "away",
        "0000:98:00.0": "lonely",
        "mlx5_1": "no link",
        "ens3f0np0": "slow",
        "0000:9b:00.0": "x8",
    }
    root = tree(topology, side, marks)
    assert one(root, "nic", "0000:c1:00").fault == "away"
    assert one(root, "switch", "0000:98:00.0").fault == "lonely"
    assert one(root, "gpu", "0000:9b:00.0").fault == "x8"
    assert [part.fault for part in walk(root) if part.kind == "port" and part.fault] == ["no link", "slow"]
    assert "DOWN (Disabled)" in one(root, "port", "mlx5_1").label
    assert one(root, "port", "mlx5_4").label.endswith("10.0.0.11/24  MTU 9000  GID 3  TCP side")


def test_summaries() -> None:
    assert summary(build(reference_machine().snapshot())) == (
        "8 GPUs (NVIDIA L40S), 2 PCIe switches with 4 + 4 GPUs, 3 NICs, 5 of 5 RDMA ports active"
    )
    assert summary(build(reference_machine(right=False).snapshot())) == (
        "8 GPUs (NVIDIA L40S), 2 PCIe switches with 4 + 4 GPUs, 3 NICs, 1 of 6 RDMA ports active"
    )
    assert summary(build(MachineFiles().snapshot())) == "0 GPUs, 0 NICs, no RDMA port"


def test_states_of_gpus_and_links() -> None:
    machine = MachineFiles()
    upstream = machine.switch(machine.root_port(0x15), 0x16)
    machine.gpu(machine.downstream(upstream, 0x17, 0), 0x18, width=8)
    machine.gpu(machine.downstream(upstream, 0x17, 4), 0x19)
    machine.devices[1] = {"index": 1, "errors": {"nvmlDeviceGetHandleByIndex": "GPU is lost"}}
    machine.write(upstream, {"current_link_speed": "8.0 GT/s PCIe"})
    root = drawn(machine)
    assert one(root, "gpu", "GPU 0").label.endswith("2.5 GT/s x8 (can 16 x16)")
    assert one(root, "gpu", "GPU 1").label.endswith("lost: GPU is lost")
    assert one(root, "switch", "0000:16:00.0").label.endswith("8 GT/s x16 (can 16)")


def test_a_nested_switch_hangs_below_the_one_above() -> None:
    machine = MachineFiles()
    upper = machine.switch(machine.root_port(0x10), 0x11, ids=PLX)
    lower = machine.switch(machine.downstream(upper, 0x12, 4), 0x20, ids=PLX)
    machine.gpu(machine.downstream(lower, 0x21, 0), 0x22)
    machine.nic(machine.downstream(upper, 0x12, 8), 0x30, ["eth0"])
    top = one(drawn(machine), "switch", "0000:11:00.0")
    assert [part.kind for part in top.children] == ["switch", "nic"]
    assert [part.kind for part in top.children[0].children] == ["gpu"]


def test_every_gpu_and_card_is_drawn_once() -> None:
    root = drawn(reference_machine())
    assert sum(part.kind == "gpu" for part in walk(root)) == 8
    assert sum(part.kind == "nic" for part in walk(root)) == 3
    assert sum(part.kind == "port" for part in walk(root)) == 5


def test_a_gpu_that_only_nvml_shows_and_a_silent_driver() -> None:
    machine = MachineFiles()
    machine.gpu(machine.root_port(0x10), 0x11)
    bare = build(machine.snapshot(files={}, links={}))
    assert [part.kind for part in walk(tree(bare))] == ["node", "gpu"]
    silent = build(machine.snapshot(nvml={"error": "NVML did not answer within 5 s"}))
    assert one(tree(silent), "note", "NVML").label == "NVML: NVML did not answer within 5 s"
    assert one(tree(silent), "gpu", "GPU ?").label.endswith("on the bus, not shown by NVML")
    recorded = build(machine.snapshot(nvml={"error": "not recorded"}))
    assert "not shown by NVML" not in one(tree(recorded), "gpu", "GPU 0").label


def test_a_machine_with_one_domain_has_everything_in_it() -> None:
    machine = MachineFiles()
    machine.processors(1)
    machine.gpu(machine.root_port(0x10, numa=-1), 0x11, numa=-1)
    assert [part.label for part in walk(drawn(machine)) if part.kind == "numa"] == ["NUMA 0  CPUs 0-31"]
    machine.processors(2)
    assert "NUMA domain not known" in [part.label for part in walk(drawn(machine)) if part.kind == "numa"]


def test_ports_without_a_pci_function_are_drawn() -> None:
    machine = MachineFiles()
    machine.interface("eth1")
    machine.rdma("rxe0", "/sys/devices/virtual", "eth1", ipv4="10.1.0.1/24")
    root = drawn(machine)
    assert one(root, "port", "rxe0").label.startswith("rxe0  port 1  ACTIVE")
    assert "1 of 1 RDMA port active" in summary(build(machine.snapshot()))
