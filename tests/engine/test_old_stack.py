"""The stack sglang-0.4.4-l40s as an operator gets it: built from an index, installed on a node by `prepare`, imported.

Only sgl-kernel is not real: no index has its wheel any more, so a stub replaces it, with the one name that the
recipe's check looks for in its shared object. Nothing runs on a GPU. Run by `make prepared`: it fetches three
gigabytes.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.support.reference_cluster import gang, topologies
from tests.support.small_lab import SmallLab, small_lab
from tests.support.wheels import wheel

from orchestrator.loading.profiles import load_profile, load_stack, stack_recipe
from orchestrator.model.plan import GangPlan
from orchestrator.planning.build import PlanFacts, build_plan
from orchestrator.protocol.staging import Asked

pytestmark = [
    pytest.mark.engine,
    pytest.mark.lab,
    pytest.mark.installs,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(os.geteuid() != 0, reason="nodes with a root file system of their own need root"),
]

STACK, MODEL = "sglang-0.4.4-l40s", "DeepSeek-V3-0324-Block64x64"
VENV = "/opt/l40s/venvs/old"
BUILD_S = INSTALL_S = 1500.0
KERNEL = '''
"""Stands in for sgl-kernel, which no index has: every name is there, and nothing works."""


def __getattr__(name):
    if name.startswith("__"):
        raise AttributeError(name)
    return lambda *_, **__: None
'''
PARSE = """
# Without a GPU the engine imports other modules: torch and Triton are told that there is one, and do nothing.
import json, sys, types, torch, triton
gpu = torch.cuda
gpu.is_available, gpu.device_count = lambda: True, lambda: 8
gpu.get_device_capability, gpu.get_device_name = lambda *_: (8, 9), lambda *_: "NVIDIA L40S"
target = types.SimpleNamespace(backend="cuda", arch=89, warp_size=32)
triton.runtime.driver.set_active(types.SimpleNamespace(get_current_target=lambda: target))
import sglang, sglang.launch_server, sglang.srt.models.deepseek_v2, sglang.srt.managers.scheduler, sglang.bench_serving
from sglang.srt import server_args
server_args.get_nvgpu_memory_capacity = lambda: 46068
args = server_args.prepare_server_args(sys.argv[1:])
print(json.dumps({"version": sglang.__version__, "tp": args.tp_size, "model": args.served_model_name,
                  "graphs": args.cuda_graph_max_bs, "compile": args.torch_compile_max_bs,
                  "fraction": args.mem_fraction_static}))
"""


@pytest.fixture(scope="module")
def lab() -> Iterator[SmallLab]:
    """One node whose inventory wants the stack where nothing is installed yet."""
    with small_lab("old-stack", nodes=1) as lab:
        lab.write_inventory(vars={"l40s_venv": VENV, "l40s_stack": STACK})
        yield lab


def stub(folder: Path) -> None:
    stack = load_stack(STACK)
    (pin, _), = stack.bring  # fmt: skip
    name, _, version = pin.partition("==")
    files = dict.fromkeys(("sgl_kernel/__init__.py", "deep_gemm/__init__.py"), KERNEL)
    files["sgl_kernel/common_ops.abi3.so"] = "\0_Z19sm89_dispatch_shape\0"
    wheel(folder, name, version, files)


def test_built_installed_imported_and_judged(lab: SmallLab, tmp_path: Path) -> None:
    bundle = lab.folder / "old.bundle"
    missing = lab.deploy("stack", "build", STACK, "--out", str(bundle), code=2)
    assert "sgl-kernel==0.0.5.post4 is on no package index" in missing.stderr
    assert not bundle.exists()
    stub(tmp_path)
    lab.deploy("stack", "build", STACK, "--out", str(bundle), "--find-links", str(tmp_path), timeout=BUILD_S)

    words = ("prepare", "--stack", STACK, "--bundle", str(bundle), "--tags", "engine_env")
    lab.deploy(*words, timeout=INSTALL_S)
    again = json.loads(lab.deploy(*words, "--json", timeout=INSTALL_S).stdout)
    assert [node["result"]["changed"] for node in again["nodes"]] == [0]

    node, plan = next(iter(lab.hosts())), planned()
    argv = plan.nodes[0].argv
    asked = shlex.join([f"{VENV}/bin/python3", "-c", PARSE, *argv[argv.index("-m") + 2 :]])
    said = json.loads(lab.on(node, f"CUDA_VISIBLE_DEVICES= {asked}", timeout=300).splitlines()[-1])
    profile = load_profile(MODEL)
    assert said == {
        "version": load_stack(STACK).engine_version,
        "tp": 32,
        "model": MODEL,
        "graphs": profile.cuda_graph_max_bs,
        "compile": profile.torch_compile_max_bs,
        "fraction": plan.memory.static_fraction,
    }
    assert "No broken requirements" in lab.on(node, f"{VENV}/bin/python3 -m pip check || true", timeout=120)

    patch = (stack_recipe(STACK)[0] / "patch.py").read_bytes()
    config = "/tmp/branch/quantization/configs/N=1,K=1,device_name=NVIDIA_L40S,dtype=fp8_w8a8.json"
    lab.on(node, f"mkdir -p {Path(config).parent} && echo '{{}}' >{config} && cat >/tmp/branch/patch.py", patch)
    assert "1 tuned configs; sglang is what the stack's file says" in lab.on(
        node, f"{VENV}/bin/python3 /tmp/branch/patch.py /tmp/branch"
    )
    assert "STACK-PATCHES" not in found(lab)
    tiles = "sglang/srt/layers/attention/triton_ops/extend_attention.py"
    lab.on(node, f"sed -i s/CUDA_CAPABILITY/CAPABILITY/ {VENV}/lib/python3.11/site-packages/{tiles}")
    assert "STACK-PATCHES" in found(lab)


def planned() -> GangPlan:
    """The plan of four nodes, whose flags are passed to 0.4.4's own parser."""
    spec = gang()
    return build_plan(
        [spec], load_profile(MODEL), load_stack(STACK), Asked(model=MODEL), PlanFacts(topologies=topologies(spec))
    ).gangs[0]


def found(lab: SmallLab) -> set[str]:
    """Ids of doctor's findings."""
    document: Any = lab.json("doctor")
    return {finding["id"] for finding in document["findings"]}
