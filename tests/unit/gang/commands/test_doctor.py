"""`doctor` on saved snapshots: exit codes, the screen, the JSON, and the files it writes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.support.command_lines import commands_in, parsed
from tests.support.faults import fault
from tests.support.healthy_cluster import HealthyNode, cluster_of, cluster_with, healthy_nodes

from orchestrator.cli.main import main
from orchestrator.cli.screen import Screen
from orchestrator.doctor.commands import findings
from orchestrator.doctor.rules.support.registry import all_rules
from orchestrator.doctor.steps.recordings import Given, examine_given, save_snapshots
from orchestrator.planning import page_cache

MODEL = "DeepSeek-V3-0324-Block64x64"
RECORDED = Path(__file__).parents[4].parent / "shared" / "recorded"


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("right")
    save_snapshots(cluster_of(healthy_nodes()).snapshots, folder)
    return str(folder)


@pytest.fixture(scope="module")
def broken(tmp_path_factory: pytest.TempPathFactory) -> str:
    def breaks(node: HealthyNode) -> None:
        fault("card in a root-port slot").breaks(node)
        fault("persistence mode off").breaks(node)

    folder = tmp_path_factory.mktemp("broken")
    save_snapshots(cluster_with("node2", breaks).snapshots, folder)
    return str(folder)


def document(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = main(["doctor", "--json", *words])
    return code, json.loads(capsys.readouterr().out)


def test_nothing_wrong(right: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--from", right]) == 0
    shown = capsys.readouterr().out
    assert "4 nodes, 32 GPUs examined: nothing wrong" in shown
    assert "all 4 nodes: 2 switches with 4 GPUs + 1 NIC each" in shown
    assert "NCCL 2.21.5 and 2.30.7 should log nNodes 8 localRanks 4: the halves of a node communicate" in shown


def test_the_examples_need_neither_an_inventory_nor_a_node(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, wrong = document(capsys, "--example", "articles")
    found = {one["id"] for one in wrong["findings"]}
    assert code == 3 and found == {"NIC-NOT-UNDER-SWITCH", "TRAFFIC-ON-TCP", "RDMA-PORT-DOWN"}
    assert {one["severity"] for one in wrong["findings"]} == {"slow"} and len(wrong["nodes"]) == 4
    code, right = document(capsys, "--example", "right")
    assert code == 0 and not right["findings"]
    assert main(["doctor", "--example", "articles", "--report", str(tmp_path / "page.html")]) == 3
    shown = capsys.readouterr().out
    assert "at 4 requests: about 42 instead of 154 tokens/s" in shown and shown.count("driver 580.65.06") == 1
    faults = ("RDMA card 0000:b8:00", "no RDMA port of this node can carry", "5 of 6 RDMA ports are down")
    lines = shown.splitlines()
    assert [fault in line for fault, line in zip(faults, lines, strict=False)] == [True, True, True]
    assert lines[-1].endswith("examined: 3 slow (NIC-NOT-UNDER-SWITCH, TRAFFIC-ON-TCP, RDMA-PORT-DOWN)")
    assert shown.index("mlx5_5  port 1  DOWN") < shown.index("costs:") and (tmp_path / "page.html").stat().st_size
    assert main(["doctor", "--example", "rigt"]) == 2 and "did you mean right?" in capsys.readouterr().err
    assert main(["doctor", "--example", "right", "--from", "x"]) == 2


def test_the_examples_are_listed_where_none_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    for verb in ("doctor", "plan"):
        assert main([verb, "--example"]) == 0
        typed = [line for line in capsys.readouterr().out.splitlines() if line.startswith("l40s-deploy")]
        assert [line.split()[-1] for line in typed] == ["articles", "right"]
        assert [parsed(words).example for line in typed for words in commands_in(line)] == ["articles", "right"]
    assert main(["doctor", "--example", "--json"]) == 0
    assert [one["name"] for one in json.loads(capsys.readouterr().out)["examples"]] == ["articles", "right"]


def test_findings_on_the_screen(broken: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--from", broken]) == 3
    shown = capsys.readouterr().out
    assert "slow    node2: RDMA card 0000:c1:00 (mlx5_2, mlx5_3) in slot 6 is on a root port" in shown
    assert "costs:  4 of 8 GPUs have no nearby card" in shown
    assert "all but node2 carry traffic between their halves" in shown
    assert shown.index("NIC-NOT-UNDER-SWITCH") < shown.index("GPU-MODE")


def test_the_document(broken: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = document(capsys, "--from", broken)
    assert code == 3
    first = said["findings"][0]
    assert set(first) == {"id", "severity", "node", "devices", "title", "evidence", "effect", "fix"}
    assert (first["id"], first["node"]) == ("NIC-NOT-UNDER-SWITCH", "node2")
    assert [node["name"] for node in said["nodes"]] == ["node0", "node1", "node2", "node3"]
    assert said["nodes"][0]["groups"] == [
        {"switch": "0000:16:00.0", "numa_node": 0, "gpus": 4, "nics": 1},
        {"switch": "0000:98:00.0", "numa_node": 1, "gpus": 4, "nics": 1},
    ]
    assert said["nodes"][0]["between_gpus"] == {"inside": ["PIX"], "across": ["SYS"]}
    assert said["nodes"][0]["paths"][3] == {"from": "GPU0", "to": "GPU4", "type": "SYS"}
    assert said["nodes"][0]["usable_gpus"] == 8
    assert (said["nodes"][0]["gpus"], said["nodes"][0]["nics"], said["nodes"][0]["switches"]) == (8, 3, 2)
    assert said["nccl"][0]["nNodes"] == 7
    assert said["nccl"][0]["groups"]["node0"] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert said["accepted"] == said["unreachable"] == []


def test_whether_the_model_that_runs_fits_the_page_cache_is_said_both_ways(capsys: pytest.CaptureFixture[str]) -> None:
    gib = 1 << 30
    seen = examine_given(Given(cluster_of(healthy_nodes()).snapshots))
    for room, words in ((472, "they fit"), (100, "they do not fit on node0")):
        fits = {"node0": page_cache.PageCacheFit(166 * gib, room * gib)}
        one = replace(seen, caches={"gang0": fits})
        assert findings.document(one)["page_cache"] == [
            {"gang": "gang0", "nodes": [{"name": "node0", "bytes": 166 * gib, "room": room * gib, "fits": room == 472}]}
        ]
        findings.show(one, (), Screen())
        said = f"gang0: page cache: 166 GiB of weight files per node, room for {room} GiB (calculated): {words}"
        assert said in capsys.readouterr().out.replace("\n", " ")


def test_one_node_alone(broken: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = document(capsys, "--from", broken, "--node", "node1")
    assert code == 0 and [node["name"] for node in said["nodes"]] == ["node1"]
    code, said = document(capsys, "--from", broken, "--node", "node1", "--node", "node2")
    assert code == 3 and {finding["node"] for finding in said["findings"]} <= {"", "node1", "node2"}
    assert main(["doctor", "--from", broken, "--node", "node7"]) == 2
    assert "no node is called 'node7'" in capsys.readouterr().err


def test_what_is_accepted_is_not_mentioned(broken: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--from", broken, "--accept", "NIC-NOT-UNDER-SWITCH@node2"]) == 0
    assert "NIC-NOT-UNDER-SWITCH" not in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--accept", "NIC-NOT-UNDER"), "no finding is called 'NIC-NOT-UNDER'"),
        (("--accept", "LIMITS@node7"), "no node is called 'node7'"),
        (("--accelerator", "gpu"), "found 'gpu', wanted VENDOR:CLASS in hex"),
    ],
)
def test_wrong_words(words: tuple[str, ...], said: str, right: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--from", right, *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["doctor", f"plan --model {MODEL}", f"up --model {MODEL}"])
def test_where_no_node_answers_nothing_is_called_right_and_all_are_named(
    verb: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    hosts = {
        name: {"ansible_host": address, "ansible_port": 1, "ansible_user": "nobody"}
        for name, address in (("a", "127.0.0.1"), ("b", "127.0.0.2"))
    }
    inventory = tmp_path / "hosts.yml"
    inventory.write_text(json.dumps({"gangs": {"children": {"g": {"hosts": hosts}}}}))
    assert main([*verb.split(), "-i", str(inventory)]) == 4
    said = capsys.readouterr()
    shown = said.out + said.err
    assert "nothing wrong" not in shown
    if verb == "doctor":
        assert "no node was examined; the wiring is unknown" in shown
    assert "a: " in shown and "b: " in shown, shown


def test_report_and_topology_files(broken: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report, folder = tmp_path / "r.html", tmp_path / "xml"
    assert main(["doctor", "--from", broken, "--report", str(report), "--dump-xml", str(folder)]) == 3
    assert report.read_text().startswith("<!DOCTYPE html>")
    assert sorted(path.name for path in folder.iterdir()) == ["node0.xml", "node1.xml", "node2.xml", "node3.xml"]
    assert f"report written to {report}" in capsys.readouterr().err
    assert main(["doctor", "--from", str(folder / "node0.xml")]) == 0
    assert "2 switches with 4 GPUs + 1 NIC each" in capsys.readouterr().out


def test_rules_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["doctor", "--explain"]) == 0
    listed = capsys.readouterr().out
    assert all(rule.id in listed for rule in all_rules())
    code, said = document(capsys, "--explain")
    assert code == 0
    assert len(said["rules"]) == len(all_rules())


@pytest.mark.parametrize(
    "name",
    ["2pa-pcidomain32bits.tar.bz2", "fakepcilocalities.tar.bz2", "azure-ndv4-topo.xml",
     "32intel64-2p8co2t+8ve.tar.bz2"],
)  # fmt: skip
def test_recorded_machines(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    path = RECORDED / name
    if not path.exists():
        pytest.skip(f"the recorded machine {name} is not beside this checkout")
    code, said = document(capsys, "--from", str(path), "--accelerator", "1bcf:0b4000")
    assert code == 0
    assert {finding["severity"] for finding in said["findings"]} == {"unknown"}  # not read as root, no NVML
