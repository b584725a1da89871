"""`tuning run` with the engine's own kernels on emulated nodes without a GPU: Triton's interpreter runs them.

Timings mean nothing here. Tested: the queue over two nodes, the check against the product in float32, a kill and
what a second run then still has to do, the pack, and its installation where the engine looks.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.engine.kinds import WITH_ITS_TORCH
from tests.support.small_lab import SmallLab, small_lab
from tests.support.waiting import until

from l40s_lab.engine.environment import ensure_engine
from orchestrator.loading.resources import template
from orchestrator.protocol.message import parsed
from orchestrator.tuning.messages import TuneJob, TuneLine, TunersOrder
from orchestrator.tuning.steps.packs import load_pack

pytestmark = [pytest.mark.engine, pytest.mark.lab, pytest.mark.timeout(900), WITH_ITS_TORCH]

NAME = "mini-fp8"
DIMENSIONS = {
    "hidden_size": 128,
    "intermediate_size": 256,
    "moe_intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 256,
    "n_routed_experts": 4,
    "n_shared_experts": 0,
    "num_experts_per_tok": 2,
    "first_k_dense_replace": 1,
    "q_lora_rank": 0,
    "kv_lora_rank": 64,
    "qk_nope_head_dim": 64,
    "qk_rope_head_dim": 64,
    "v_head_dim": 64,
}


@pytest.fixture(scope="module")
def lab() -> Iterator[SmallLab]:
    with small_lab(f"tuning-{os.getpid()}", nodes=2, engine="sglang", gpus=1) as made:
        profile = {
            "name": NAME,
            "source": "made by the tests",
            "directory": NAME,
            "architecture": "DeepseekV3ForCausalLM",
            "quantisation": "fp8-block",
            "block": [64, 64],
            "dimensions": DIMENSIONS,
            "canary": {"prompt": "The capital of France is", "max_tokens": 8, "expect_any": ["Paris"]},
        }
        (made.folder / f"{NAME}.yml").write_text(yaml.safe_dump(profile))
        quantised = {"quant_method": "fp8", "fmt": "e4m3", "weight_block_size": [64, 64]}
        config = {"architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", **DIMENSIONS,
                  "quantization_config": quantised}  # fmt: skip
        for node in made.hosts():
            place = f"/workspace/{NAME}"
            made.on(node, f"mkdir -p {place} && cat >{place}/config.json", json.dumps(config).encode())
        yield made


def run(lab: SmallLab, pack: Path, *words: str) -> list[str]:
    return ["tuning", "run", str(pack), "--model", str(lab.folder / f"{NAME}.yml"), "--batch", "2",
            "--candidates", "2", *words]  # fmt: skip


def results(lab: SmallLab) -> list[dict[str, Any]]:
    files = list((lab.folder / "state").rglob("tuning/*.jsonl"))
    return [json.loads(line) for file in files for line in file.read_text().splitlines() if line.endswith("}")]


@pytest.mark.turns(of="kernels: right is right, wrong is caught")
def test_a_killed_run_goes_on_where_it_was_and_its_pack_reaches_the_engine(lab: SmallLab, tmp_path: Path) -> None:
    pack = tmp_path / "mini.tar.gz"
    first = lab.start(*run(lab, pack))
    until(lambda: len(results(lab)) >= 1 or first.poll() is not None, 300.0, lambda: str(first.poll()))
    assert first.poll() is None, first.communicate()
    os.kill(first.pid, signal.SIGKILL)
    first.communicate()
    kept = {result["job"] for result in results(lab)}
    until(lambda: not lab.in_place_processes(), 60.0, lambda: str(lab.in_place_processes()))
    lab.deploy("lock", "--release", "--force", code=None)

    done = lab.deploy(*run(lab, pack, "--json"), code=0, timeout=600)
    document = json.loads(done.stdout)
    jobs = document["jobs"]
    assert document["from_before"] >= len(kept) >= 1 and document["made"] == "interpreted"
    assert {job["batch"] for job in jobs} == {2} and {job["kernel"] for job in jobs} == {"moe", "linear"}
    assert all(job["product_error"] <= 0.02 for job in jobs) and not lab.in_place_processes()
    assert all(64 % job["config"]["BLOCK_SIZE_K"] == 0 for job in jobs)
    assert len(document["files"]) == len({job["file"] for job in jobs})
    assert {job["node"] for job in jobs} == set(lab.hosts())
    assert len(load_pack(pack).texts) == len(document["files"])
    refused = lab.deploy("tuning", "push", str(pack), "--stack", "sglang-0.5.23", code=2)
    assert "without a GPU" in refused.stderr


@pytest.mark.turns(of="kernels: right is right, wrong is caught")
def test_the_plans_kernels_are_checked_on_every_node_and_nothing_is_left(lab: SmallLab) -> None:
    words = ("stack", "check", "--model", str(lab.folder / f"{NAME}.yml"), "--json")
    done = lab.deploy(*words, code=None, timeout=600)
    document = json.loads(done.stdout)
    assert (done.returncode, document["verdict"]) == (3, "not-run"), done.stdout[-3000:] + done.stderr[-3000:]
    assert {node["name"] for node in document["nodes"]} == set(lab.hosts()) and not document["lost"]
    for node in document["nodes"]:
        verdicts = {(one["name"], one["verdict"]) for one in node["kernels"]}
        assert node["stand_in"] and not {"wrong", "fails"} & {verdict for _, verdict in verdicts}
        assert {("decode attention", "right"), ("fused MoE", "right"), ("MLA absorb", "not-run")} <= verdicts
    assert not lab.in_place_processes()


@pytest.mark.turns(of="kernels: right is right, wrong is caught")
def test_tiles_that_give_a_wrong_product_are_never_kept(tmp_path: Path) -> None:
    def tile(depth: int) -> dict[str, int]:
        return {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 64, "BLOCK_SIZE_K": depth, "GROUP_SIZE_M": 1, "num_warps": 4,
                "num_stages": 3}  # fmt: skip

    jobs = [
        TuneJob(id="linear", kernel="linear", n=128, k=128, dtype="fp8_w8a8", block=(64, 64), batch=2, space="wrong"),
        TuneJob(id="moe", kernel="moe", e=4, n=64, k=128, top_k=2, dtype="fp8_w8a8", block=(64, 64), batch=2,
                space="wrong"),
        TuneJob(id="right", kernel="linear", n=128, k=128, dtype="fp8_w8a8", block=(64, 64), batch=2, space="right"),
    ]  # fmt: skip
    order = TunersOrder(device="cpu", gpus=2, spaces={"wrong": (tile(128),), "right": (tile(32),)}, jobs=tuple(jobs))
    asked = tmp_path / "order.json"
    asked.write_text(json.dumps(order.as_json()))
    said = subprocess.run(
        [str(ensure_engine() / "bin/python3"), "-c", template("tune.py"), "1", str(asked)],
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    lines = [line for raw in said.stdout.splitlines() if isinstance(line := TuneLine.read(parsed(raw)), TuneLine)]
    failed = {line.failed: line.what for line in lines if line.failed}
    assert set(failed) == {"linear", "moe"}, said.stdout + said.stderr[-2000:]
    assert all("1 ran, 1 of the fastest are wrong" in what for what in failed.values())
    assert [line.job for line in lines if line.job] == ["right"]
