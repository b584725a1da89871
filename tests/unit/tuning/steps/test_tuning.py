"""Tuned configs of nodes that are folders on this machine, through the delivered node application."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from orchestrator.cli.main import main
from orchestrator.engines.tuned_validity import State
from orchestrator.model.inventory import GangSpec, Inventory, NodeSpec, Overrides, Reach
from orchestrator.planning.steps.plan import PlanRequest
from orchestrator.protocol.errors import InputError, Unreachable
from orchestrator.tuning.steps.tuning import Kit, tuning_status

MODEL = "DeepSeek-V3-0324-Block64x64"
MOE = "sglang/srt/layers/moe/moe_runner/triton_utils/configs"
LINEAR = "sglang/kernels/ops/gemm/configs"
UP = "E=257,N=64,device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[64, 64].json"
QKV = "N=2112,K=7168,device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[64, 64].json"
GOOD = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": 64, "GROUP_SIZE_M": 1}


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def environment(folder: Path, *, triton: str = "3.8.0", engine: str = "0.5.23") -> Path:
    """A virtual environment with the folders of a 0.5.23 wheel; returns its site-packages."""
    site = folder / "lib" / "python3.11" / "site-packages"
    (site / LINEAR).mkdir(parents=True)
    (site / MOE / "triton_3_1_0").mkdir(parents=True)
    for package, version in (("sglang", engine), ("triton", triton)):
        (site / f"{package}-{version}.dist-info").mkdir()
    return site


def config(path: Path, **changed: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"1": GOOD | changed, "4096": GOOD | changed}))


def node(rank: int, folder: Path, **changes: Any) -> NodeSpec:
    return NodeSpec(
        name=f"node{rank}",
        gang="gang0",
        node_rank=rank,
        reach=Reach(host="127.0.0.1", connection="local"),
        fs_root=str(folder / "nothing"),
        venv=str(folder / f"venv{rank}"),
        **changes,
    )


def inventory(*nodes: NodeSpec) -> Inventory:
    return Inventory(path="hosts.yml", gangs=(GangSpec(name="gang0", nodes=nodes),))


def status(*nodes: NodeSpec, **words: Any) -> Kit:
    asked = PlanRequest(model=MODEL, stack="sglang-0.5.23", **{"pp": 1, "tp": 8 * len(nodes)} | words)
    (kit,) = tuning_status(inventory(*nodes), asked)
    return kit


def test_a_stack_that_can_not_have_the_layout_is_told_beside_one_that_can() -> None:
    old, new = tuning_status(None, PlanRequest(model="DeepSeek-V3-0324", pp=4, tp=8))
    assert old.refusal is not None
    assert "no pipeline parallelism" in old.refusal.what
    assert new.refusal is None
    with pytest.raises(InputError, match="18432/32"):
        tuning_status(None, PlanRequest(model="DeepSeek-V3-0324"))


def test_each_node_has_what_it_has(tmp_path: Path) -> None:
    """32 GPUs over four nodes: tuned, from another Triton, none, and no environment at all."""
    sites = [environment(tmp_path / f"venv{rank}") for rank in range(3)]
    config(sites[0] / MOE / "triton_3_8_0" / UP)
    config(sites[0] / LINEAR / QKV)
    config(sites[1] / MOE / "triton_3_1_0" / UP)
    kit = status(*(node(rank, tmp_path) for rank in range(4)))
    assert not kit.failures
    assert [rows[0].state for rows in kit.rows.values()] == [State.TUNED, State.FALLBACK, State.DEFAULT]
    assert [rows[1].state for rows in kit.rows.values()] == [State.FALLBACK, State.FALLBACK, State.DEFAULT]
    assert [rows[2].state for rows in kit.rows.values()] == [State.TUNED, State.DEFAULT, State.DEFAULT]
    assert kit.holdings["node3"].root == ""
    assert (kit.triton, kit.triton_source) == ("3.8.0", "installed on node0")
    assert not any(row.harms for rows in kit.rows.values() for row in rows)


def test_a_config_that_gives_wrong_text_is_found_on_its_node(tmp_path: Path) -> None:
    for rank in range(4):
        config(environment(tmp_path / f"venv{rank}") / LINEAR / QKV, BLOCK_SIZE_K=128 if rank == 2 else 64)
    kit = status(*(node(rank, tmp_path) for rank in range(4)))
    assert [name for name, rows in kit.rows.items() if any(row.harms for row in rows)] == ["node2"]


def test_the_variable_moves_the_moe_configs_and_a_directory_without_configs_is_a_failure(tmp_path: Path) -> None:
    for rank in range(4):
        config(environment(tmp_path / f"venv{rank}") / MOE / "triton_3_8_0" / UP)
    config(tmp_path / "own" / "configs" / "triton_3_8_0" / UP)
    own, nowhere = (Overrides(env=(("SGLANG_MOE_CONFIG_DIR", str(tmp_path / name)),)) for name in ("own", "nowhere"))
    kit = status(node(0, tmp_path, overrides=own), node(1, tmp_path, overrides=nowhere), *(
        node(rank, tmp_path) for rank in (2, 3)))  # fmt: skip
    assert kit.rows["node0"][0].folder == str(tmp_path / "own" / "configs" / "triton_3_8_0")
    assert kit.rows["node1"][0].state is State.FAILS
    assert kit.rows["node1"][0].harms
    assert kit.rows["node2"][0].state is State.TUNED


def test_an_engine_installed_from_its_sources_is_found(tmp_path: Path) -> None:
    site = environment(tmp_path / "venv0")
    (site / "sglang").rename(tmp_path / "sglang")
    (site / "__editable__.sglang-0.4.4.pth").write_text(f"{tmp_path}\n")
    kit = status(node(0, tmp_path, gpus=32), tp=32)
    assert kit.holdings["node0"].root == str(tmp_path)


def test_a_node_that_does_not_answer_is_beside_the_others(tmp_path: Path) -> None:
    environment(tmp_path / "venv0")
    away = NodeSpec(name="away", gang="gang0", node_rank=1, reach=Reach(host="127.0.0.9", port=9), gpus=16)
    kit = status(node(0, tmp_path, gpus=16), away, tp=32)
    assert isinstance(kit.failures["away"], Unreachable)
    assert list(kit.rows) == ["node0"]


REFERENCE = str(Path(__file__).resolve().parents[4] / "inventory" / "reference.yml")


def test_status_lists_names_and_shapes_for_both_stacks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tuning", "status", "--model", MODEL, "-i", REFERENCE, "--offline"]) == 0
    out = capsys.readouterr().out
    assert "sglang-0.4.4-l40s: SGLang 0.4.4.post3, Triton 3.1.0" in out
    assert "E=256,N=64,device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[64, 64].json" in out
    assert "sglang-0.5.23: SGLang 0.5.23, Triton 3.8.0" in out
    assert "E=257,N=64,device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[64, 64]_down.json" in out
    assert "N=2112, K=7168" in out


def test_status_without_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("L40S_INVENTORY", raising=False)
    monkeypatch.setenv("L40S_LAB_ROOT", str(tmp_path))
    assert main(["tuning", "status", "--model", MODEL, "--json"]) == 0
    out, err = capsys.readouterr()
    old, new = json.loads(out)["stacks"]
    assert (old["name"], new["name"], new["layout"]) == ("sglang-0.4.4-l40s", "sglang-0.5.23", "TP32")
    assert (old["files"][0]["shape"], new["files"][2]["shape"]) == ({"E": 256, "N": 64}, {"N": 2112, "K": 7168})
    assert new["gpu_source"].startswith("assumed") and not new["failures"]
    assert "4 nodes with 8 GPUs NVIDIA L40S each are assumed" in err


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--model", "nope"), "nope"),
        (("--model", MODEL, "--stack", "nope"), "nope"),
        (("--model", MODEL, "gang9"), "gang9"),
        (("--model", MODEL, "--layout", "tp64"), "needs 64 GPUs"),
        (("--model", MODEL, "--layout", "tp8,tp4"), "no layout 'tp8,tp4'"),
    ],
)
def test_wrong_words_are_refused(words: tuple[str, ...], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tuning", "status", "-i", REFERENCE, "--offline", *words]) == 2
    assert said in capsys.readouterr().err
