"""What a pasted text shows of a fault is that fault's finding, and what it tells besides is a sentence."""

from __future__ import annotations

import re
from typing import Any

import pytest

from orchestrator.doctor.commands.findings import document
from orchestrator.doctor.steps.recordings import Given, examine_given
from orchestrator.engines.causes import COMMON
from orchestrator.engines.host_causes import HOST
from orchestrator.model.topology import PathType
from orchestrator.topology.nccl_xml import topology_of_xml
from orchestrator.topology.pasted.read import read_pasted
from orchestrator.topology.paths import paths, shape


def of_id(text: str, name: str) -> list[tuple[str, str]]:
    seen = examine_given(Given(read_pasted({"post": text}, "post")))
    return [(one.severity.value, one.title) for one in seen.findings if one.id == name]


CLOCKS = """    Clocks Event Reasons
        Idle                        : Not Active
        SW Power Cap                : Active
        HW Slowdown                 : {0}
            HW Thermal Slowdown     : {0}
"""
ROWS = "  Remapped Rows\n    Uncorrectable Error : 4\n    Pending : {}\n    Remapping Failure Occurred : {}\n"
ERRORS = """    ECC Errors
        Volatile
            DRAM Uncorrectable : {}
{}            DRAM Uncorrectable : 9
"""
ACS = "ACSCtl:\tSrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl- DirectTrans-\n"
ASKED = "nvidia-smi --query-gpu=name,pcie.link.width.current,pcie.link.width.max"
HTML = """<tr><th></th><th>GPU0</th><th>GPU1</th></tr>
<tr><td>GPU0</td><td>X</td><td>PIX</td></tr>
<tr><td>GPU1</td><td>PIX</td><td>X</td></tr>"""
OF_ONE = """    PCI
        Bus Id                            : 00000000:61:00.0
        GPU Link Info
            Link Width
                Max                       : 16x
                Current                   : 4x
"""
CX7 = """41:00.0 Ethernet controller: Mellanox Technologies MT2910 Family [ConnectX-7]
\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM off
\tLnkSta:\tSpeed 32GT/s, Width x8 (downgraded)
"""
DEVICES = "    device          node GUID\n    ------       -----------\n    mlx5_0       b83fd20300112233\n"
ROW = "|   0  NVIDIA L40S          On  | 00000000:05:00.0 Off |                  Off |"
NAMELESS = "a GPU that the text does not name"


@pytest.mark.parametrize(
    ("text", "findings"),
    [
        (CLOCKS.format("Active"), [("slow", f"{NAMELESS} is throttled: hardware slowdown, hardware thermal")]),
        (CLOCKS.format("Not Active"), []),
        (ROWS.format("Yes", "No"), [("slow", f"{NAMELESS} will repair a faulty memory row at its next reset")]),
        (ROWS.format("No", "Yes"), [("stop", f"{NAMELESS} could not repair a faulty memory row")]),
        (ROWS.format("No", "No"), []),
        (ERRORS.format(2, "        Aggregate\n"), [("stop", f"{NAMELESS} has 2 uncorrectable memory errors")]),
        (ERRORS.format(0, ""), []),
        ("    ECC Errors\n        Volatile\n            Double Bit\n                Total : 3\n",
         [("stop", f"{NAMELESS} has 3 uncorrectable memory errors")]),
        ("  Retired Pages\n    Pending Page Blacklist : Yes\n", [("slow", f"{NAMELESS} has memory pages to retire")]),
        ("Unable to determine the device handle for GPU0000:C4:00.0: GPU is lost.  Reboot the system\n",
         [("stop", "the GPU at 0000:C4:00.0 does not answer")]),
        ("5e:00.0 3D controller: NVIDIA Corporation TU104GL [T4] (rev ff)\n", [("stop", "GPU 0 does not answer")]),
    ],
)  # fmt: skip
def test_a_piece_of_nvidia_smi_shows_a_gpu_that_is_ill(text: str, findings: list[tuple[str, str]]) -> None:
    assert of_id(text, "GPU-HEALTH") == findings


def test_what_nvidia_smi_says_of_a_listed_gpu_is_that_one_s() -> None:
    listed = "5e:00.0 3D controller: NVIDIA Corporation TU104GL [Tesla T4] (rev a1)\n"
    lost = "Unable to determine the device handle for GPU 0000:5E:00.0: Unknown Error\n"
    assert of_id(listed + lost, "GPU-HEALTH") == [("stop", "GPU 0 does not answer")]


@pytest.mark.parametrize(
    ("words", "stops"),
    [
        ("Failed to initialize NVML: Driver/library version mismatch", True),
        ("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure", True),
        ("No devices were found", True),
        (f"No devices were found\n{ROW}", False),
        ("stdout: Failed to initialize NVML: Unknown Error", True),
        ("Sometimes it prints Failed to initialize NVML: Unknown Error in a pod", False),
        ('I read that "Failed to initialize NVML: Driver/library version mismatch" comes from an upgrade', False),
        ("Failed to initialize NVML: Unknown Error\n05:00.0 3D controller: NVIDIA Corporation AD102GL [L40S]", True),
        ("Failed to initialize NVML: Unknown Error\n\tGPU0\tGPU1\nGPU0\t X \tPHB\nGPU1\tPHB\t X \n", False),
    ],
)
def test_an_nvidia_smi_that_answers_with_an_error_stops(words: str, stops: bool) -> None:
    assert bool(of_id(words, "NVML-UNREADABLE")) is stops


LIMITED = (
    "[1.2] {} 0000:41:00.0: 126.016 Gb/s available PCIe bandwidth, limited by 16.0 GT/s PCIe x8 link at 0000:40:01.1"
    " (capable of 252.048 Gb/s with 16.0 GT/s PCIe x16 link)\n"
)
AER = "[1.2] {} 0000:65:00.0: PCIe Bus Error: severity={}, type=Physical Layer, (Receiver ID)\n"
FAULT = "[1.2] {} 0000:07:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0003 address=0x80000040 flags=0x0020]\n"


@pytest.mark.parametrize(
    ("text", "name", "severity"),
    [
        (LIMITED.format("mlx5_core"), "PCIE-LINK-REDUCED", "slow"),
        (LIMITED.format("pci"), "PCIE-LINK-REDUCED", ""),
        (AER.format("nvidia", "Uncorrected (Fatal)"), "PCIE-ERRORS", "slow"),
        (AER.format("pcieport", "Uncorrected (Fatal)"), "PCIE-ERRORS", "note"),
        (AER.format("nvidia", "Corrected"), "PCIE-ERRORS", "note"),
        (FAULT.format("nvidia"), "IOMMU-TRANSLATING", "slow"),
        (FAULT.format("nvme"), "IOMMU-TRANSLATING", "note"),
        ("BOOT_IMAGE=/v root=/dev/sda1 intel_iommu=on quiet\n", "IOMMU-TRANSLATING", "note"),
        ("BOOT_IMAGE=/v root=/dev/sda1 intel_iommu=on iommu=pt quiet\n", "IOMMU-TRANSLATING", ""),
        ("[0.5] iommu: Default domain type: Passthrough\n", "IOMMU-TRANSLATING", ""),
        ("ACSCtl: SrcValid+ TransBlk- ReqRedir+ CmpltRedir+ UpstreamFwd+ EgressCtrl-\n", "ACS-REDIRECT", "note"),
        ("ACSCtl: SrcValid- TransBlk- ReqRedir- CmpltRedir- UpstreamFwd- EgressCtrl-\n", "ACS-REDIRECT", ""),
        ("[1.2] NVRM: GPU 0000:0a:00.0: RmInitAdapter failed! (0x24:0x72:1568)\n", "GPU-XID", "slow"),
        ("[1.2] NVRM: Xid (0000:0a:00): 79, GPU has fallen off the bus.\n", "GPU-XID", "slow"),
        ("Device=0 CANNOT Access Peer Device=1\n", "GPU-P2P-OFF", "note"),
        (CX7, "PCIE-LINK-REDUCED", "slow"),
        (OF_ONE, "PCIE-LINK-REDUCED", "slow"),
        (f"{ASKED} --format=csv,noheader\nNVIDIA L40S, 4, 16\n", "PCIE-LINK-REDUCED", "slow"),
        (f"17:00.0 PCI bridge: Broadcom / LSI PEX890xx PCIe Gen 5 Switch\n\t{ACS}", "ACS-REDIRECT", "note"),
    ],
)  # fmt: skip
def test_a_line_that_shows_a_fault_is_its_finding(text: str, name: str, severity: str) -> None:
    assert [kind for kind, _ in of_id(text, name)] == ([severity] if severity else [])


DEVINFO = "hca_id: mlx5_0\nport:   1\nstate:   PORT_ACTIVE (4)\nmax_mtu:   4096 (5)\nactive_mtu:   {} (3)\n"


@pytest.mark.parametrize(("mtu", "small"), [(1024, True), (4096, False)])
def test_a_roce_port_with_small_packets_is_noted(mtu: int, small: bool) -> None:
    assert bool(of_id(f"{DEVINFO.format(mtu)}link_layer:   Ethernet\n", "RAIL-MTU")) is small
    assert of_id(f"{DEVINFO.format(mtu)}link_layer:   InfiniBand\n", "RAIL-MTU") == []


LNK = "\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16\n\t\tLnkSta:\tSpeed 2.5GT/s, Width x8 (downgraded)\n"
LISTED_L40S = "{}:00.0 3D controller: NVIDIA Corporation AD102GL [L40S] (rev a1)\n"
VIRTIO = "06:12.0 Ethernet controller: Red Hat, Inc. Virtio network device\n"
CARD = "08:00.0 Ethernet controller: Mellanox Technologies MT2892 Family [ConnectX-6 Dx]\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("GPU 3: Tesla V100-SXM2-32GB (UUID: ...)\n         Link 0: 25.781 GB/s\n         Link 1: <inactive>\n",
         "NVLinks of GPU3: 1 inactive; 1 at 25.781 GB/s"),
        ("[0] NVIDIA GeForce RTX 3090 | 45'C,   0 % |    10 / 24268 MB |\n",
         "GPUs: 1 x NVIDIA GeForce RTX 3090, 24 GiB"),
        ("0, NVIDIA L40S, 46068 MiB, 550.54.15\n", "GPUs: 1 x NVIDIA L40S; driver 550.54.15"),
        ("Settings for eth0:\n\tSpeed: 25000Mb/s\n\tLink detected: yes\n", "eth0: Speed 25000Mb/s, Link detected yes"),
        ("     rx_prio3_pause: 1234\n     rx_discards_phy: 0\n", "counted: rx_prio3_pause 1234"),
        ("# Avg bus bandwidth    : 6.13096 \n", "nccl-tests measured a bus bandwidth of 6.13 GB/s on average"),
        ("# Out of bounds values : 3 FAILED\n", "nccl-tests found 3 wrong values"),
        ("modprobe: FATAL: Module nvidia-peermem not found in directory /lib/modules/6.8\n",
         "the kernel's log: nvidia-peermem can't be loaded: there is no such module"),
        ("modprobe: ERROR: could not insert 'nvidia_peermem': Invalid argument\n",
         "the kernel's log: nvidia_peermem can't be loaded: Invalid argument"),
        ("* nvidia-fabricmanager.service - NVIDIA\n   Active: inactive (dead)\n",
         "nvidia-fabricmanager.service is inactive (dead)"),
        ("No IB devices found\n", "ibv_devinfo said 'No IB devices found'"),
        (DEVICES, "RDMA devices: mlx5_0"),
        ("NVRM: BAR1 is 0M @ 0x0 (PCI:0000:17:00.0)\n", "the kernel's log: BAR 1 of 0000:17:00.0 got no address"),
        ("mlx5_pcie_event:299:(pid 268): Detected insufficient power on the PCIe slot (27W).\n",
         "the kernel's log: mlx5: Detected insufficient power on the PCIe slot (27W)"),
        ("[1.2] mlx5_core: probe of 0000:03:00.0 failed with error -22\n",
         "the kernel's log: mlx5_core 0000:03:00.0: failed with error -22"),
        ("[1.2] mlx5_core 0000:9a:00.0: poll_health:955:(pid 0): device's health compromised - reached miss count\n",
         "the kernel's log: mlx5_core 0000:9a:00.0: health compromised"),
        ("GPU 0: NVIDIA RTX A6000 (UUID: ...)\n\t Link 0: Remote Device 00000000:41:00.0: Link 2\n",
         "NVLinks of GPU0: 1 to 0000:41:00.0"),
        ("Model: \t\t NVIDIA L40S\nBus Location: \t 0000:0a:00.0\nGPU Firmware: \t 550.127.05\n",
         "GPUs: 1 x NVIDIA L40S; driver 550.127.05"),
        ("05:00.0 Processing accelerators: Advanced Micro Devices, Inc. [AMD/ATI] Aqua Vanjaram [Instinct MI300X]\n",
         "accelerators of other makers: 1 x Advanced Micro Devices"),
        ("0000:17:00.0 mlx5_0 (MT4129 - MCX75) NVIDIA ConnectX-7 card  fw 28.39.1002 port 1 (ACTIVE) ==> ib0 (Up)\n",
         "RDMA ports: ACTIVE: mlx5_0"),
        ('{"output": "\\tGPU0\\tGPU1\\nGPU0\\t X \\tPIX\\nGPU1\\tPIX\\t X \\n"}', "behind one switch: GPU0, GPU1"),
        (f"{LISTED_L40S.format('17')}{LISTED_L40S.format('18')}GPU 0: NVIDIA L40S\n",
         "lspci lists 2 GPUs, of which the rest of the text shows 1"),
        ("-[0000:44]---00.0-[45]----00.0  Amazon.com, Inc. Elastic Fabric Adapter (EFA)\n",
         "1 network card: 1 x Amazon.com, Inc. Elastic Fabric Adapter (EFA)"),
        ("| 0      | Name: NVIDIA H100 80GB HBM3        |\n|        | PCI Bus ID: 00000000:1B:00.0        |\n",
         "GPUs: 1 x NVIDIA H100 80GB HBM3"),
        (HTML, "behind one switch: GPU0, GPU1"),
        ("-p2p n\n\tGPU0\tGPU1\nGPU0\tX\tNS\nGPU1\tNS\tX\n", "no direct access over NVLink"),
        ("CA 'mlx5_ib0'\n\t\tState: Active\n\t\tRate: 200\n", "RDMA ports: ACTIVE, 200 Gb/s: mlx5_ib0"),
        ("NCCL_P2P_DISABLE=1\nNCCL_IB_HCA=mlx5\n", "set for NCCL: NCCL_P2P_DISABLE=1, NCCL_IB_HCA=mlx5"),
        ("eth2  UP  0c:42:a1:00:00:01 <BROADCAST,MULTICAST,UP,LOWER_UP> \n", "interfaces up: eth2"),
    ],
)  # fmt: skip
def test_more_forms_tell_facts(text: str, words: str) -> None:
    seen = examine_given(Given(read_pasted({"post": text}, "post")))
    facts = [fact for node in document(seen)["nodes"] for fact in node["facts"]]
    assert any(fact.startswith(words) for fact in facts), facts
    others = (one for one in seen.findings if one.id != "RDMA-CARD-FAILED")
    assert {one.severity.value for one in others} <= {"unknown", "note"}


@pytest.mark.parametrize(
    ("text", "findings"),
    [
        (f"a@b:~# lspci\n{LISTED_L40S.format('01')}{CARD}a@b:~# lspci -vv -s 01:00.0 | grep Lnk\n{LNK}",
         [("slow", "GPU 0 at 0000:01:00.0 runs at x8, but supports x16")]),
        (f"a@b:~# lspci\n{LISTED_L40S.format('01')}{CARD}a@b:~# lspci -vv | grep Lnk\n{LNK}", []),
        (f"a@b:~# lspci\n{LISTED_L40S.format('01')}{VIRTIO}a@b:~# lspci -vv -s 01:00.0\n{LNK}",
         [("note", "GPU 0 at 0000:01:00.0 runs at x8, but supports x16")]),
        (f"{LISTED_L40S.format('01')}{LNK}\nGPU 0: NVIDIA L40S\nGPU 1: NVIDIA L40S\n",
         [("slow", "the GPU at 0000:01:00.0 runs at x8, but supports x16")]),
    ],
)  # fmt: skip
def test_lines_of_a_link_are_of_the_function_above_them_or_that_was_asked_for(
    text: str, findings: list[tuple[str, str]]
) -> None:
    """What a command printed about nobody is no earlier function's; in a virtual machine nobody reseats a card."""
    assert of_id(text, "PCIE-LINK-REDUCED") == findings


COUNTED = "/sys/class/infiniband/mlx5_0/ports/1/hw_counters/{}:{}\n"
SENSOR = """|   0  NVIDIA L40S     On  | 00000000:05:00.0 Off |       0 |
|{}   68C    P2    99W / 350W |     1MiB / 46068MiB |
"""


@pytest.mark.parametrize(
    ("text", "name", "severity"),
    [
        (COUNTED.format("local_ack_timeout_err", 2705), "RDMA-LOSSES", "note"),
        (COUNTED.format("local_ack_timeout_err", 3), "RDMA-LOSSES", ""),
        (COUNTED.format("np_cnp_sent", 123456), "RDMA-CONGESTED", "note"),
        (SENSOR.format("ERR!"), "GPU-HEALTH", "slow"),
        (SENSOR.format(" 30%"), "GPU-HEALTH", ""),
        ("0000:85:00.0 (ecap 000d @2a0) @2a6 001d\n", "ACS-REDIRECT", "note"),
        ("0000:85:00.0 (ecap 000d @2a0) @2a6 0000\n", "ACS-REDIRECT", ""),
        ("NVRM: nvAssert: Assertion failed: Reset required [NV_ERR_RESET_REQUIRED] (0x62)\n", "GPU-HEALTH", "slow"),
        ("Unable to determine the device handle for GPU 0000:0B:00.0: Unknown Error\n", "NVML-UNREADABLE", ""),
    ],
)
def test_what_is_counted_or_asked_for_is_its_finding(text: str, name: str, severity: str) -> None:
    assert [kind for kind, _ in of_id(text, name)] == ([severity] if severity else [])


def test_a_command_by_ssh_is_of_the_node_that_it_runs_on() -> None:
    text = "[me@login ~]$ ssh gpu-2-5 nvidia-smi\nNo devices were found\n"
    assert [*read_pasted({"post": text}, "post")] == ["gpu-2-5"]


def test_numbered_lines_are_read_as_without_numbers() -> None:
    matrix = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tPIX\t0-3\nGPU1\tPIX\t X \t0-3\n\nLegend:\n"
    numbered = "\n".join(f"{place:3d}  {line}" for place, line in enumerate(matrix.splitlines(), 1))
    (own,), (other,) = (read_pasted({"post": text}, "post").values() for text in (matrix, numbered))
    assert own.host == other.host


XML = """<nvidia_smi_log>
	<driver_version>550.54.15</driver_version>
	<gpu id="00000000:17:00.0">
		<product_name>NVIDIA L40S</product_name>
		<pci>
			<pci_gpu_link_info>
				<pcie_gen>
					<max_link_gen>4</max_link_gen>
					<current_link_gen>4</current_link_gen>
				</pcie_gen>
				<link_widths>
					<max_link_width>16x</max_link_width>
					<current_link_width>8x</current_link_width>
				</link_widths>
			</pci_gpu_link_info>
		</pci>
		<clocks_event_reasons>
			<clocks_event_reason_hw_slowdown>Active</clocks_event_reason_hw_slowdown>
		</clocks_event_reasons>
		<fb_memory_usage>
			<total>46068 MiB</total>
			<used>3 MiB</used>
		</fb_memory_usage>
		<remapped_rows>
			<remapped_row_unc>1</remapped_row_unc>
			<remapped_row_pending>Yes</remapped_row_pending>
		</remapped_rows>
	</gpu>
"""


def test_nvidia_smi_in_xml_is_read_as_its_text() -> None:
    assert of_id(XML, "PCIE-LINK-REDUCED") == [("slow", "GPU 0 at 0000:17:00.0 runs at x8, but supports x16")]
    assert of_id(XML, "GPU-HEALTH") == [
        ("slow", "GPU 0 will repair a faulty memory row at its next reset"),
        ("slow", "GPU 0 is throttled: hardware slowdown"),
    ]
    (snapshot,) = read_pasted({"post": XML}, "post").values()
    (gpu,) = snapshot.nvml["devices"]
    assert (snapshot.nvml["driver"], gpu["name"], gpu["memory"]["total"] >> 20) == ("550.54.15", "NVIDIA L40S", 46068)


def test_a_licensed_product_is_no_gpu_s_name() -> None:
    text = "GPU 00000000:17:00.0\n  vGPU Software Licensed Product\n    Product Name : NVIDIA Virtual Compute Server\n"
    (snapshot,) = read_pasted({"post": text}, "post").values()
    assert "name" not in snapshot.nvml["devices"][0]


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("[1.2] NVRM: Xid (PCI:0000:0a:00): 79, GPU has fallen off the bus.\n", "GPU-XID"),
        ("[1.2] NVRM: Xid (PCI:0000:0a:00): 94, pid=7, name=python3, Contained: SM (0x1)\n", "GPU-XID"),
        ("[1.2] NVRM: GPU 0000:0a:00.0: RmInitAdapter failed! (0x24:0x72:1568)\n", "GPU-XID"),
        (AER.format("nvidia", "Uncorrected (Fatal)"), "PCIE-ERRORS"),
        ("[1.2] mlx5_core 0000:9a:00.0: poll_health:955:(pid 0): device's health compromised\n", "RDMA-CARD-FAILED"),
        ("fabric manager NVIDIA GPU driver interface version 550.54.15 don't match with driver version 550.90.07.\n",
         "FABRIC-MANAGER"),
    ],
)  # fmt: skip
def test_what_the_kernel_says_has_one_name_and_one_fix_here_and_in_why(line: str, name: str) -> None:
    seen = examine_given(Given(read_pasted({"post": line}, "post")))
    (found,) = (finding for finding in seen.findings if finding.id == name)
    causes = [pattern for pattern in (*HOST, *COMMON) if re.search(pattern.pattern, line)]
    cause = causes[0]
    assert found.fix.startswith(cause.fix)
    if name == "GPU-XID":
        assert cause.text.removeprefix("a GPU ").partition(",")[0] in found.title


def node_of(text: str) -> dict[str, Any]:
    nodes: list[dict[str, Any]] = document(examine_given(Given(read_pasted({"post": text}, "post"))))["nodes"]
    return nodes[0]


def test_the_groups_of_a_matrix_are_in_the_document_without_their_switches() -> None:
    text = "\tGPU0\tGPU1\tGPU2\tmlx5_0\nGPU0\tX\tPIX\tSYS\tPIX\nGPU1\tPIX\tX\tSYS\tPIX\nGPU2\tSYS\tSYS\tX\tSYS\n"
    node = node_of(f"{text}mlx5_0\tPIX\tPIX\tSYS\tX\n")
    assert node["groups"] == [{"switch": None, "numa_node": -1, "gpus": 2, "nics": 1}]
    assert (node["nics"], node["switches"]) == (1, None)


def test_a_list_without_a_tree_has_no_number_of_cards_and_switches() -> None:
    listed = "9b:00.0 Ethernet controller: Amazon.com, Inc. Elastic Fabric Adapter (EFA)\n"
    node = node_of(f"{listed}9e:00.0 3D controller: NVIDIA Corporation AD102GL [L40S] (rev a1)\n")
    assert (node["gpus"], node["nics"], node["switches"], node["groups"]) == (1, None, None, [])
    assert "1 network card: 1 x Amazon.com, Inc. Elastic Fabric Adapter (EFA)" in node["facts"]


@pytest.mark.parametrize(("place", "guest"), [("00:1e.0", True), ("0001:00:00.0", True), ("0001:01:00.0", False)])
def test_a_gpu_on_a_root_bus_is_where_a_hypervisor_put_it(place: str, guest: bool) -> None:
    facts = node_of(f"{place} 3D controller: NVIDIA Corporation GA100 [A100 SXM4 80GB] (rev a1)\n")["facts"]
    assert guest == ("a virtual machine: its places on the PCI bus are the hypervisor's" in facts)


def test_a_rule_that_found_something_is_not_among_those_that_could_not_run() -> None:
    line = "[1.2] NVRM: Xid (PCI:0000:0a:00): 79, GPU has fallen off the bus.\n"
    findings = examine_given(Given(read_pasted({"post": line}, "post"))).findings
    (rest,) = (finding for finding in findings if finding.id == "NOT-RECORDED")
    assert "GPU-XID" not in rest.devices
    assert rest.title.startswith(f"{len(rest.devices)} of ")


def test_cards_that_nccl_has_right_below_a_cpu_have_a_path() -> None:
    gpu = '<pci busid="0000:99:00.0" class="0x030000" vendor="0x10de"><gpu dev="0" sm="86" rank="0"/></pci>'
    nic = '<nic><net name="mlx5_0+mlx5_1" dev="0" speed="200000" port="1" gdr="1"/></nic>'
    topology = topology_of_xml(
        f'<system version="1"><cpu numaid="0">{gpu}</cpu><cpu numaid="1">{nic}</cpu></system>', "n"
    )
    assert [(pair.other, pair.type) for pair in paths(topology)] == [("mlx5_0", PathType.SYS), ("mlx5_1", PathType.SYS)]
    assert shape(topology).nics == 2


def test_two_nodes_whose_cards_nccl_counts_on_differently_differ() -> None:
    words = ("=== System : maxBw 24.0 totalBw 24.0 ===", "CPU/1 (1/2/-1)", "+ PCI[24.0] - GPU/C1000 (0)",
             "+ PCI[{}] - NIC/A1000", "==========================================")  # fmt: skip
    nodes = (("gpu-a", "24.0"), ("gpu-b", "12.0"))
    text = "\n".join(f"{node}:1:2 [0] NCCL INFO {line.format(gbs)}" for node, gbs in nodes for line in words)
    seen = examine_given(Given(read_pasted({"post": text}, "post")))
    (found,) = (finding for finding in seen.findings if finding.id == "NODE-DIFFERS")
    assert "24 GB/s on gpu-a; 12 GB/s on gpu-b" in found.title
    facts = document(seen)["nodes"][1]["facts"]
    assert "over PCIe NCCL counts on 24 GB/s to GPU0; 12 GB/s to NIC 0000:a1:00.0" in facts
