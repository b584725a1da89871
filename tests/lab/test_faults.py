"""Every lab fault shows where a real machine shows it, and healing leaves no trace.

Hardware faults are looked at with the product's own probe, on one lab without a gang. `UPDATE_GOLDEN=1` writes
faults.md beside it from what `doctor` said of each.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from tests.support.small_lab import RunningLab
from tests.support.waiting import slack, until

from l40s_lab.faults.registry import all_faults
from orchestrator.doctor.rules.support.cluster import Cluster
from orchestrator.doctor.rules.support.registry import run_rules
from orchestrator.loading.inventory import load_inventory
from orchestrator.model.inventory import NodeSpec
from orchestrator.model.snapshot import Snapshot
from orchestrator.planning.steps import look
from orchestrator.protocol.severity import Severity
from orchestrator.remote.fleet import Fleet
from orchestrator.topology.build import build

from .conftest import needs_root

pytestmark = [pytest.mark.lab, needs_root]

PAGE = Path(__file__).with_name("faults.md")
NODE = "node2"
NODE_KEY = "ssh-ed25519"
HARDWARE, WORDS = 5, 3
"""Of the hardware's faults, and of wrong words, how many are played in a run."""
SAID: dict[str, tuple[str, ...]] = {}
"""Hardware fault -> the ids of doctor's findings, the most severe first."""


@dataclass(frozen=True)
class Bench:
    """One lab, its nodes' first snapshots, and connections to them."""

    lab: RunningLab
    fleet: Fleet
    specs: Mapping[str, NodeSpec]
    whole: Mapping[str, Snapshot]

    def node(self) -> Snapshot:
        """One look at the broken node."""
        looked = look.look(self.fleet, [self.specs[NODE]])
        assert not looked.failures, looked.failures
        return looked.values[NODE]

    def findings(self, now: Snapshot) -> list[tuple[Severity, str, str]]:
        """The new findings about the cluster with this node in it."""
        return [one for one in self._said({**self.whole, NODE: now}) if one not in self._said(self.whole)]

    def _said(self, snapshots: Mapping[str, Snapshot]) -> list[tuple[Severity, str, str]]:
        topologies = {name: build(snapshot) for name, snapshot in snapshots.items()}
        cluster = Cluster(topologies=topologies, snapshots=snapshots, specs=self.specs)
        return list(dict.fromkeys((one.severity, one.id, one.node) for one in run_rules(cluster)))

    def address(self, node: str = NODE) -> str:
        return str(self.lab.hosts()[node])


@pytest.fixture(scope="module")
def bench(labs: Callable[[str], RunningLab]) -> Iterator[Bench]:
    lab = labs("faults")
    lab.run("up", "--level", "1")
    inventory = load_inventory(lab.directory / "inventory.yml")
    specs = {node.name: node for node in inventory.nodes}
    with Fleet(specs.values()) as fleet:
        looked = look.look(fleet, specs.values())
        assert not looked.failures, looked.failures
        yield Bench(lab, fleet, specs, looked.values)


@pytest.fixture(autouse=True)
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait less for a wedged driver than for one that wakes its GPUs."""
    monkeypatch.setattr(look, "NVML_S", 2.0)


def steady(snapshot: Snapshot) -> dict[str, Any]:
    """The parts of a snapshot that do not change by themselves.

    Left out: what mounted /sys, since a node whose renamed interfaces get their names back has it mounted again, with
    the same contents.
    Also left out: the options of an earlier overlay mount (uuid=on), after a node was powered on again.
    """
    volatile = ("/proc/uptime", "/proc/meminfo", "/proc/self", "/proc/sys/kernel/random/boot_id")
    files = {
        re.sub(r"^/proc/\d+/", "/proc/N/", path): re.sub(r"(?m)^sysfs /sys .*\n|,uuid=on(?= )", "", text)
        for path, text in snapshot.files.items()
        if path not in volatile
    }
    moving = ("clock", "probe_seconds", "clock_offset_s", "round_trip_s", "shm_free_bytes", "disks")
    return {
        "files": files,
        "links": {path: target for path, target in snapshot.links.items() if path not in volatile},
        "errors": dict(snapshot.errors),
        "nvml": snapshot.nvml,
        "host": {name: fact for name, fact in snapshot.host.items() if name not in moving},
    }


GPU5 = "0000:9b:00.0"
RAIL = "net/ens5f0np0"
IB = "infiniband/mlx5_0/ports/1"
PLACES: dict[tuple[str, ...], tuple[str, dict[str, str]]] = {
    # fault -> the finding that has to name it, and files by the end of their path
    ("gpu-lost", "5"): (
        "GPU-MISSING",
        {
            f"{GPU5}/config": "^(ff)+$",
            f"{GPU5}/current_link_speed": "^Unknown$",
            f"{GPU5}/current_link_width": "^63$",
            "0000:99:01.0/current_link_width": "^0$",
            "0000:99:01.0/aer_dev_fatal": "(?m)^SDES 1$",
        },
    ),
    ("ecc", "3"): ("GPU-HEALTH", {}),
    ("throttle", "2"): ("GPU-HEALTH", {}),
    ("nvml-wedged",): ("NVML-UNREADABLE", {}),
    ("port-down", "mlx5_0"): (
        "RDMA-PORT-DOWN",
        {
            f"{IB}/state": "^1: DOWN$",
            f"{IB}/phys_state": "^3: Disabled$",
            f"{RAIL}/carrier": "^0$",
            f"{RAIL}/operstate": "down$",
            f"{RAIL}/speed": "^-1$",
            f"{IB}/gids/0": "^fe80:",
            f"{IB}/gids/3": "",
        },
    ),
    ("bond-slave-down",): (
        "BOND-SHORT",
        {
            "net/ens7f1np1/carrier": "^0$",
            "net/ens7f1np1/bonding_slave/mii_status": "^down$",
            "net/bond0/speed": "^100000$",
            "/bonding/bond0": "(?s)Slave Interface: ens7f1np1\nMII Status: down",
        },
    ),
    ("gid-missing",): ("RDMA-PORT-UNCONFIGURED", {f"{IB}/gids/3": "", f"{IB}/state": "ACTIVE"}),
    ("gid-shifted",): (
        "NODE-DIFFERS",
        {f"{IB}/gids/3": "^fd40:", f"{IB}/gids/5": "ffff:c0a8:650c$", f"{IB}/gid_attrs/types/5": "^RoCE v2$"},
    ),
    ("roce-v1-only",): ("RDMA-PORT-UNCONFIGURED", {f"{IB}/gid_attrs/types/1": "^IB/RoCE v1$", f"{IB}/gids/2": ""}),
    ("mtu",): ("RAIL-MTU", {f"{RAIL}/mtu": "^1500$"}),
    ("width-x8",): ("PCIE-LINK-REDUCED", {"0000:1c:00.0/current_link_width": "^8$"}),
    ("width-x8", "0"): ("PCIE-LINK-REDUCED", {"0000:18:00.0/current_link_width": "^8$"}),
    ("gen-downgraded",): (
        "PCIE-LINK-REDUCED",
        {"0000:1c:00.0/current_link_speed": "^8.0 GT", "0000:17:04.0/current_link_speed": "^8.0 GT"},
    ),
    ("nic-moved",): (
        "NIC-NOT-UNDER-SWITCH",
        {"0000:b8:00.0/net/ens17f0np0/operstate": "^up$", "0000:9e:00.0/class": ""},
    ),
    ("acs-on",): ("ACS-REDIRECT", {}),
    ("iommu-on",): ("IOMMU-TRANSLATING", {"iommu_groups/9/type": "^DMA$", "/proc/cmdline": "intel_iommu=on$"}),
    ("no-peermem",): (
        "GDR-MISSING",
        {"/nvidia_peermem/version": "", "/proc/driver/nvidia/version": "UNIX Kernel Module"},
    ),
    ("driver-skew",): (
        "NODE-DIFFERS",
        {"/module/nvidia/version": "^570.133.20$", "/proc/driver/nvidia/version": "570.133.20"},
    ),
    ("numa-unknown",): ("NUMA-UNKNOWN", {"0000:18:00.0/numa_node": "^-1$"}),
}


def test_no_hardware_fault_is_left_out() -> None:
    known = {fault.name for fault in all_faults() if fault.change is not None}
    assert known - {"link-down"} == {words[0] for words in PLACES}


@pytest.mark.turns(play=HARDWARE)
@pytest.mark.parametrize("words", PLACES, ids=" ".join)
def test_hardware_fault(bench: Bench, words: tuple[str, ...]) -> None:
    wanted, places = PLACES[words]
    bench.lab.run("break", NODE, *words)
    try:
        broken = bench.node()
    finally:
        bench.lab.run("heal", NODE)
    for end, pattern in places.items():
        texts = [text.strip() for path, text in broken.files.items() if path.endswith(end)]
        if pattern:
            assert texts and all(re.search(pattern, text) for text in texts), (end, texts)
        else:
            assert not texts, (end, texts)
    found = bench.findings(broken)
    SAID.setdefault(words[0], tuple(dict.fromkeys(rule for _, rule, _ in found)))
    assert wanted in [rule for _, rule, _ in found]
    assert {node for _, _, node in found} == {NODE}
    assert steady(bench.node()) == steady(bench.whole[NODE])


def test_nvml_and_the_kernels_log_tell_of_a_lost_gpu(bench: Bench) -> None:
    bench.lab.run("break", NODE, "gpu-lost", "5")
    broken = bench.node()
    bench.lab.run("heal", NODE)
    devices = broken.nvml["devices"]
    assert len(devices) == 8
    assert "GPU is lost" in str(devices[5]["errors"])
    assert [one["index"] for one in devices if not one.get("uuid")] == [5]
    assert any("Xid (PCI:0000:9b:00): 79" in line for line in broken.host["kernel_log"]["xid"])


def test_faults_of_one_node_add_up_and_heal_one_by_one(bench: Bench) -> None:
    bench.lab.run("break", NODE, "nic-moved")
    bench.lab.run("break", NODE, "ecc", "1")
    bench.lab.run("break", NODE, "gpu-lost", "1")
    assert "ecc 1, gpu-lost 1" in bench.lab.run("status").stdout.replace("\n", "")
    bench.lab.run("heal", NODE, "nic-moved")
    rules = {rule for _, rule, _ in bench.findings(bench.node())}
    assert "NIC-NOT-UNDER-SWITCH" not in rules and "GPU-MISSING" in rules
    bench.lab.run("heal", NODE)
    assert steady(bench.node()) == steady(bench.whole[NODE])


@pytest.mark.turns(play=WORDS)
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("node9", "ecc", "1"), "there is no node 'node9'"),
        ((NODE, "gpu-lots", "1"), "did you mean gpu-lost"),
        ((NODE, "gpu-lost", "8"), "0 to 7"),
        ((NODE, "gpu-lost"), "found nothing"),
        ((NODE, "port-down", "mlx5_9"), "mlx5_0"),
        ((NODE, "kill-rank", "19"), "no rank runs there"),
        ((NODE, "kill-agent"), "no agent runs"),
        ((NODE, "mtu", "ens5f0np0", "70000"), "1280 to 9978"),
        ((NODE, "clock-skew", "soon"), "wanted seconds"),
        ((NODE, "acs-on", "1"), "wanted nothing"),
    ],
    ids=lambda words: " ".join(words) if isinstance(words, tuple) else "",
)
def test_wrong_words_break_nothing(bench: Bench, words: tuple[str, ...], said: str) -> None:
    done = bench.lab.run("break", *words, check=False)
    assert done.returncode == 2 and said in done.stderr, done.stderr
    assert bench.lab.run("heal", NODE).stderr.strip() == f"{NODE} has no fault"


# -- the network, with packets ------------------------------------------------------------------------------------


def connects(address: str, port: int, wait_s: float) -> str:
    """yes, refused, or silent"""
    try:
        socket.create_connection((address, port), timeout=wait_s).close()
    except ConnectionRefusedError:
        return "refused"
    except OSError:
        return "silent"
    return "yes"


def test_link_down_and_up(bench: Bench) -> None:
    bench.lab.run("break", NODE, "link-down")
    assert connects(bench.address(), 22, 0.5) == "silent"
    assert bench.lab.run("status").stdout.count(" down ") == 1
    bench.lab.run("heal", NODE)
    assert connects(bench.address(), 22, 5.0) == "yes"


def test_one_way_loss_is_the_way_in(bench: Bench) -> None:
    knock = "timeout 1 bash -c '</dev/tcp/{}/9' 2>&1; echo $?"

    def received() -> int:
        return int(bench.lab.ssh("node0", "cat /sys/class/net/ens5f0np0/statistics/rx_packets"))

    bench.lab.run("break", NODE, "one-way-loss", "100", "ens5f0np0")
    try:
        told = bench.lab.ssh(NODE, knock.format("192.168.101.10"))
        before = received()
        until(lambda: bench.lab.ssh(NODE, knock.format("192.168.101.10")) and received() > before, 10, "it goes out")
        others = bench.lab.ssh("node1", knock.format("192.168.101.10"))
    finally:
        bench.lab.run("heal", NODE)
    assert told.split()[-1] == "124", "no answer comes in"
    assert "refused" in others, "the others' way is as it was"
    # questions for the neighbour's address that went unanswered may still end this connection: No route to host
    until(lambda: "refused" in bench.lab.ssh(NODE, knock.format("192.168.101.10")), 10, "its way in is open again")


def test_delay_is_paid_both_ways_and_large_transfers_pass(bench: Bench) -> None:
    bench.lab.run("break", NODE, "delay", "40")
    try:
        began = time.monotonic()
        assert connects(bench.address(), 22, 5.0) == "yes"
        took = time.monotonic() - began
        megabytes = bench.lab.ssh("node0", f"head -c 3000000 /dev/zero >/dev/null; echo {NODE}")
        through = len(bench.lab.ssh(NODE, "head -c 2000000 /dev/zero | tr '\\0' x"))
    finally:
        bench.lab.run("heal", NODE)
    assert took > 2 * 0.036
    assert (megabytes.strip(), through) == (NODE, 2_000_000)
    assert connects(bench.address(), 22, 5.0) == "yes"


def test_a_black_hole_passes_short_packets_and_loses_full_ones_silently(bench: Bench) -> None:
    quiet = "ssh-keyscan -T 3 -t ed25519"  # an exchange of keys takes packets of more than 600 bytes
    assert NODE_KEY in bench.lab.ssh("node1", f"{quiet} {bench.address()}")
    bench.lab.run("break", NODE, "mtu-black-hole", "600")
    try:
        short = connects(bench.address(), 22, 5.0)
        full = bench.lab.ssh("node1", f"{quiet} {bench.address()} 2>/dev/null || true")
    finally:
        bench.lab.run("heal", NODE)
    assert (short, NODE_KEY in full) == ("yes", False)


@pytest.mark.turns
@pytest.mark.parametrize("fault", ["duplicate", "reorder"])
def test_frames_that_come_twice_or_late_change_no_transfer(bench: Bench, fault: str) -> None:
    bench.lab.run("break", NODE, fault, "50")
    try:
        through = bench.lab.ssh(NODE, "seq 200000 | sha256sum; seq 200000")
    finally:
        bench.lab.run("heal", NODE)
    told, _, rows = through.partition("\n")
    assert told.split()[0] == hashlib.sha256(rows.encode()).hexdigest()


def test_a_firewall_drops_and_does_not_refuse(bench: Bench) -> None:
    bench.lab.run("break", NODE, "firewall-port", "8000")
    try:
        assert connects(bench.address(), 8000, 0.5) == "silent"
        assert connects(bench.address(), 8001, 5.0) == "refused"
    finally:
        bench.lab.run("heal", NODE)
    assert connects(bench.address(), 8000, 5.0) == "refused"


# -- the running node ---------------------------------------------------------------------------------------------


def test_a_dead_ssh_server_and_one_that_is_back(bench: Bench) -> None:
    bench.lab.run("break", NODE, "sshd-dead")
    assert connects(bench.address(), 22, 5.0) == "refused"
    bench.lab.run("heal", NODE)
    assert bench.lab.ssh(NODE, "hostname").strip() == NODE


def test_a_frozen_node_accepts_and_says_nothing(bench: Bench) -> None:
    bench.lab.run("break", NODE, "freeze")
    with socket.create_connection((bench.address(), 22), timeout=5) as asked:
        asked.settimeout(0.5)
        with pytest.raises(TimeoutError):
            asked.recv(4)
    bench.lab.run("break", NODE, "thaw")
    assert bench.lab.ssh(NODE, "hostname").strip() == NODE


def test_a_full_disk(bench: Bench) -> None:
    write = "for d in /var/tmp /tmp /root; do head -c 20000 /dev/zero >$d/more || true; rm -f $d/more; done"
    bench.lab.run("break", NODE, "disk-full")
    try:
        full = bench.lab.ssh(NODE, f"({write}) 2>&1")
        broken = bench.node()
    finally:
        bench.lab.run("heal", NODE)
    assert (Severity.STOP, "DISK-FULL", NODE) in bench.findings(broken)
    assert full.count("No space left on device") == 3
    assert bench.lab.ssh(NODE, f"({write}) 2>&1") == ""


def test_a_wrong_clock_and_a_slow_disk_at_once(bench: Bench) -> None:
    bench.lab.run("break", NODE, "clock-skew", "-3600")
    bench.lab.run("break", NODE, "slow-disk", "5")
    told = bench.lab.ssh(
        NODE, "date +%s; head -c 5242880 /dev/zero >/tmp/five; time -p cat /tmp/five 2>&1 >/dev/null; true"
    )
    bench.lab.run("heal", NODE)
    assert -3700 < int(told.split()[0]) - time.time() < -3500
    began = time.monotonic()
    now = bench.lab.ssh(NODE, "date +%s; cat /tmp/five >/dev/null; rm /tmp/five; ls /etc/ld.so.preload 2>&1 || true")
    assert abs(int(now.split()[0]) - time.time()) < 30
    assert "No such file" in now
    assert time.monotonic() - began < 20 * slack()


def test_sessions_that_may_lock_nothing(bench: Bench) -> None:
    before = bench.lab.ssh(NODE, "ulimit -l; ulimit -Hl")
    bench.lab.run("break", NODE, "memlock")
    try:
        small = bench.lab.ssh(NODE, "ulimit -l; ulimit -Hl; ulimit -l 128 2>&1 || true")
    finally:
        bench.lab.run("heal", NODE)
    assert small.split()[:2] == ["64", "64"] and "permitted" in small
    assert bench.lab.ssh(NODE, "ulimit -l; ulimit -Hl") == before


def test_power_off_and_on_keeps_what_is_wrong_with_the_hardware(bench: Bench) -> None:
    bench.lab.run("break", NODE, "gpu-lost", "5")
    bench.lab.ssh(NODE, "echo weights >/workspace/kept")
    bench.lab.run("break", NODE, "disk-full")
    bench.lab.ssh(NODE, "sleep 600 >/dev/null 2>&1 </dev/null &")
    boot = bench.lab.ssh(NODE, "cat /proc/sys/kernel/random/boot_id")
    bench.lab.run("break", NODE, "power-off")
    assert connects(bench.address(), 22, 0.5) == "silent"
    assert "powered off" in bench.lab.run("break", NODE, "freeze", check=False).stderr
    bench.lab.run("break", NODE, "power-on")
    assert connects(bench.address(), 22, 5.0) == "yes"
    assert bench.lab.ssh(NODE, "ps -e -o comm= | grep -c sleep || true").strip() == "0"
    status = bench.lab.run("status").stdout
    assert "gpu-lost 5" in status and "disk-full" not in status
    assert bench.lab.ssh(NODE, "cat /proc/sys/kernel/random/boot_id") != boot
    with Fleet([bench.specs[NODE]]) as fleet:
        broken = look.look(fleet, [bench.specs[NODE]]).values[NODE]
        assert ("GPU-MISSING", NODE) in [(rule, node) for _, rule, node in bench.findings(broken)]
        bench.lab.run("heal", NODE)
        assert steady(look.look(fleet, [bench.specs[NODE]]).values[NODE]) == steady(bench.whole[NODE])


def test_a_disk_outlasts_its_node_s_power_and_a_new_one_is_empty(bench: Bench) -> None:
    assert bench.lab.ssh(NODE, "cat /workspace/kept; rm /workspace/kept; echo other >/etc/kept") == "weights\n"
    assert "wanted new-disk" in bench.lab.run("break", NODE, "power-off", "other", check=False).stderr
    bench.lab.run("break", NODE, "power-off", "new-disk")
    bench.lab.run("break", NODE, "power-on")
    assert bench.lab.ssh(NODE, "ls /etc/kept 2>/dev/null || echo gone") == "gone\n"


def test_the_page_says_what_was_found(bench: Bench) -> None:
    """For faults that this run did not try, the page's text is accepted; everything else is checked."""
    assert bench.whole
    page = render_page(_on_the_page() | SAID)
    if os.environ.get("UPDATE_GOLDEN"):
        PAGE.write_text(page)
    assert PAGE.read_text() == page, "UPDATE_GOLDEN=1 writes it anew"


def _on_the_page() -> dict[str, tuple[str, ...]]:
    """Fault -> the last column of its row."""
    rows = re.findall(r"^\| `([a-z0-9-]+).*\| ([A-Z0-9, -]*) ?\|$", PAGE.read_text(), re.MULTILINE)
    return {fault: tuple(said.strip().split(", ")) if said.strip() else () for fault, said in rows}


def render_page(found: Mapping[str, tuple[str, ...]]) -> str:
    lines = [
        "# Faults that a lab's node can have",
        "",
        "`l40s-deploy lab break NODE FAULT [ARG]` injects a fault into a node, `lab heal NODE [FAULT]` removes it,",
        "`lab status` lists them. This page is written by `tests/lab/test_faults.py` (`UPDATE_GOLDEN=1`): the",
        "last column is what `doctor` found with that fault on one node of four, on that node and on no other; only",
        "hardware faults were tested for it.",
        "",
        "A hardware fault changes the machine's description, and everything that such a machine shows follows from it.",
        "A node that is switched on again keeps its hardware faults; all others are over. The kernel's clock and disk",
        "are this machine's, so `clock-skew` and `slow-disk` hold for programs that start from then on.",
        "",
        "| fault | level | what happens | where it shows | `doctor` |",
        "|---|---|---|---|---|",
    ]
    for fault in all_faults():
        levels = "any" if fault.levels == (0, 1, 2) else ", ".join(map(str, fault.levels))
        name = f"{fault.name} {fault.argument}".strip().replace("|", "\\|")
        said = ", ".join(found.get(fault.name, ()))
        lines.append(f"| `{name}` | {levels} | {fault.summary} | {fault.shows} | {said} |")
    return "\n".join(lines) + "\n"
