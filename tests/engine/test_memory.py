"""The plan's static fraction and KV tokens against SGLang's own functions, on a simulated L40S.

Those of 0.5.23 run here. Of the other versions, tests/unit/engines/resolved.json has what their sources resolve;
`UPDATE_GOLDEN=1 pytest tests/engine/test_memory.py -m long` writes it.
"""

from __future__ import annotations

import contextlib
import json
import os
import runpy
import subprocess
import zipfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tests.engine.kinds import SAME_AS_THE_ENGINES
from tests.support.reference_cluster import GPU_BYTES, gang, topologies

from l40s_lab.engine.environment import ensure_engine
from l40s_lab.node.models import config
from orchestrator.engines.sglang_0_5 import PADDING
from orchestrator.loading.profiles import load_profile, load_stack, profile_names
from orchestrator.model.inventory import Overrides
from orchestrator.model.plan import GangPlan
from orchestrator.model.profile import ModelProfile, Stack
from orchestrator.planning.build import PlanFacts, build_plan
from orchestrator.planning.host import HostFacts
from orchestrator.planning.layout import refusal
from orchestrator.protocol.errors import InputError
from orchestrator.protocol.staging import Asked

pytestmark = [
    pytest.mark.engine,
    pytest.mark.timeout(1200),
    SAME_AS_THE_ENGINES,
]

STACK = load_stack("sglang-0.5.23")
BLOCK64, STOCK, INT8 = "DeepSeek-V3-0324-Block64x64", "DeepSeek-V3-0324", "DeepSeek-R1-Channel-INT8"
GROUPED = "grouped-query attention"
"""A small model without MLA that fits everywhere."""


class Row(NamedTuple):
    """A model, its layout, flags after `--`, flags of the profile and of l40s_args; the number of 8-GPU nodes if not 4;
    groups of attention data parallelism, expert parallel degree."""

    model: str
    layout: str
    extra: str = ""
    profile: str = ""
    inventory: str = ""
    gpus: int = 8
    nodes: int = 0
    attention: int = 1
    expert: int = 1


FRACTION = "--mem-fraction-static 0.8"
ROWS = [
    Row(BLOCK64, "32"),
    Row(BLOCK64, "32", FRACTION),
    Row(BLOCK64, "32", profile=FRACTION),
    Row(BLOCK64, "32", inventory=FRACTION),
    Row(BLOCK64, "32", "--mem-fraction-static 0.78", inventory=FRACTION),
    Row(BLOCK64, "32", "--kv-cache-dtype fp8_e4m3"),
    Row(BLOCK64, "32", "--kv-cache-dtype fp8_e5m2"),
    Row(BLOCK64, "32", "--kv-cache-dtype bf16"),
    Row(BLOCK64, "32", "--cuda-graph-max-bs-decode 128"),
    Row(BLOCK64, "32", "--cuda-graph-bs-decode 1 2 4 96"),
    Row(BLOCK64, "32", "--cuda-graph-backend-decode disabled"),
    Row(BLOCK64, "32", "--cuda-graph-backend-prefill disabled"),
    Row(BLOCK64, "32", "--disable-prefill-cuda-graph"),
    Row(BLOCK64, "32", "--disable-decode-cuda-graph"),
    Row(BLOCK64, "32", "--disable-cuda-graph"),
    Row(BLOCK64, "32", "--chunked-prefill-size 8192"),
    Row(BLOCK64, "32", "--chunked-prefill-size 1024"),
    Row(BLOCK64, "32", "--chunked-prefill-size -1 --max-prefill-tokens 4096"),
    Row(BLOCK64, "32", "--max-total-tokens 100000"),
    Row(BLOCK64, "32", "--max-total-tokens 1000"),
    Row(BLOCK64, "32", "--max-total-tokens 900000"),
    Row(BLOCK64, "32", "--max-running-requests 16"),
    Row(BLOCK64, "32", "--context-length 32768"),
    Row(BLOCK64, "32", attention=4),
    Row(BLOCK64, "32", attention=16),
    Row(BLOCK64, "32", "--cuda-graph-max-bs-decode 64", attention=2),
    Row(BLOCK64, "32", "--chunked-prefill-size 8192 --max-running-requests 64", attention=4),
    Row(BLOCK64, "32", "--kv-cache-dtype fp8_e4m3 --context-length 65536", attention=8),
    Row(BLOCK64, "32", "--speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1"
        " --speculative-num-draft-tokens 4", attention=4),
    Row(INT8, "32", attention=4),
    Row(STOCK, "32", attention=4, expert=2),
    Row(STOCK, "8x4", attention=2),
    Row("MiniMax-M2", "8", nodes=1, attention=2, expert=8),
    Row("GLM-4.6-FP8", "32", attention=4),
    Row("gpt-oss-120b", "8", nodes=1, attention=4),
    Row(GROUPED, "8", "--max-running-requests 32", gpus=2, attention=4),
    Row(BLOCK64, "32", "--speculative-algorithm EAGLE --speculative-num-steps 3 --speculative-eagle-topk 1"
        " --speculative-num-draft-tokens 4"),
    Row(INT8, "32"),
    Row(INT8, "32", FRACTION),
    Row(INT8, "32", "--kv-cache-dtype fp8_e4m3"),
    Row(INT8, "32", "--chunked-prefill-size 2048 --cuda-graph-max-bs-decode 8"),
    Row(STOCK, "8x4"),
    Row(STOCK, "8x4", FRACTION),
    Row(STOCK, "8x4", "--cuda-graph-max-bs-decode 160"),
    Row(STOCK, "8x4", "--cuda-graph-backend-prefill breakable"),
    Row(STOCK, "8x4", "--kv-cache-dtype fp8_e4m3"),
    Row(STOCK, "8x4", "--max-total-tokens 50000"),
    Row(STOCK, "8x4", "--chunked-prefill-size 8192"),
    Row(STOCK, "16x2"),
    Row(STOCK, "16x2", "--mem-fraction-static 0.85"),
    Row("MiniMax-M2", "4x2", nodes=1),
    Row("MiniMax-M2.7", "4x2", "--mem-fraction-static 0.85", nodes=1),
    Row("Qwen3-235B-A22B-Thinking-2507-FP8", "4x2", nodes=1),
    Row("GLM-4.7-FP8", "8x2", nodes=2),
    Row("GLM-4.6-FP8", "32"),
    Row("Kimi-K2-Instruct-0905", "8x4"),
    Row("Kimi-K2.5", "8x4"),
    Row("Kimi-K2.6", "8x4", "--language-only"),
    Row("DeepSeek-V3.1-Terminus", "8x4"),
    Row("DeepSeek-R1", "8x4"),
    Row("DeepSeek-R1-0528", "8x4"),
    Row("DeepSeek-V3.1", "8x4"),
    Row("DeepSeek-R1-Block64x64", "32"),
    Row("DeepSeek-R1-0528-Block64x64", "32"),
    Row("DeepSeek-V3.1-Block64x64", "32"),
    Row("Qwen3-235B-A22B-Instruct-2507-FP8", "4x2", nodes=1),
    Row("MiniMax-M2.5", "4x2", nodes=1),
    Row("gpt-oss-120b", "8", nodes=1),
    Row("gpt-oss-120b", "8", "--swa-full-tokens-ratio 0.5", nodes=1),
    Row("gpt-oss-120b", "8", "--disable-hybrid-swa-memory", nodes=1),
    Row(GROUPED, "8", gpus=2),
    Row(GROUPED, "8", "--chunked-prefill-size 2048", gpus=2),
    Row(GROUPED, "8", "--cuda-graph-max-bs-prefill 1024", gpus=2),
    Row(GROUPED, "8", "--cuda-graph-bs-prefill 128 256 512", gpus=2),
    Row(GROUPED, "8", "--disable-prefill-cuda-graph", gpus=2),
    Row(GROUPED, "8", "--max-total-tokens 2000", gpus=2),
    Row(GROUPED, "2", gpus=1),
    Row(GROUPED, "2", "--max-running-requests 8", gpus=1),
    Row(GROUPED, "4x2", gpus=2),
    Row(GROUPED, "8", "--kv-cache-dtype fp8_e4m3", gpus=2),
]  # fmt: skip


def profile_of(row: Row) -> ModelProfile:
    words = row.profile.split()
    flags = tuple(("", flag, value) for flag, value in zip(words[::2], words[1::2], strict=True))
    if row.model != GROUPED:
        known = load_profile(row.model)
        return replace(known, flags=(*known.flags, *flags))
    dims = replace(
        load_profile("tiny-deepseek-v3").dimensions, hidden_size=4096, intermediate_size=12288, num_hidden_layers=32,
        num_attention_heads=32, num_key_value_heads=8, vocab_size=128256, n_routed_experts=0, n_shared_experts=0,
        num_experts_per_tok=0, first_k_dense_replace=0, moe_intermediate_size=0, q_lora_rank=0, kv_lora_rank=0,
        qk_nope_head_dim=0, qk_rope_head_dim=0, v_head_dim=0, num_nextn_predict_layers=0, head_dim=128,
    )  # fmt: skip
    return replace(load_profile("tiny-deepseek-v3"), directory="llama", architecture="LlamaForCausalLM",
                   dimensions=dims, flags=flags, bytes=0)  # fmt: skip


def planned(row: Row, stack: Stack = STACK) -> GangPlan:
    tensor, _, stages = row.layout.partition("x")
    nodes = row.nodes or 4 if row.gpus == 8 else int(tensor) * int(stages or 1) // row.gpus
    spec = gang(nodes, gpus=row.gpus, overrides=Overrides(args=tuple(row.inventory.split())))
    asked = Asked(
        model=profile_of(row).name,
        tp=int(tensor),
        pp=int(stages or 1),
        ep=row.expert,
        attn_dp=row.attention,
        extra_args=tuple(row.extra.split()),
    )
    host = HostFacts(user="root", home="/root", cpu_count=64, config=_config(profile_of(row)))
    known = PlanFacts(topologies=topologies(spec), hosts={node.name: host for node in spec.nodes})
    return build_plan([spec], profile_of(row), stack, asked, known).gangs[0]


def _config(profile: ModelProfile) -> dict[str, Any]:
    made = config(profile)
    if profile.architecture == "LlamaForCausalLM":
        made |= {"model_type": "llama", "rope_scaling": None}
        made = {key: value for key, value in made.items() if not key.startswith(("qk_", "kv_lora", "q_lora", "v_head"))}
    return made


RESOLVED = Path(__file__).parents[1] / "unit/engines/resolved.json"
Compared = list[tuple[GangPlan, dict[str, Any]]]


def in_version(version: str) -> dict[str, tuple[Row, GangPlan]]:
    """The rows that can be planned for another version, whose flags may have other names, each by its words."""
    stack, plans = replace(STACK, engine_version=version), {}
    for row in ROWS:
        with contextlib.suppress(InputError):
            plans["|".join(map(str, row))] = (row, planned(row, stack))
    return plans


def answers(folder: Path, plans: Sequence[tuple[Row, GangPlan]], *sources: Path) -> Compared:
    """Each plan with what the engine computes from its argv. `before` and `loaded` are the plan's, what the allocator
    takes beside the weights among it. sources: another version's, unpacked"""
    asked = []
    for row, plan in plans:
        profile = profile_of(row)
        place = folder / profile.directory
        place.mkdir(exist_ok=True)
        (place / "config.json").write_text(json.dumps(_config(profile)))
        argv = list(plan.nodes[0].argv)
        words = [str(place) if word == plan.nodes[0].model_path else word for word in argv[argv.index("-m") + 2 :]]
        before = GPU_BYTES - int(1.50 * (1 << 30))  # what 0.5 has taken before the first weight
        assert plan.memory.weights is not None
        layers = -(-profile.dimensions.num_hidden_layers // plan.layout.pipeline_parallel)
        loaded = before - plan.memory.weights - int(plan.memory.weights * PADDING)
        asked.append({"words": words, "before": before, "loaded": loaded, "layers": layers})
    (folder / "rows.json").write_text(json.dumps(asked))
    python = ensure_engine() / "bin/python3"
    script = Path(__file__).with_name("memory_of_sglang.py")
    command = [str(python), str(script), str(folder / "rows.json"), str(folder / "answers.json"), *map(str, sources)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    said = json.loads((folder / "answers.json").read_text())
    return list(zip((plan for _, plan in plans), said, strict=True))


@pytest.fixture(scope="module")
def compared(tmp_path_factory: pytest.TempPathFactory) -> Compared:
    return answers(tmp_path_factory.mktemp("memory"), [(row, planned(row)) for row in ROWS])


@pytest.mark.long
@pytest.mark.parametrize("version", json.loads(RESOLVED.read_text()))
def test_what_is_recorded_of_another_version_is_what_its_sources_resolve(version: str, tmp_path: Path) -> None:
    facts = runpy.run_path(str(Path(__file__).parents[2] / "scripts/engine_facts.py"))
    (sources := tmp_path / "sources").mkdir()
    with zipfile.ZipFile(facts["wheel"](version)) as archive:
        archive.extractall(sources)
    plans = in_version(version)
    said = dict(zip(plans, (answer for _, answer in answers(tmp_path, [*plans.values()], sources)), strict=True))
    found = {words: answer for words, answer in said.items() if "error" not in answer}
    assert len(found) > 0.9 * len(plans), [answer for answer in said.values() if "error" in answer][:3]
    recorded = json.loads(RESOLVED.read_text())
    if os.environ.get("UPDATE_GOLDEN") == "1":
        recorded[version] = found
        RESOLVED.write_text(json.dumps(recorded, indent=1) + "\n")
    assert found == recorded[version]


def test_there_are_rows_enough_and_one_for_every_shipped_model() -> None:
    assert len(ROWS) >= 40
    served = {name for name in profile_names() if refusal(load_profile(name), STACK) is None}
    labs = {"tiny-deepseek-v3", "tiny-deepseek-v3-tp32", "tiny-qwen3-moe"}
    assert served - {row.model for row in ROWS} == labs, "those are the lab's, for CPU"


@pytest.mark.turns(play=5)
@pytest.mark.parametrize("number", range(len(ROWS)), ids=[" ".join(map(str, filter(None, row))) for row in ROWS])
def test_fraction_tokens_and_request_table_are_the_engines(compared: Compared, number: int) -> None:
    plan, engine = compared[number]
    assert "error" not in engine, engine
    assert plan.memory.static_fraction == pytest.approx(engine["fraction"], abs=0.0005)
    assert plan.memory.kv_tokens == pytest.approx(engine["tokens"], rel=0.02)
    assert plan.memory.request_table == engine["request_table"]
    assert plan.layout.attention_data_parallel == engine["attention_groups"]
    if plan.layout.attention_data_parallel > 1:
        assert any(f"prefills {engine['chunk']:,} tokens at once" in line for line in plan.memory.explanation)
