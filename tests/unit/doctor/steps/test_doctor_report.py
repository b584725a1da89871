"""The page of `doctor --report`: self-contained and complete; no text of a node is active in it."""

from __future__ import annotations

import html
import re
import shutil
import struct
import subprocess
from pathlib import Path

import pytest
from tests.support.faults import FAULTS, Fault, fault
from tests.support.healthy_cluster import HealthyNode, cluster_of, cluster_with, healthy_nodes

from orchestrator.doctor.rules.support.cluster import Cluster
from orchestrator.doctor.steps.doctor import diagnose, expected
from orchestrator.doctor.steps.doctor_report import bmc, page_of, sentences, serial, switch_ports, write_report
from orchestrator.protocol.errors import InputError, Unreachable
from orchestrator.protocol.looks import LabelsAnswer

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


def written(cluster: Cluster, tmp_path: Path, *accept: str) -> str:
    examination = diagnose(cluster, {}, accept=accept)
    write_report(examination, expected(cluster), tmp_path / "report.html")
    return (tmp_path / "report.html").read_text("utf-8")


LABELS = {
    "node2": LabelsAnswer(
        serials={"chassis_serial": "C8150FK21A50117", "product_serial": "0"},
        bmc=("IP Address              : 10.12.4.62", "MAC Address             : 3c:ec:ef:2f:7a:79"),
        neighbours="lldp.ens3f0np0.chassis.name=leaf-a\nlldp.ens3f0np0.port.ifname=Ethernet1/5\n",
        macs={"ens9f1np1": "b8:ce:f6:00:00:09"},
    ),
    "node0": LabelsAnswer(unread={"chassis_serial": "EACCES", "bmc": "ipmitool is not installed"}),
}


def test_the_page_says_where_to_find_what_it_speaks_of(tmp_path: Path) -> None:
    examination = diagnose(cluster_with("node2", several_faults), {})
    write_report(examination, (), tmp_path / "report.html", LABELS)
    page = html.unescape((tmp_path / "report.html").read_text())
    for words in ("C8150FK21A50117", "10.12.4.62 (3c:ec:ef:2f:7a:79)", "leaf-a Ethernet1/5", "b8:ce:f6:00:00:09",
                  "not read: chassis_serial: EACCES; bmc: ipmitool is not installed"):  # fmt: skip
        assert words in page
    ports = {port["name"]: port for port in page_of(examination, (), LABELS)["machines"][2]["ports"]}
    assert ports["ens2f0np0"]["slot"] == "2" and ports["ens2f0np0"]["mac"] == "02:00:00:00:00:01"
    assert ports["ens2f1np1"]["link"] == "no link" and "lo" not in ports


def test_what_several_nodes_have_counts_once_as_in_the_terminal() -> None:
    nodes = healthy_nodes()
    for node in nodes.values():
        fault("port without a link").breaks(node)
    examination = diagnose(cluster_of(nodes), {})
    assert len([one for one in examination.findings if one.id == "RDMA-PORT-DOWN"]) == len(nodes)
    assert page_of(examination)["counts"] == {"stop": 0, "slow": 1, "unknown": 0, "note": 0}


def test_what_is_to_do_is_a_list_with_a_step_a_line(tmp_path: Path) -> None:
    page = written(cluster_with("node2", several_faults), tmp_path)
    findings = diagnose(cluster_with("node2", several_faults), {}).findings
    assert page.count('<span class="tick">') == len(findings)
    todo = page[page.index("<h2>To do") : page.index("<h2>Paths")]
    assert todo.count("<li>") == len(findings) + sum(len(sentences(finding.fix)) for finding in findings)


def several_faults(node: HealthyNode) -> None:
    for name in ("card in a root-port slot", "port without a link", "uncorrectable memory errors"):
        fault(name).breaks(node)


def test_the_page_has_findings_prices_fixes_evidence_and_both_drawings(tmp_path: Path) -> None:
    page = re.sub("</?code>", "`", html.unescape(written(cluster_with("node2", several_faults), tmp_path)))
    examination = diagnose(cluster_with("node2", several_faults), {})
    for finding in examination.findings:
        for words in (finding.title, finding.effect, *sentences(finding.fix), *finding.evidence, finding.id):
            assert words in page
    assert page.count("<svg") == 3  # links between the nodes; node2; the three others, alike
    assert "node0, node1, node3" in page
    assert "nNodes 7 localRanks 8" in page


def test_a_page_asks_for_nothing_from_outside(tmp_path: Path) -> None:
    page = written(cluster_with("node2", several_faults), tmp_path)
    assert not re.search(r"""(src|href)\s*=\s*["'](?!#)|url\(|@import|<script|<link""", page)


def test_what_was_accepted_and_who_did_not_answer_is_on_the_page(tmp_path: Path) -> None:
    cluster = cluster_with("node2", fault("small /dev/shm").breaks)
    silent = {"node9": Unreachable("no answer within 10 s", where="node9", fix="")}
    examination = diagnose(cluster, silent, accept=("LIMITS",))
    write_report(examination, (), tmp_path / "report.html")
    page = html.unescape((tmp_path / "report.html").read_text())
    assert "Accepted" in page and "/dev/shm has 64 MiB" in page
    assert "node9" in page and "no answer within 10 s" in page
    assert "not everything could be read" in page


@pytest.mark.parametrize("text", ["<script>alert(1)</script>", '"><img src=x>', "\x1b[2J\udc80\0", "{{ 7 * 7 }}"])
def test_text_of_a_node_is_text(text: str, tmp_path: Path) -> None:
    def hostile(node: HealthyNode) -> None:
        node.gpus[0]["name"] = text
        node.machine.write("/sys/class/dmi/id", {"bios_version": text})
        node.host["kernel_log"] = {"xid": [f"NVRM: Xid (PCI:0000:9b:00): 79, {text}"]}

    page = written(cluster_with("node2", hostile), tmp_path)
    assert "<script" not in page and "<img" not in page and "\x1b" not in page and "\0" not in page
    assert "{{ 7 * 7 }}" in page or "7 * 7" not in text


@pytest.mark.turns(play=20)
@pytest.mark.parametrize("one", FAULTS, ids=lambda fault: fault.name)
def test_every_fault_can_be_shown(one: Fault) -> None:
    cluster = cluster_with("node2", one.breaks, one.trials)
    page = page_of(diagnose(cluster, {}), expected(cluster))
    assert page["findings"] and page["drawings"] and page["network"]["rows"]


def test_a_whole_cluster_and_none_at_all(tmp_path: Path) -> None:
    assert "Nothing wrong was found" in written(cluster_of(healthy_nodes()), tmp_path)
    assert "Nothing wrong was found" in written(Cluster(topologies={}, snapshots={}, specs={}), tmp_path)


def test_a_large_cluster_stays_a_page(tmp_path: Path) -> None:
    nodes = healthy_nodes(100)
    fault("port without a link").breaks(nodes["node77"])
    page = written(cluster_of(nodes), tmp_path)
    assert "node77" in page and "36 nodes without findings are not shown" in page
    assert len(page) < 300_000


def test_a_file_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="can't be written"):
        write_report(diagnose(cluster_of(healthy_nodes(1)), {}), (), tmp_path / "none" / "report.html")


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
def test_a_browser_shows_it_without_a_network(tmp_path: Path) -> None:
    assert CHROMIUM is not None
    written(cluster_with("node2", several_faults), tmp_path)
    common = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--window-size=1120,1600",
              f"--user-data-dir={tmp_path}/profile", "--host-resolver-rules=MAP * ~NOTFOUND"]  # fmt: skip
    address = (tmp_path / "report.html").as_uri()
    subprocess.run([*common, f"--screenshot={tmp_path}/page.png", address], check=True, capture_output=True, timeout=60)
    picture = (tmp_path / "page.png").read_bytes()
    assert struct.unpack(">II", picture[16:24]) == (1120, 1600)
    assert len(picture) > 60_000  # an empty page of this size is some 10 kB
    shown = subprocess.run(
        [*common, "--dump-dom", address], check=True, capture_output=True, timeout=60, text=True
    ).stdout
    assert shown.count("<svg") == shown.count("</svg>") == 3
    assert "put it here" not in shown  # no empty slot is known there
    assert "GPU 5 has 3 uncorrectable memory errors" in shown
    paper = [*common, "--no-pdf-header-footer", f"--print-to-pdf={tmp_path}/page.pdf", address]
    subprocess.run(paper, check=True, capture_output=True, timeout=60)
    assert (tmp_path / "page.pdf").read_bytes().count(b"/Type /Page\n") in range(2, 9)


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
    assert bmc(lines) == "10.155.8.180 (00:26:fd:a0:0d:52)"
    assert bmc(("IP Address              : 0.0.0.0",)) == bmc(()) == ""


def test_a_command_is_code_and_a_sentence_is_not_divided(tmp_path: Path) -> None:
    page = written(cluster_with("node2", several_faults), tmp_path)
    assert "<code>nvidia-smi --gpu-reset</code>" in page and "`" not in re.sub(r"(?s)<style>.*?</style>", "", page)
    assert sentences("run `a b. C d`; then look. Plug it in") == ["run `a b. C d`; then look.", "Plug it in"]
    assert sentences("plug the cable; run `x`") == ["plug the cable; run `x`"] and sentences("") == []
