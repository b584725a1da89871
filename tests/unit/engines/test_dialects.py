"""Intent becomes each version's flags; watch data is what the agent takes."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest

from orchestrator.engines.dialect import Dialect, Intent
from orchestrator.engines.dialects import DIALECTS, dialect
from orchestrator.model.errors import InputError

EVERY = pytest.mark.parametrize("adapter", DIALECTS.values(), ids=DIALECTS)
INTENT = Intent(
    model_path="/workspace/M",
    tensor_parallel=32,
    nnodes=4,
    node_rank=1,
    dist_init="10.0.0.11:5000",
    host="0.0.0.0",
    port=8000,
    trust_remote_code=True,
    cuda_graph_max_bs=32,
    torch_compile_max_bs=32,
)
PHASES = ["rendezvous", "nccl", "weights", "kv-cache", "graphs", "warm-up", "ready"]


def argv(adapter: Dialect, intent: Intent) -> str:
    return " ".join(" ".join((option.flag, *option.values)) for option in adapter.options(intent))


def test_the_articles_command_in_0_4_4s_full_names() -> None:
    assert argv(dialect("sglang-0.4.4"), INTENT) == (
        "--model-path /workspace/M --tp-size 32 --dist-init-addr 10.0.0.11:5000 --nnodes 4 --node-rank 1"
        " --trust-remote-code --enable-torch-compile --torch-compile-max-bs 32 --cuda-graph-max-bs 32"
        " --host 0.0.0.0 --port 8000"
    )


def test_the_same_in_0_5s_full_names() -> None:
    assert argv(dialect("sglang-0.5"), replace(INTENT, pipeline_parallel=4, tensor_parallel=8, nccl_port=5001)) == (
        "--model-path /workspace/M --tp-size 8 --pp-size 4 --dist-init-addr 10.0.0.11:5000 --nnodes 4"
        " --node-rank 1 --trust-remote-code --enable-torch-compile --torch-compile-max-bs 32"
        " --cuda-graph-max-bs-decode 32 --nccl-port 5001 --host 0.0.0.0 --port 8000"
    )


@EVERY
def test_one_node_needs_no_rendezvous(adapter: Dialect) -> None:
    words = argv(adapter, Intent(model_path="/m", tensor_parallel=8, host="127.0.0.1", port=8000))
    assert words == "--model-path /m --tp-size 8 --host 127.0.0.1 --port 8000"


@EVERY
def test_every_flag_that_an_adapter_writes_is_known_to_its_versions(adapter: Dialect) -> None:
    names = adapter.names
    intent = replace(
        INTENT, nccl_port=1 if names.nccl_port else None, pipeline_parallel=2 if names.pipeline_parallel else 1
    )
    for version in adapter.flags_versions:
        flags = adapter.flags(version)
        for option in adapter.options(intent):
            flags.given([option.flag, *option.values], where=adapter.name)
            assert option.source


def test_pipelines_are_refused_where_the_version_has_none() -> None:
    with pytest.raises(InputError, match="no such flag"):
        dialect("sglang-0.4.4").options(replace(INTENT, pipeline_parallel=2))


def test_a_port_for_nccl_is_refused_where_the_version_can_t_choose_one() -> None:
    with pytest.raises(InputError) as caught:
        dialect("sglang-0.4.4").options(replace(INTENT, nccl_port=5001))
    assert caught.value.where == "inventory: l40s_nccl_port"


def test_an_unknown_adapter_is_told_with_the_known_ones() -> None:
    with pytest.raises(InputError) as caught:
        dialect("sglang-0.6")
    assert "sglang-0.5" in caught.value.fix


@EVERY
def test_watch_data_survives_json_and_has_the_agents_keys(adapter: Dialect) -> None:
    watch = json.loads(json.dumps(adapter.watch()))
    assert watch["dialect"] == adapter.name
    assert [entry["phase"] for entry in watch["phases"]] == PHASES
    assert {"alive", "generate", "models", "completions"} <= set(watch["http"])
    assert watch["stop"]["leader_signal"] == "TERM"
    assert watch["stop"]["worker_signal"] is None
    for entry in (*watch["phases"], *watch["causes"], *watch["remarks"]):
        re.compile(entry["pattern"])
    assert all({"id", "pattern", "text", "fix", "secondary"} == set(cause) for cause in watch["causes"])
    ids = [cause["id"] for cause in watch["causes"]]
    assert len(set(ids)) == len(ids)


@EVERY
@pytest.mark.parametrize(
    ("title", "rank"),
    [
        ("sglang::scheduler_TP7", "7"),
        ("sglang::scheduler_DP0_TP31", "31"),
        ("sglang::scheduler_PP3_TP7_EP7", "7"),
        ("sglang::scheduler_PP0_ATTN_CP1_MOE_DP0_TP12", "12"),
        ("sglang::scheduler", None),
    ],
)
def test_a_schedulers_title_tells_its_rank(adapter: Dialect, title: str, rank: str | None) -> None:
    found = re.search(adapter.rank_title, title)
    assert found is not None
    assert found["tp"] == rank


@EVERY
@pytest.mark.parametrize("title", ["sglang::detokenizer", "python3 -m sglang.launch_server", "x sglang::scheduler_TP1"])
def test_other_titles_are_no_rank(adapter: Dialect, title: str) -> None:
    assert re.search(adapter.rank_title, title) is None


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
def test_a_log_lines_prefix_tells_its_rank(adapter: Dialect, line: str, rank: str | None) -> None:
    found = re.search(adapter.rank_prefix, line)
    assert (found["tp"] if found else None) == rank
