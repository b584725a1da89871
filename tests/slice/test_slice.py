"""The slice's own parts, without a GPU; and a short rehearsal of it with the stand-in."""

from __future__ import annotations

import datetime
import os
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.gpu.figures import Figures, Result
from tests.slice import asking, engine_log, judging, kernels, model, page, posed, queue, watching
from tests.slice.parts import parts

from l40s_lab.processes import wait_until
from orchestrator.checkpoint.on_node.directory import read_checkpoint
from orchestrator.engines.registry import engine_of
from orchestrator.engines.tuned_wanted import wanted_files
from orchestrator.loading.profiles import load_profile, load_stack
from orchestrator.planning.memory import weights_per_gpu
from orchestrator.protocol.planned import Layout

ROOT = Path(__file__).resolve().parents[2]
GIB = judging.GIB
AT = "2026-11-28 11:31:41"
LOG = """\
[2026-11-28 02:49:00 TP1] Load weight begin. avail mem=42.69 GB
[2026-11-28 02:49:00 TP0] Load weight begin. avail mem=42.74 GB
server_args=ServerArgs(mem_fraction_static=0.765, chunked_prefill_size=4096)
[2026-11-28 02:50:00 TP0] Load weight end. elapsed=85.81 s, type=DeepseekV3ForCausalLM, avail mem=21.97 GB, mem usage=20.96 GB.
[2026-11-28 02:50:01 TP0] KV Cache is allocated. #tokens: 178710, KV size: 11.70 GB
[2026-11-28 02:50:01 TP0] Memory pool end. avail mem=8.92 GB
[2026-11-28 02:50:31 TP0] Capture target decode CUDA graph end. elapsed=13.11 s, mem usage=0.43 GB, avail mem=8.40 GB.
max_total_num_tokens=178710, chunked_prefill_size=4096, max_running_requests=2048, context_len=163840, available_gpu_mem=8.21
[TP0] Decode batch, #running-req: 32, #token: 9, cuda graph: True, gen throughput (token/s): 40.00, #queue-req: 0
[TP0] Decode batch, #running-req: 32, #token: 9, cuda graph: True, gen throughput (token/s): 1000.00, #queue-req: 0
[TP0] Decode batch, #running-req: 32, #token: 9, cuda graph: True, gen throughput (token/s): 1100.00, #queue-req: 0
[TP0] Decode batch, #running-req: 128, #token: 9, cuda graph: False, gen throughput (token/s): 384.00, #queue-req: 0
"""  # noqa: E501


def slice_of(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.slice", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )


@pytest.mark.parametrize("ranks", [1, 4, 8])
def test_each_rank_has_shapes_and_weights_of_one_of_32(tmp_path: Path, ranks: int) -> None:
    whole = asdict(load_profile("DeepSeek-V3-0324").dimensions)
    assert {name: whole[name] for name in model.REAL} == model.REAL
    described = model.profile("slice", "slice", model.dimensions(ranks), 64, 128)
    (tmp_path / "slice.yml").write_text(yaml.safe_dump(described))
    profile, real = load_profile(str(tmp_path / "slice.yml")), load_profile("DeepSeek-V3-0324-Block64x64")
    ours, theirs = (Layout(tensor_parallel=n, nnodes=n, gpus_per_node=1) for n in (ranks, 32))
    assert weights_per_gpu(profile, ours) == weights_per_gpu(real, theirs)
    rules = engine_of(load_stack("sglang-0.5.23")).tuned
    names = [
        [file.name for file in wanted_files(which, layout, rules, gpu="NVIDIA L40S", triton="3.6.0")]
        for which, layout in ((profile, ours), (real, theirs))
    ]
    assert names[0] == names[1]


def test_the_files_are_a_checkpoint_that_the_product_reads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.gpu.checkpoint._write_tokenizer", lambda *_: None)  # wants a package of the engine's
    small = {**model.dimensions(1, layers=4), "hidden_size": 256, "n_routed_experts": 2, "vocab_size": 300}
    for block in (64, model.INT8):
        folder = tmp_path / str(block)
        told = model.make(folder, small, block, jobs=2)
        read = read_checkpoint(folder)
        assert len(read.by_name()) == told["tensors"] and read.indexed_bytes() == told["bytes"]
        assert len(read.shards) == small["num_hidden_layers"] + 1 and not read.faults


def test_bytes_mean_what_they_are_made_for() -> None:
    assert [model.e4m3(code) for code in (0x00, 0x01, 0x38, 0x7E, 0xB8)] == [0.0, 2.0**-9, 1.0, 448.0, -1.0]
    table = [model.e4m3(code) for code in model._table("F8_E4M3")]
    assert table == sorted(table) and abs(sum(table)) < 1
    assert 100 < (sum(value**2 for value in table) / 256) ** 0.5 < 112


def test_what_the_engine_says_is_read_rank_by_rank() -> None:
    found = engine_log.memory([LOG])
    assert found["before_weights_gib"] == [42.69, 42.74] and found["weights_gib"] == [20.96]
    assert (found["kv_tokens"], found["fraction"], found["chunk"]) == ([178710], 0.765, 4096)
    assert (found["graphs_gib"], found["graphs_s"], found["free_when_ready_gib"]) == ([0.43], [13.11], [8.21])
    (steps,) = engine_log.steps(LOG)  # a batch's first line has its prefill in it
    assert (steps.requests, steps.graph, steps.lines, steps.tok_s) == (32, True, 2, 1050.0)
    assert steps.figures()["step_ms"] == 30.48
    assert engine_log.out_of_memory([LOG, "x\ntorch.OutOfMemoryError: CUDA out of memory. Tried\n"])


def planned(**more: Any) -> judging.Planned:
    usual = {
        "weights": 22216860544,
        "kv_tokens": 599768,
        "kv_bytes_per_token": 70272,
        "static_fraction": 0.765,
        "reserve": 19771885512,
        "gpu_total": 85520809984,
    }
    return judging.Planned.of({**usual, **more})


def test_a_plan_is_held_to_the_engine_and_a_card_with_less_is_planned_the_same_way() -> None:
    assert abs(planned().overhead / GIB - 1.29) < 0.001
    assert abs(planned().with_less(0).kv_tokens - 599768) <= 1
    less = planned().with_less(int((79.179 - 44.498) * GIB))
    assert less.kv_tokens == pytest.approx(194450, rel=0.001)
    engine = {"weights_gib": [20.96], "kv_tokens": [178710, 178720], "before_weights_gib": [42.69, 42.93]}
    differences = judging.compared(less, engine)
    assert differences["weights"] == pytest.approx(-0.0128, abs=0.0002)
    assert judging.off(differences) == ["plan's kv tokens are +8.8% off, 3% allowed"]
    assert judging.off({"weights": -0.021, "kv_tokens": 0.029}) == ["plan's weights are -2.1% off, 2% allowed"]
    assert judging.compared(less, {}) == {}


def test_a_plan_with_the_allocators_blocks_keeps_them_for_a_smaller_card() -> None:
    """TP4 on a card of 44.966 GiB, by what 0.5.17 took of it: 178,710 tokens."""
    before = 79.647 - 2.28
    reserve, held = int(before * 0.235 * GIB), 20.691 * 1.013 * GIB
    tokens = int((before * GIB - reserve - held) // 70272)
    whole = planned(gpu_total=int(79.647 * GIB), reserve=reserve, kv_tokens=tokens)
    assert whole.with_less(int((79.647 - 44.966) * GIB)).kv_tokens == pytest.approx(178710, rel=0.001)


def test_a_start_outside_both_intervals_fails_its_part() -> None:
    times = {"first": {"weights": [40, 60], "graphs": [130, 170]}, "again": {"weights": [40, 60], "graphs": [10, 16]}}
    for seconds in (60.0, 200.0):
        assert judging.outside({"seconds": seconds}, times) == []
    (words,) = judging.outside({"seconds": 120.0}, times)
    assert words == "the start took 120 s, the plan says 170 to 230 or 50 to 76"
    assert judging.outside(None, times) == judging.outside({"seconds": 1.0}, None) == []


def test_nodes_that_tell_nothing_are_not_behind() -> None:
    nodes = [{"name": "node0", "phase": "weights", "phase_of": 62}, {"name": "node1", "phase": "weights"}]
    words = "node1 is at weights, the others are at 17 or further"
    assert judging.called_behind([{"progress": words, "nodes": nodes}] * 2) == [words]
    assert judging.called_behind([{"progress": "", "nodes": nodes}]) == []
    earlier = [nodes[0], {"name": "node1", "phase": "nccl"}]
    assert judging.called_behind([{"progress": "node1 is at nccl, the others are done", "nodes": earlier}]) == []
    counted = [nodes[0], {"name": "node1", "phase": "weights", "phase_of": 62}]
    assert judging.called_behind([{"progress": words, "nodes": counted}]) == []


def event(name: str, start: float, lasted: float, cat: str = "kernel") -> dict[str, Any]:
    return {"name": name, "ts": start, "dur": lasted, "cat": cat}


def test_a_profile_says_where_a_step_goes_and_who_waits() -> None:
    events = [
        event("ncclDevKernel_AllReduce_Sum_bf16_RING_LL(x)", 0, 400),
        event("fused_moe_kernel", 400, 100),
        event("_w8a8_block_fp8_matmul", 500, 300),
        *(event("cudaLaunchKernel", start, 5, "cuda_runtime") for start in (0, 20, 40)),
        event("cudaEventRecord", 45, 90, "cuda_runtime"),
    ]
    seen = kernels.of_events(events)
    assert (seen["kernels"], seen["span_ms"], seen["busy_ms"]) == (3, 0.8, 0.8)
    assert seen["by_kind_ms"] == {"all-reduce": 0.4, "quantised products": 0.3, "experts": 0.1}
    assert (seen["launches"], seen["launch_us"], seen["between_us"]) == (3, 5, 20)
    assert kernels.waiting_ms({0: seen, 1: {"by_kind_ms": {"all-reduce": 0.1}}}) == {0: 0.3, 1: 0.0}
    assert kernels.of_events([]) == {"kernels": 0}
    kinds = {"_fwd_grouped_kernel_stage1": "attention", "ncclDevKernel_AllGather": "other collectives", "x": "other"}
    assert {name: kernels.kind_of(name) for name in kinds} == kinds


def test_a_client_counts_only_while_all_are_answered() -> None:
    quick = asking.Answer(0.0, [1.0, 2.0, 3.0, 4.0], tokens=4)
    late = asking.Answer(0.0, [2.0, 3.0, 4.0, 5.0], tokens=4)
    seen = asking.summary([quick, late], 5.0)
    assert (seen["tokens"], seen["out_tok_s"], seen["decode_tok_s"], seen["decode_s"]) == (8, 1.6, 2.0, 2.0)
    assert (seen["ttft_mean_ms"], seen["itl_median_ms"]) == (1500.0, 1000.0)
    failed = asking.summary([asking.Answer(0.0, bad="HTTP/1.1 503")], 5.0)
    assert failed["failed"] == 1 and failed["why"] == ["HTTP/1.1 503"]


def test_reasons_for_slow_clocks_are_words() -> None:
    assert watching.reasons_in(0x4 | 0x40) == ["software power cap", "hardware thermal slowdown"]


def test_what_took_its_gpu_for_an_l40s_is_read_off_its_lines() -> None:
    hooked = "".join(f'{{"pid": 7, "hooked": "{name}"}}\n' for name in posed.HOOKED)
    kernel = '{"pid": 7, "kernel": "_fwd", "shared": 65536, "registers": 255, "spilled": 8}\n'
    fine = f"""{hooked}{{"pid": 7, "assembled": "_fwd", "ptx_for": "sm_89", "shared": 65536}}
{kernel}{kernel}{{"pid": 7, "attention_for": [8, 9]}}
{{"pid": 7, "deep_gemm": false}}
{{"pid": 7, "hoo"""
    lines = posed.seen_in(fine)
    assert posed.not_as_asked(lines) == []
    assert posed.kernels_of(lines) == {"_fwd": {"forms": 2, "shared": 65536, "registers": 255, "spilled": 8}}
    large = {"kernel": "_fwd", "shared": 106496, "registers": 1, "spilled": 0}
    other: list[dict[str, Any]] = [
        {"ptx_for": "sm_90a"},
        {"unwanted": "deep_gemm"},
        {"deep_gemm": True},
        large,
        {"attention_for": [9, 0]},
    ]
    assert posed.not_as_asked([*lines, *other]) == [
        "Triton compiled for sm_90a",
        "deep_gemm was loaded",
        "DeepGEMM is on",
        "_fwd takes more shared memory than an L40S has",
        "extend attention takes the tiles of [(8, 9), (9, 0)]",
    ]
    assert len(posed.not_as_asked([])) == len(posed.HOOKED)


def test_hooks_take_hold_as_soon_as_a_module_was_loaded(tmp_path: Path) -> None:
    """A torch and a toolchain that are none, in a process of their own."""
    (tmp_path / "torch/cuda").mkdir(parents=True)
    (tmp_path / "torch/__init__.py").write_text("")
    (tmp_path / "torch/cuda/__init__.py").write_text(
        "class Real:\n    major, minor, name, warp_size = 9, 0, 'NVIDIA H200', 32\n"
        "def get_device_properties(device=None):\n    return Real()\n"
        "def get_device_capability():\n    seen = get_device_properties()\n    return seen.major, seen.minor\n"
    )
    program = "import torch.cuda as c, os; p = c.get_device_properties(); print(*c.get_device_capability(), p.name,"
    program += " p.warp_size, p.shared_memory_per_block_optin, os.environ['TRITON_CACHE_DIR'], sep='|')"
    folders = f"{posed.HOOKS.parent}:{tmp_path}"
    environment = {**os.environ, "PYTHONPATH": folders, "POSE": str(tmp_path / "posed")}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == f"8|9|NVIDIA L40S|32|101376|{tmp_path}/posed/triton"
    lines = posed.seen_in((tmp_path / "posed/seen.jsonl").read_text())
    assert [line["hooked"] for line in lines] == ["torch.cuda"]


class FakeCards(watching.Cards):
    """Two GPUs; the second has less, and is slowed down."""

    def __init__(self) -> None:
        self.looks = 0

    def __len__(self) -> int:
        return 2

    def free_mib(self) -> list[int]:
        self.looks += 1
        return [9000, 7168 + self.looks]

    def clocks(self) -> list[tuple[int, int]]:
        return [(1980, 0x1), (1500, 0x4)]


def test_a_watch_ends_and_has_the_least_of_all_cards_by_what_was_going_on() -> None:
    cards = FakeCards()
    watch = watching.Watch(cards)
    watch.mark("4 requests")
    assert wait_until(lambda: cards.looks >= 2, deadline_s=60)
    seen = watch.ended()
    assert not watch.is_alive()
    assert 7.0 < seen["least_free_gib"] < 7.1 and "4 requests" in seen["least_free_gib_while"]
    assert min(seen["lowest_sm_mhz_while"].values()) == 1500
    assert set(*seen["slowed_by"].values()) == {"software power cap"}


def served(step: str, **more: Any) -> Result:
    load = {"decode_tok_s": 388.4, "itl_median_ms": 318.8, "steps": [{"step_ms": 333.5, "graph": False}]}
    seen = {"kernels": 16, "span_ms": 8.0, "busy_ms": 7.0, "by_kind_ms": {"all-reduce": 4.0, "sampling": 1.0}}
    figures = {
        "up_s": 164.4,
        "start": {"seconds": 160, "phases": {"weights": 85.8, "graphs": 30.1}},
        "plan_for_this_card": planned().figures(),
        "plan_above_engine": {"weights": -0.013, "kv_tokens": 0.088},
        "engine": engine_log.memory([LOG]),
        "memory": {"least_free_gib": 6.2, "lowest_sm_mhz_while": {"start": 345, "4 requests": 1980}},
        "loads": {"128": load},
        "profiles": [{"requests": 128, "steps": 8, "ranks": {"0": seen}, "waiting_ms": {"0": 3.2}}],
        "affinity": {"TP0": {"may_use": "0-63", "threads": 90, "beside_its_gpu": "NUMA 0: 0-63"}},
    }
    return Result(step=step, outcome="otherwise", said="KV off", figures={**figures, **more}, at=AT)


def test_the_page_has_every_figure_and_hides_no_failure(tmp_path: Path) -> None:
    figures = Figures(tmp_path / "figures.json", {"gpus": "4 x NVIDIA H100 80GB HBM3, one host"})
    figures.add(served("one node, graphs to 32", long={"ttft_mean_ms": 48479.0, "wall_s": 49.3}))
    alone = {"INT8": {"up_s": 90.0, "loads": {"32": {"decode_tok_s": 5.0}}}, "FP8": {"failed": "no | nvcc"}}
    figures.add(Result(step="ranks apart", outcome="otherwise", said="one failed", figures=alone))
    again = Figures.of(figures.path)
    text = page.written(again)
    assert "| one node, graphs to 32 | failed | KV off |" in text and "## Failures\n\n- " in text
    assert "| one node, graphs to 32 | 128 | 388.4 | 333.5 | False |" in text
    assert "| one node, graphs to 32 | 1 of 100,000 tokens |" in text and "48479.0" in text
    assert "| one node, graphs to 32 | 128 | TP0 | 2 | 1.0 | 0.88 | 0.5 |" in text
    assert "| INT8 | 90.0 |  | 5.0 |" in text and "no \\| nvcc" in text
    assert "| one node, graphs to 32 | TP0 | 0-63 | NUMA 0: 0-63 | 1980 |" in text
    assert page.rows(again) == {}  # no claim: KV tokens are too far off
    again.add(served("one node, graphs to 32", plan_above_engine={"weights": -0.013, "kv_tokens": 0.01}))
    row = page.rows(again)["slice-memory"]
    assert row.figures == "weights within 1.3% and KV tokens within 1.0% in 1 starts on 4 x H100"
    assert row.date == datetime.date(2026, 11, 28)
    assert page.written(Figures(tmp_path / "none.json")).startswith("# The slice on GPUs")


def test_the_page_has_each_gang_and_each_layout_by_itself(tmp_path: Path) -> None:
    figures = Figures(tmp_path / "figures.json", {"gpus": "8 x NVIDIA H200, one host"})
    layout = {**served("").figures, "plan_above_engine": {"weights": 0.001, "kv_tokens": -0.002}}
    figures.add(Result(step="layouts", outcome="as it should", said="", figures={"PP2 x TP4": layout}, at=AT))
    gang = {"layout": "TP4", "start": {"phases": {"weights": 12.5}}, "loads": {"128": {"decode_tok_s": 777.5}}}
    both = {"up_s": 90.0, "gang0": gang, "gang1": gang, "rolling": {"requests": 12}}
    figures.add(Result(step="two gangs", outcome="as it should", said="", figures=both))
    points = [[1, 60.5, 16.5, 3, 0.01], [4, 200.0, 20.0, 3, 0.02]]
    candidates = [["tp8", "measured", "", 99.0, points], ["pp4,tp2", "failed", "out of memory", None, []]]
    figures.add(Result(step="sweep", outcome="otherwise", said="", figures={"candidates": candidates}))
    text = page.written(figures)
    assert "| layouts, PP2 x TP4 | 128 | 388.4 | 333.5 | False |" in text
    assert "| two gangs, gang1 | 128 | 777.5 |" in text and "| two gangs, gang1 |  |  |  | 12.5 |" in text
    memory = text[text.index("## Memory") : text.index("## Speed")]
    assert "| layouts, PP2 x TP4 |" in memory and "two gangs" not in memory
    assert "| tp8 |  | 99.0 | 4 | 200.0 | 20.0 | 3 | 0.02 |" in text and "| pp4,tp2 |" in text
    assert page.rows(figures)["slice-memory"].figures.startswith("weights within 0.1% and KV tokens within 0.2% in 1")


def test_kills_say_when_they_were_named_and_keep_the_day_of_the_last(tmp_path: Path) -> None:
    figures = Figures(tmp_path / "figures.json", {"gpus": "2 x NVIDIA H100 80GB HBM3, one host"})
    for told_s, at in ((0.81, "2026-11-28 11:36:23"), (0.49, "2026-11-27 22:06:50")):
        figures.add(Result(step="kill", outcome="as it should", said="", figures={"told_s": told_s}, at=at))
    figures.add(Result(step="kill", outcome="otherwise", said="no cause", at="2026-11-26 01:00:00"))
    row = page.rows(figures)["slice-kill"]
    assert row.figures == "2 of 3 on 2 x H100, named after 0.5 to 0.8 s"
    assert row.date == datetime.date(2026, 11, 28)


@pytest.mark.parametrize(("nodes", "gpus"), [(1, 1), (1, 2), (1, 4), (1, 8), (4, 2)])
def test_parts_fit_the_gpus_that_there_are(nodes: int, gpus: int) -> None:
    chosen = parts(nodes, gpus)
    names = [part.name for part in chosen]
    assert len(set(names)) == len(names)
    assert ("sweep" in names) == ("two gangs" in names) == (nodes * gpus >= 4)
    assert ("a node lost" in names) == (nodes > 1 and nodes * gpus >= 4)
    for part in chosen:
        if part.shape is not None and part.gpus <= nodes * gpus:
            shape = part.shape(nodes * gpus)
            assert 0 < shape.nodes * shape.gpus_each <= nodes * gpus and shape.nodes % shape.gangs == 0


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="this machine has GPUs")
def test_without_gpus_it_is_skipped_loudly_and_writes_nothing(tmp_path: Path) -> None:
    done = slice_of("--figures", str(tmp_path / "figures.json"))
    assert done.returncode == 0 and done.stderr.startswith("SKIPPED: the slice was not played: ")
    assert not (tmp_path / "figures.json").exists()


def test_a_queue_outlives_its_command_and_its_figures_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    home, kept, bring = tmp_path / "queue", tmp_path / "kept", tmp_path / "brought"
    kept.mkdir()
    (kept / "engine.log").write_text("ready")
    figures = tmp_path / "figures.json"
    figures.write_text("{}")
    queue.begin(["--parts", "no such part", "--rehearse"], home)
    deadline = time.monotonic() + 60
    while queue.wait(home, 0.2, bring, figures, kept) is None:
        assert time.monotonic() < deadline
    assert queue.exit_code(home) == 1 and "no such part" in (bring / "log").read_text()
    assert {file.name for file in bring.iterdir()} == {"figures.json", "log", "kept.tar.xz"}


@pytest.mark.turns(of="a proof on GPUs is rehearsed")
@pytest.mark.lab
@pytest.mark.timeout(300)
@pytest.mark.skipif(os.geteuid() != 0, reason="gangs of emulated nodes with their own GPUs need root")
def test_a_rehearsal_serves_loads_kills_and_restarts_with_the_stand_in(tmp_path: Path) -> None:
    figures, kept = tmp_path / "figures.json", tmp_path / "kept"
    words = ("--parts", "several-nodes-graphs-to-128,kill-and-restart", "--nodes", "2")
    done = slice_of("--rehearse", *words, "--figures", str(figures), "--kept", str(kept))
    found = Figures.of(figures)
    assert [(result.step, result.outcome) for result in found.results] == [
        ("kill", "as it should"),
        ("several nodes, graphs to 128", "as it should"),
        ("kill", "as it should"),
        ("kill and restart", "as it should"),
    ], done.stdout + done.stderr
    assert set(found.results[1].figures["loads"]) == {"1", "4", "32", "128"}
    assert any(file.name.endswith(".log") for file in kept.iterdir())
    assert done.returncode == 0 and "the lab is gone" in done.stdout
