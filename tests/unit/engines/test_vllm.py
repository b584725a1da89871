"""The dialect of vLLM: its command line, what its wheels say (gathered_vllm.json), its watch data and its memory."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from orchestrator.engines import bench_client
from orchestrator.engines.engine import Engine, Intent, MemoryAsked
from orchestrator.engines.registry import dialect, dialects, newest
from orchestrator.engines.serving import finished_requests, running_requests, serving
from orchestrator.engines.tuned_wanted import file_name
from orchestrator.loading.profiles import load_profile, profile_names
from orchestrator.model.profile import CudaGraphs, Load
from orchestrator.node.engine.watch import LogWatch, rank_of_title
from orchestrator.protocol.errors import InputError
from orchestrator.protocol.planned import Layout

GATHERED: dict[str, dict[str, Any]] = json.loads(Path(__file__).with_name("gathered_vllm.json").read_text("utf-8"))
FAMILY = dialect("vllm-0.3x")
EVERY = pytest.mark.parametrize("version", FAMILY.versions)
INTENT = Intent(
    model_path="/workspace/M",
    served_name="M",
    layout=Layout(tensor_parallel=8, pipeline_parallel=4, nnodes=4, gpus_per_node=8),
    dist_init="10.0.0.11:5000",
    host="0.0.0.0",
    port=8000,
    graphs=CudaGraphs(max_bs=32, torch_compile_max_bs=32),
)


def engine(version: str = "0.33.0") -> Engine:
    return FAMILY.engine(version)


def argv(intent: Intent, version: str = "0.33.0") -> str:
    return " ".join(" ".join((option.flag, *option.values)) for option in engine(version).options(intent))


def test_another_engine_is_not_taken_where_nobody_names_one() -> None:
    assert newest().name == "sglang-0.5" and set(FAMILY.versions) == set(GATHERED)
    assert next(iter(dialects())) == FAMILY.name


def test_an_address_without_brackets_and_one_rank_without_a_rendezvous() -> None:
    """Several nodes: tests/golden/plan/vllm-pp4-tp8."""
    six = replace(INTENT, dist_init="[fd00::1]:5000")
    assert "--master-addr fd00::1 --master-port 5000" in argv(six)
    one = argv(replace(INTENT, dist_init="", layout=Layout(tensor_parallel=1, nnodes=1, gpus_per_node=1)))
    assert "--nnodes" not in one and "--distributed-executor-backend mp" in one


@EVERY
def test_every_flag_that_is_written_or_reserved_is_the_versions_own(version: str) -> None:
    flags = engine(version).flags()
    for intent in (INTENT, replace(INTENT, node_rank=1, trust_remote_code=True, graphs=CudaGraphs(sizes=(1, 2)))):
        for option in engine(version).options(intent):
            flags.given([option.flag, *option.values], where=version)
    assert {flag for flag in engine(version).ours if flag not in flags} == set()


def test_its_own_client_is_not_started() -> None:
    load = Load(input=1, output=1, prompts=1, rate=1, concurrency=1)
    with pytest.raises(InputError, match=r"can't measure vLLM 0\.33\.0"):
        bench_client.command(engine(), load, url="http://h:1", model="m", tokenizer="/m")


@pytest.mark.parametrize(
    ("words", "what", "fix"),
    [
        (["--mem-fraction-static", "0.9"], "vLLM 0.33.0 has no flag", "--gpu-memory-utilization"),
        (["--tool-call-parserx"], "vLLM 0.33.0 has no flag", "--tool-call-parser"),
        (["--zzz"], "vLLM 0.33.0 has no flag", "vllm serve --help=all"),
        (["--dtype", "int3"], "vLLM 0.33.0 does not offer", "bfloat16"),
    ],
)
def test_a_wrong_flag_names_the_engine_and_the_right_one(words: list[str], what: str, fix: str) -> None:
    with pytest.raises(InputError) as caught:
        engine().flags().given(words, where="here")
    assert what in caught.value.what and fix in caught.value.fix


@EVERY
def test_a_profiles_flags_are_the_versions_own(version: str) -> None:
    known = GATHERED[version]
    for name in profile_names():
        profile = load_profile(name)
        asked = [(flag, value) for prefix, flag, value in profile.flags if version.startswith(prefix)]
        engine(version).flags().given([word for pair in asked for word in pair if word], where=name)
        assert {value for flag, value in asked if flag == "--tool-call-parser"} <= set(known["tool_parsers"])
        assert {value for flag, value in asked if flag == "--reasoning-parser"} <= set(known["reasoning_parsers"])


@EVERY
def test_paths_variables_titles_and_counters_are_in_the_wheel(version: str) -> None:
    known, said = engine(version), GATHERED[version]
    assert set(known.watched.http.values()) <= set(said["paths"])
    assert set(known.variables.values()) <= set(said["variables"])
    assert said["title"] == ["{prefix}::{name}"] and {"EngineCore", "Worker", "APIServer"} <= set(said["titles"])
    metrics = "".join(f"{name}_total 2\n{name} 1\n" for name in said["counters"])
    found = serving(metrics)
    assert found is not None and found.cache_used == 1.0
    assert (found.running, found.queued, found.prompt_tokens, found.generation_tokens) == (1, 1, 2.0, 2.0)
    assert (running_requests(metrics), finished_requests(metrics)) == (2, 2)
    assert len(re.findall(known.watched.probe.counters, metrics, re.MULTILINE)) == 2


@EVERY
def test_folders_and_names_of_tuned_configs(version: str) -> None:
    tuned = engine(version).tuned
    assert sorted((f"{tuned.moe_parent}/configs", tuned.linear)) == GATHERED[version]["config_folders"]
    name = file_name(tuned, (("E", 256), ("N", 512)), "NVIDIA_L40S", "fp8_w8a8", (128, 128))
    assert name == "E=256,N=512,device_name=NVIDIA_L40S,dtype=fp8_w8a8,block_shape=[128,128].json"  # as in the wheel


@EVERY
def test_each_phase_and_cause_has_a_wording_of_the_version(version: str) -> None:
    known, said = engine(version), GATHERED[version]["wordings"]
    plain = [re.sub(r"%(?:s|d|\.1f)", "1", wording).replace("\\", "").replace("?", "") for wording in said]
    shown = [f"{line}: 1%|x| 1/2 rank=1 in world size 2 is assigned as" for line in plain]
    for phase, pattern in ((one.phase, one.pattern) for one in known.watched.phases):
        assert phase == "ready" or any(re.search(pattern, line) for line in shown), phase
    assert sum(bool(re.search(known.watched.probe.log, line)) for line in plain) == 1


@pytest.mark.parametrize(
    ("title", "rank"),
    [
        ("VLLM::Worker_TP7", 7),
        ("VLLM::Worker_PP3_TP7", 7),
        ("VLLM::Worker_PP1_TP7_EP7", 7),
        ("VLLM::Worker_TP1", None),
        ("VLLM::EngineCore", None),
        ("/opt/v/bin/python3 -m vllm.entrypoints.cli.main serve", None),
    ],
)
def test_a_workers_title_tells_its_rank(title: str, rank: int | None) -> None:
    assert rank_of_title(title, re.compile(engine().watched.rank_title), (6, 7)) == rank


def test_a_single_rank_has_no_number() -> None:
    assert rank_of_title("VLLM::Worker", re.compile(engine().watched.rank_title), (0,)) == 0


@pytest.mark.parametrize(
    ("line", "rank"),
    [
        ("(Worker_TP1 pid=312) INFO 11-25 10:00:00 [default_loader.py:507] Loading weights took 0.20 seconds", "1"),
        ("(Worker_PP1_TP12_EP12 pid=3) ERROR 11-25 10:00:00 [x.py:1] boom", "12"),
        ("(EngineCore pid=200) INFO 11-25 10:00:00 [core.py:140] Initializing a V1 LLM engine (v0.33.0)", None),
        ("(Worker pid=3) INFO 11-25 10:00:00 [x.py:1] starting", None),
    ],
)
def test_a_log_lines_prefix_tells_its_rank(line: str, rank: str | None) -> None:
    found = re.search(engine().watched.rank_prefix, line)
    assert (found["tp"] if found else None) == rank


@EVERY
def test_watch_data_compiles_and_a_clients_words_are_no_evidence(version: str) -> None:
    watch = LogWatch.of(engine(version).watch())
    watch.begin(0.0)
    access = 'INFO:     127.0.0.1:4 - "GET /CUDA%20out%20of%20memory HTTP/1.1" 200 OK'
    for line in (access, f"(APIServer pid=9) {access}", access[:60]):
        assert not watch.feed(line, 1.0) and watch.suspect(0.0) is None
    assert engine(version).watched.http["generate"] == engine(version).watched.http["completions"]


def test_common_causes_are_told_in_vllms_words() -> None:
    said = " ".join(f"{cause.text} {cause.fix}" for cause in engine().watched.causes)
    assert "--mem-fraction-static" not in said and "--context-length" not in said
    assert len({(cause.id, cause.text) for cause in engine().watched.causes}) == len(engine().watched.causes)


@EVERY
def test_a_part_of_the_whole_gpu(version: str) -> None:
    def divided(**flags: str) -> tuple[float, bool, int, bool]:
        named = {"--" + name.replace("_", "-"): (value,) for name, value in flags.items()}
        asked = MemoryAsked(flags=named, layout=INTENT.layout, gpu_mib=46068, mla=True)
        found = engine(version).memory(asked)
        return found.fraction, found.of_total, found.kv_bytes, found.draft

    assert divided() == (float(GATHERED[version]["memory_utilization"]), True, 2, False)
    assert divided(gpu_memory_utilization="0.8", kv_cache_dtype="fp8") == (0.8, True, 1, False)
    assert divided(speculative_config="{}")[3]


def test_whose_exception_it_is_where_every_line_of_a_traceback_is_marked() -> None:
    said = "({} pid={}) ERROR 11-26 11:56:11 [multiproc_executor.py:953] {}"
    log = [
        ("Worker_TP1", 2, "Traceback (most recent call last):"),
        ("Worker_TP0", 1, "Note: not of this traceback"),
        ("Worker_TP1", 2, '  File "/v/a.py", line 3, in load'),
        ("EngineCore", 3, '  File "/v/b.py", line 4, in wait'),
        ("Worker_TP1", 2, "OddError: no such thing"),
        ("EngineCore", 3, "Traceback (most recent call last):"),
        ("EngineCore", 3, "Exception: WorkerProc initialization failed due to an exception in a background process."),
    ]
    watch = LogWatch.of(engine("0.32.0").watch())
    for who, pid, words in log:
        watch.feed(said.format(who, pid, words), 0.0)
    found = watch.suspect(0.0)
    assert found is not None and (found.id, found.tp_rank) == ("EXCEPTION", 1)
    assert found.text == "engine process exited: OddError: no such thing (/v/a.py:3)"
