"""Intent becomes each version's flags; watch data has the form that the agent accepts."""

from __future__ import annotations

import ast
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator import engines
from orchestrator.engines.engine import Engine, Intent
from orchestrator.engines.registry import dialect, dialects, first_with, load_paths, newest, unlisted
from orchestrator.loading.profiles import load_stack, stack_names
from orchestrator.model.profile import CudaGraphs, Stack
from orchestrator.node.engine.watch import LogWatch
from orchestrator.protocol.errors import InputError
from orchestrator.protocol.planned import Layout

VERSIONS = {
    version: one.engine(version) for one in dialects().values() for version in one.versions if one.product == "SGLang"
}
EVERY = pytest.mark.parametrize("engine", VERSIONS.values(), ids=VERSIONS)
INTENT = Intent(
    model_path="/workspace/M",
    layout=Layout(tensor_parallel=32, nnodes=4, gpus_per_node=8),
    node_rank=1,
    dist_init="10.0.0.11:5000",
    host="0.0.0.0",
    port=8000,
    trust_remote_code=True,
    graphs=CudaGraphs(max_bs=32, torch_compile_max_bs=32),
)
PHASES = ["rendezvous", "nccl", "weights", "kv-cache", "graphs", "warm-up", "ready"]


@EVERY
def test_sizes_of_graphs_and_what_is_compiled_have_each_versions_names(engine: Engine) -> None:
    graphs = CudaGraphs(sizes=(1, 2, 48), torch_compile_max_bs=2)
    given = {option.flag: option.values for option in engine.graph_options(graphs)}
    decode = "" if engine.version.startswith("0.4.") or engine.version == "0.5.10" else "-decode"
    assert given == {
        "--enable-torch-compile": (),
        "--torch-compile-max-bs": ("2",),
        f"--cuda-graph-max-bs{decode}": ("48",),
        f"--cuda-graph-bs{decode}": ("1", "2", "48"),
    }
    for flag, values in given.items():
        engine.flags().given((flag, *values), where="here")
    assert engine.graph_options(CudaGraphs(torch_compile_max_bs=0)) == ()


@EVERY
def test_every_flag_that_an_engine_writes_is_known_to_its_versions(engine: Engine) -> None:
    names = engine.names
    layout = replace(INTENT.layout, pipeline_parallel=2 if names.pipeline_parallel else 1)
    intent = replace(INTENT, nccl_port=1 if names.nccl_port else None, layout=layout)
    flags = engine.flags()
    assert flags.version == engine.version
    for option in engine.options(intent):
        flags.given([option.flag, *option.values], where=engine.version)
        assert option.source


@pytest.mark.parametrize("engine", [VERSIONS["0.4.4.post1"], dialect("vllm-0.3x").engine("0.33.0")])
def test_a_port_for_nccl_is_refused_where_the_version_can_t_choose_one(engine: Engine) -> None:
    with pytest.raises(InputError) as caught:
        engine.options(replace(INTENT, nccl_port=5001))
    assert caught.value.where == "inventory: l40s_nccl_port"


def test_an_unknown_dialect_is_named_with_the_known_ones() -> None:
    with pytest.raises(InputError) as caught:
        dialect("sglang-0.6")
    assert "sglang-0.5" in caught.value.fix


@EVERY
def test_watch_data_survives_json_and_has_the_agents_keys(engine: Engine) -> None:
    watch = json.loads(json.dumps(engine.watch().as_json()))
    assert watch["dialect"] == engine.dialect
    assert [entry["phase"] for entry in watch["phases"]] == PHASES
    assert {"alive", "generate", "models", "completions"} <= set(watch["http"])
    assert watch["stop"]["leader_signal"] == "TERM"
    assert watch["stop"]["worker_signal"] is None
    for entry in (*watch["phases"], *watch["causes"], *watch["remarks"]):
        re.compile(entry["pattern"])
    keys = {"id", "pattern", "text", "fix", "secondary", "weak", "after", "unless"}
    assert all(keys == set(cause) for cause in watch["causes"])
    said = [(cause["id"], cause["text"]) for cause in watch["causes"]]
    assert len(set(said)) == len(said)


@EVERY
@pytest.mark.parametrize(
    "line",
    [
        "Capturing batches (bs=2 avail_mem=122.66 GB):  33%|###3      | 1/3 [01:02<02:04, 62.03s/it]",
        "Capturing batches (avail_mem=6.84 GB):  33%|###3      | 1/3 [01:02<02:04, 62.03s/it]",
        "Compiling num tokens (num_tokens=4096):  33%|###3      | 1/3 [00:05<00:10,  5.00s/it]",
    ],
)
def test_the_capture_of_graphs_counts(engine: Engine, line: str) -> None:
    watch = LogWatch.of(engine.watch())
    watch.begin(0.0)
    assert watch.feed(line, 5.0)
    assert (watch.phase.name, watch.phase.step, watch.phase.of, watch.phase.moved) == ("graphs", 1, 3, 5.0)


@EVERY
@pytest.mark.parametrize(
    ("title", "rank"),
    [
        ("sglang::scheduler_TP7", "7"),
        ("sglang::scheduler_DP0_TP31", "31"),
        ("sglang::scheduler_PP3_TP7_EP7", "7"),
        ("sglang::scheduler_PP0_ATTN_CP1_MOE_DP0_TP12", "12"),
        ("sglang::scheduler", None),
        ("sglang::detokenizer", "no"),
        ("python3 -m sglang.launch_server", "no"),
        ("x sglang::scheduler_TP1", "no"),
    ],
)
def test_a_schedulers_title_tells_its_rank(engine: Engine, title: str, rank: str | None) -> None:
    found = re.search(engine.watched.rank_title, title)
    assert (found["tp"] if found else "no") == rank


@EVERY
@pytest.mark.parametrize(
    ("line", "rank"),
    [
        ("[2025-03-26 12:00:00 TP0] Load weight begin. avail mem=43.70 GB", "0"),
        ("[2026-11-20 12:00:00 PP1 TP7 EP7] Load weight begin.", "7"),
        ("[2026-11-20 12:00:00] server_args=ServerArgs(tp_size=32)", None),
        ("node0:311:311 [0] NCCL INFO Bootstrap: Using bond0:10.0.0.11<0>", None),
    ],
)
def test_a_log_lines_prefix_tells_its_rank(engine: Engine, line: str, rank: str | None) -> None:
    found = re.search(engine.watched.rank_prefix, line)
    assert (found["tp"] if found else None) == rank


@pytest.mark.parametrize(
    ("family", "version", "taken"),
    [
        ("sglang-0.4.4", "0.4.4.post3", "0.4.4.post3"),
        ("sglang-0.4.4", "0.4.4", "0.4.4.post1"),
        ("sglang-0.4.4", "0.4.6", "0.4.4.post4"),
        ("sglang-0.5", "0.5.23+cu130", "0.5.23"),
        ("sglang-0.5", "0.5.11", "0.5.10"),
        ("sglang-0.5", "0.5.18", "0.5.17"),
        ("sglang-0.5", "0.5.20", "0.5.17"),
        ("sglang-0.5", "0.5.22", "0.5.23"),
        ("sglang-0.5", "0.6.0", dialect("sglang-0.5").versions[-1]),
    ],
)
def test_a_version_that_is_not_listed_is_treated_as_the_nearest(family: str, version: str, taken: str) -> None:
    assert dialect(family).engine(version).version == taken


def test_a_version_of_another_dialect_is_sent_there() -> None:
    found = unlisted(Stack(name="mine", source="", dialect="sglang-0.5", engine_version="0.4.4.post2"))
    assert found is not None and "`dialect: sglang-0.4.4`" in found.fix


@pytest.mark.parametrize("name", stack_names())
def test_every_shipped_stack_is_listed(name: str) -> None:
    assert unlisted(load_stack(name)) is None


@pytest.mark.parametrize("name", dialects())
def test_a_dialects_own_stack_is_there_and_of_it(name: str) -> None:
    stack = load_stack(dialect(name).stack)
    assert (stack.dialect, stack.device) == (name, "cuda")


def test_an_engine_of_any_version_is_asked_for_its_requests_on_the_newest_path_first() -> None:
    assert load_paths() == ("/v1/loads", "/metrics")
    assert newest().engine("0.5.23").load_paths == ("/v1/loads", "/metrics")
    assert dialect("sglang-0.4.4").engine("0.4.4.post1").load_paths == ("/metrics",)


def test_the_first_version_that_keeps_shared_experts_complete() -> None:
    assert first_with("whole_shared") == "0.5.17"
    assert first_with("address") == "0.4.4.post1" and first_with("no such meaning") == ""


def constants(tree: ast.AST) -> set[object]:
    return {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}


@pytest.mark.parametrize("file", sorted(Path(engines.__path__[0]).glob("*.py")), ids=lambda file: file.stem)
def test_a_flag_that_versions_spell_differently_is_written_in_its_table_alone(file: Path) -> None:
    """What reads such a flag back, as for memory, asks the table too; else what a new name says is not counted."""
    nodes = list(ast.walk(ast.parse(file.read_text("utf-8"))))
    tables = [node for node in nodes if isinstance(node, ast.Call) and ast.unparse(node.func) == "since"]
    steps = [step.elts[-1] for table in tables for step in table.args if isinstance(step, ast.Tuple)]
    flags = {step.value for step in steps if isinstance(step, ast.Constant) and str(step.value).startswith("--")}
    functions = [node for node in nodes if isinstance(node, ast.FunctionDef)]
    assert not [function.name for function in functions if flags & constants(function)], flags
