"""Wrong input to `plan`, as typed: one message with the arithmetic and the nearest valid value, and an exit code."""

from __future__ import annotations

import json
import pwd
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
from tests.support.reference_cluster import topology

from l40s_lab.node.models import config
from orchestrator.cli.main import main
from orchestrator.loading.profiles import load_profile
from orchestrator.model.inventory import NodeSpec
from orchestrator.model.per_node import PerNode
from orchestrator.model.snapshot import Snapshot
from orchestrator.planning.steps import plan as workflow
from orchestrator.protocol.looks import PrerequisitesAnswer

FINE = "DeepSeek-V3-0324-Block64x64"
OLD, NEW = "sglang-0.4.4-l40s", "sglang-0.5.23"


class Bench:
    """Four reference nodes behind an inventory file; their facts and the file can be changed."""

    def __init__(self, folder: Path) -> None:
        self.file = folder / "hosts.yml"
        self.settings: dict[str, Any] = {}
        self.nodes = 4
        self.facts: dict[str, Any] = {}
        self.told: dict[str, PrerequisitesAnswer] = {}

    def look(self, _: object, nodes: Iterable[NodeSpec], __: object) -> PerNode[Snapshot]:
        host = {"user": "root", "home": "/root", "cpu_count": 2}
        return PerNode({node.name: Snapshot(node=node.name, taken_at=0.0, files={}, host=host) for node in nodes}, {})

    def run(self, *words: str) -> int:
        hosts = {f"node{rank}": {"ansible_host": f"10.0.0.{11 + rank}"} for rank in range(self.nodes)}
        inventory = {"gangs": {"children": {"gang0": {"hosts": hosts}}, "vars": self.settings}}
        self.file.write_text(json.dumps(inventory))
        return main(["plan", "-i", str(self.file), *words])


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = Bench(tmp_path)
    monkeypatch.setattr(workflow, "look", made.look)
    monkeypatch.setattr(workflow, "prerequisites", lambda *_: made.told)
    monkeypatch.setattr(
        workflow, "build", lambda snapshot: topology(snapshot.node, int(snapshot.node[4:]), **made.facts)
    )
    return made


@pytest.mark.parametrize(
    ("words", "settings", "what", "fix"),
    [
        (["--model", "DeepSeek-V3-0324-Block64"], {}, "no model is called 'DeepSeek-V3-0324-Block64'", FINE),
        (["--model", FINE, "--stack", "sglang-0.5.32"], {}, "no stack is called 'sglang-0.5.32'", NEW),
        (["--model", FINE, "--stack", NEW, "--", "--cuda-graph-max-bs", "32"], {}, "has no flag --cuda-graph-max-bs",
         "use --cuda-graph-max-bs-decode"),
        (["--model", FINE, "--stack", OLD, "--", "--enable-metrcs"], {}, "has no flag --enable-metrcs",
         "--enable-metrics"),
        (["--model", FINE, "--stack", NEW, "--", "--attention-backend", "tritn"], {}, "does not offer this value",
         "triton"),
        (["--model", "DeepSeek-V3-0324", "--stack", NEW], {}, "18432/32 = 576 is not a multiple", "re-block to 64"),
        (["--model", FINE, "--stack", NEW, "--tp", "16"], {}, "needs 16 GPUs, but the gang has 4 nodes x 8 = 32",
         "layout that works: TP32"),
        (["--model", FINE, "--stack", NEW, "--tp", "12"], {}, "128 attention heads are not divisible by 12",
         "layout that works: TP32"),
        (["--model", FINE, "--stack", NEW, "--ep", "3"], {}, "TP32 is not divisible by EP3",
         "layout that works: TP32"),
        (["--model", FINE, "--stack", OLD, "--pp", "4"], {}, "no pipeline parallelism", "SGLang 0.5"),
        (["--model", FINE, "--stack", OLD, "--ep", "2"], {}, "does not support this many expert-parallel ranks",
         "TP32"),
        (["--model", FINE, "--gang", "gang1"], {}, "no gang is called 'gang1'", "gang0"),
        (["--model", FINE], {"l40s_stack": "sglang-9"}, "no stack is called 'sglang-9'", "did you mean sglang-0.5.23"),
        (["--model", FINE], {"l40s_http_port": 5000}, "5000", ""),
        (["--model", FINE], {"l40s_api_key_file": "/nowhere/key"}, "/nowhere/key can't be read", "name a file"),
        (["--model", FINE], {"l40s_socket_ifname": "bond7"}, "'bond7' is not an interface", "set it to one of these"),
        (["--model", FINE], {"l40s_ib_hca": "=mlx5_7"}, "matches no ACTIVE RDMA port", "set it to ports that are up"),
        (["--plan", "/nowhere/plan.json"], {}, "this file can't be read", "plan --out"),
        ([], {}, "no model was given", "l40s-deploy models"),
    ],
)  # fmt: skip
def test_one_message_with_the_way_out(
    bench: Bench, capsys: pytest.CaptureFixture[str], words: list[str], settings: dict[str, Any], what: str, fix: str
) -> None:
    bench.settings = settings
    assert bench.run(*words) == 2
    out, err = capsys.readouterr()
    assert out == "" and what in err and fix in err
    assert err.count("error: ") == 1 and "Traceback" not in err


def test_too_few_gpus_in_the_gang(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.nodes = 2
    assert bench.run("--model", FINE, "--stack", NEW) == 2
    err = capsys.readouterr().err
    assert all(words in err for words in ("does not fit at TP16", "GiB", "use more GPUs"))


@pytest.mark.parametrize(
    ("settings", "facts", "words"),
    [
        ({}, {"gpus": 7}, "7 GPUs respond, but l40s_gpus is 8"),
        ({"l40s_transport": "rdma"}, {"rdma": []}, "l40s_transport is rdma, but node0 has no usable port"),
    ],
)
def test_what_the_machines_do_not_have(
    bench: Bench, capsys: pytest.CaptureFixture[str], settings: dict[str, Any], facts: dict[str, Any], words: str
) -> None:
    bench.settings, bench.facts = settings, facts
    assert bench.run("--model", FINE, "--stack", NEW) == 3
    assert words in capsys.readouterr().err


def test_a_checkpoint_that_is_not_the_profiles(bench: Bench, capsys: pytest.CaptureFixture[str]) -> None:
    bench.told = {"node2": PrerequisitesAnswer(config=json.dumps(config(load_profile("DeepSeek-V3-0324"))))}
    assert bench.run("--model", FINE) == 2
    err = capsys.readouterr().err
    assert f"node2: /workspace/{FINE}/config.json: the checkpoint does not match the profile {FINE}" in err
    assert "weight_block_size is [128, 128], the profile has [64, 64]" in err
    assert "--model DeepSeek-V3-0324`)" in err


def test_a_plan_file_whose_facts_changed(bench: Bench, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "plan.json")
    assert bench.run("--model", FINE, "--out", file) == 0
    assert bench.run("--plan", file) == 0
    bench.facts = {"gid_index": 5}
    assert bench.run("--plan", file) == 7
    assert "node0: gid index was 3, is now 5" in capsys.readouterr().err


def test_a_user_without_a_home(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.delenv("HOME")
    monkeypatch.setattr(pwd, "getpwuid", {}.__getitem__)
    assert main(["version"]) == 2
    assert capsys.readouterr().err.startswith("error: $HOME: is not set")
