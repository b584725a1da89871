"""`discover` as a user types it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.support.machine_files import reference_machine

from orchestrator.cli.main import main
from orchestrator.doctor.steps.recordings import save_snapshots
from orchestrator.model.snapshot import Snapshot

LOCAL = """
all:
  children:
    gangs:
      children:
        gang0:
          hosts:
            here: {ansible_host: 127.0.0.1, ansible_connection: local}
            away: {ansible_host: 127.0.0.9, ansible_port: 9}
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    (tmp_path / "hosts.yml").write_text(LOCAL)
    return str(tmp_path / "hosts.yml")


@pytest.fixture
def seen(tmp_path: Path) -> Path:
    folder = tmp_path / "seen"
    save_snapshots({f"node{n}": reference_machine(f"node{n}", n, right=n != 1).snapshot() for n in range(3)}, folder)
    return folder


def test_saved_trees(seen: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["discover", "--from", str(seen)]) == 0
    out = capsys.readouterr().out
    assert out.count("├── switch  0000:16:00.0  PEX9797  16 GT/s x16") == 3
    (wrong,) = [line for line in out.splitlines() if "NIC-NOT-UNDER-SWITCH" in line]
    assert "NIC  0000:c1:00" in wrong and "✗ an RDMA card is not behind the GPUs' PCIe switch" in wrong
    assert out.count("RDMA-PORT-DOWN") == 5
    assert "mlx5_3  port 1  ACTIVE  100 Gb/s  Ethernet  ens3f1np1  10.4.0.11/24  MTU 9000  GID 3" in out
    assert out.strip().endswith("3 nodes, 24 GPUs, 11 of 16 RDMA ports active")


def test_one_node_as_json(seen: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["discover", "--from", str(seen), "--node", "node1", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    (node,) = document["nodes"]
    assert node["name"] == "node1" and document["unreachable"] == []
    assert [port["switch"] for port in node["rdma_ports"]] == ["0000:16:00.0", "0000:16:00.0", *[None] * 4]
    assert [gpu["switch"] for gpu in node["gpus"]] == ["0000:16:00.0"] * 4 + ["0000:98:00.0"] * 4
    assert not any(port["rail"] for port in node["rdma_ports"])


def test_a_redacted_report_shows_the_same_machines_under_other_names(
    seen: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    report = tmp_path / "report"
    assert main(["discover", "--from", str(seen), "--redact", "--save", str(report)]) == 0
    out = capsys.readouterr().out
    assert "10.4.0.11" not in out and "machine2" in out
    assert out.strip().endswith("3 nodes, 24 GPUs, 11 of 16 RDMA ports active")
    assert sorted(path.name for path in report.iterdir()) == ["machine1.json", "machine2.json", "machine3.json"]
    assert main(["discover", "--from", str(report)]) == 0
    assert capsys.readouterr().out == out


def test_looking_saves_what_answers_and_tells_what_does_not(
    here: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["discover", "-i", here, "--save", str(tmp_path / "out")]) == 4
    said = capsys.readouterr()
    assert "away: not inspected: " in said.out and "; 1 node did not answer" in said.out
    assert f"snapshot written to {tmp_path}/out/here.json" in said.err
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["here.json"]
    assert main(["discover", "--from", str(tmp_path / "out")]) == 0
    assert said.out.splitlines()[0] in capsys.readouterr().out


def test_unreachable_nodes_are_in_the_json_too(here: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["discover", "-i", here, "--json", "--node", "away"]) == 4
    document = json.loads(capsys.readouterr().out)
    assert document["nodes"] == [] and document["unreachable"][0]["name"] == "away"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--from", "{seen}", "--node", "nix"], "no node is called 'nix'"),
        (["--from", "{seen}/absent"], "does not exist"),
        (["--from", "/etc/hostname"], "contains nothing that is recognised"),
        (["--from", "/dev/null"], "/dev/null: is empty"),
    ],
)
def test_wrong_input_is_one_message(
    seen: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["discover", *(word.format(seen=seen) for word in words)]) == 2
    said = capsys.readouterr()
    assert said.out == "" and message in said.err and "fix: " in said.err


@pytest.mark.parametrize("text", ["x", "03", "10de:", "0302:10de:1", "10de:030200f"])
def test_an_accelerator_that_is_none(text: str, seen: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["discover", "--from", str(seen), "--accelerator", text]) == 2
    assert "wanted VENDOR:CLASS in hex" in capsys.readouterr().err


def test_text_from_a_node_cannot_drive_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    snapshot = Snapshot(
        node="[bold]evil\x1b[2J",
        taken_at=0.0,
        files={"/proc/cpuinfo": "model name\t: \x1b]0;owned\x07[red]\n"},
        nvml={"devices": [{"index": 0, "name": "GPU\x1b[31m\udc80", "memory": {"total": 1}}], "driver": "\x9b1"},
        host={"addresses": {"eth\x1b0": [{"family": "inet", "address": "10.0.0.1", "prefixlen": 24}]}},
    )
    save_snapshots({snapshot.node: snapshot}, tmp_path)
    assert main(["discover", "--from", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    assert not any(char in out for char in "\x1b\x07\x9b")
    assert "[bold]evil\\x1b[2J" in out


POST = Path(__file__).parents[3] / "recorded" / "pasted" / "8x4090-bond.topo"


def test_what_is_pasted_comes_from_a_pipe_files_of_several_nodes_or_folders(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    piped = subprocess.run(
        [sys.executable, "-m", "orchestrator.cli.main", "doctor", "--from", "-"],
        input=POST.read_text(), capture_output=True, text=True, check=False, timeout=60,
    )  # fmt: skip
    assert piped.returncode == 3 and piped.stdout.startswith("recognised: nvidia-smi topo -m of stdin\nslow    stdin: ")
    assert piped.stdout.count("could not run") == 1
    assert main(["discover", "--matrix", "--from", str(POST)]) == 0
    shown = capsys.readouterr()
    assert shown.out == POST.read_text() and shown.err == "recognised: nvidia-smi topo -m of 8x4090-bond\n"
    assert main(["discover", "--from", str(POST)]) == 0
    shown = capsys.readouterr()
    assert "8 GPUs, 4 + 4 GPUs behind a switch each, 1 RDMA port, states not known\n" in shown.out
    assert shown.out.splitlines()[-1].startswith("1 node, 8 GPUs")
    assert "unknown" not in shown.out and shown.out.count("behind one switch") == 2
    assert main(["doctor", "--from", f"n1={POST}", f"n2={POST}"]) == 3
    assert "should log nNodes" not in capsys.readouterr().out  # the tree decides that
    for place in ("a/n1", "a/n2"):
        (tmp_path / place).mkdir(parents=True)
        (tmp_path / place / "topo.txt").write_text(POST.read_text())
        (tmp_path / place / "tree.txt").write_text(POST.with_name("articles.lspci-tv").read_text())
    both = [f"n1={POST}", f"n2={POST}"]
    folders = [str(tmp_path / "a/n1"), str(tmp_path / "a/n2")]
    for words in (["--from", *both], ["--from", both[0], "--from", both[1]], ["--from", str(tmp_path / "a")],
                  ["--from", *folders]):  # fmt: skip
        assert main(["doctor", "--json", *words]) == 3
        nodes = json.loads(capsys.readouterr().out)["nodes"]
        assert [(node["name"], node["gpus"]) for node in nodes] == [("n1", 8), ("n2", 8)]
        assert {pair["type"] for pair in nodes[1]["paths"]} == {"PIX", "SYS"}
        assert nodes[0]["recognised"][-1].startswith(("nvidia-smi topo -m", "lspci -tv"))
    assert main(["doctor", "--from", str(POST), str(POST)]) == 2
    assert "appears twice" in capsys.readouterr().err


def test_a_pasted_text_does_nothing_to_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text = POST.read_text().replace("mlx5_bond_0", "mlx5\x1b]0;owned\x07_bond_0[bold]").replace("GPU7", "GPU\x077")
    (tmp_path / "post.txt").write_text(text)
    for words in (["doctor"], ["discover"], ["discover", "--matrix"], ["doctor", "--json"]):
        main([*words, "--from", str(tmp_path / "post.txt")])
        shown = capsys.readouterr()
        assert not {"\x1b", "\x07"} & {*shown.out, *shown.err}
