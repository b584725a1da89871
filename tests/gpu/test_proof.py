"""The proof's own parts, without a GPU; and a short rehearsal of it with the stand-in."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
NCCL = """<system version="1"><cpu numaid="-1" arch="x86_64">
<pci busid="0000:00:06.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="0">
<gpu dev="0" sm="90" rank="0" gdr="1"><nvlink target="fffffff:ff:ff.0" count="18" tclass="0x068000"/></gpu></pci>
<nic><net name="eth0" dev="0"/></nic></cpu></system>"""
OURS = """<system version="1"><cpu numaid="-1" arch="x86_64">
<pci busid="0000:00:06.0" class="0x030200" link_speed="32.0 GT/s PCIe" link_width="16">
<gpu dev="0" sm="89" rank="0" gdr="1"/></pci></cpu></system>"""


def proof(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.gpu", *words], cwd=ROOT, capture_output=True, text=True, timeout=280, check=False
    )


@pytest.mark.skipif(Path("/dev/nvidia0").exists(), reason="this machine has GPUs")
def test_without_gpus_it_is_skipped_loudly_and_writes_nothing(tmp_path: Path) -> None:
    before = (ROOT / "tests/gpu/measured.md").read_bytes() if (ROOT / "tests/gpu/measured.md").exists() else b""
    done = proof("--figures", str(tmp_path / "figures.json"))
    assert done.returncode == 0
    assert done.stderr.startswith("SKIPPED: the proof on GPUs was not played: ")
    assert not (tmp_path / "figures.json").exists()
    assert before == ((ROOT / "tests/gpu/measured.md").read_bytes() if before else b"")


def test_figures_of_several_calls_are_one_proof(tmp_path: Path) -> None:
    from tests.gpu.figures import Figures, Result

    file = tmp_path / "figures.json"
    Figures.of(file).add(Result(step="up", outcome="not done", said="no time left"))
    Figures.of(file).add(Result(step="down", outcome="as it should", said="done", figures={"down_s": 8.2}))
    assert Figures.of(file).missing(["up", "down", "cut"]) == ["up", "cut"]
    Figures.of(file).add(Result(step="up", outcome="otherwise", said="it ended"))
    assert Figures.of(file).missing(["up", "down", "cut"]) == ["cut"]
    assert [one.outcome for one in Figures.of(file).of_step("up")] == ["not done", "otherwise"]


def test_the_page_counts_kills_and_hides_no_failure(tmp_path: Path) -> None:
    from tests.gpu.figures import Figures, Result
    from tests.gpu.page import page

    figures = Figures(tmp_path / "figures.json", {"gpus": "4 x NVIDIA H200, one host"})
    told = {"gang": "gang0", "ranks": 4, "node": "node1", "tp_rank": 1, "told_s": 0.4}
    right = {**told, "cause": ["node1", 1, 9, "TP1 was killed"]}
    wrong = {**told, "load": True, "cause": ["node3", None, 9, "another rank | went away"]}
    figures.add(Result(step="kill", outcome="as it should", said="right", figures=right))
    figures.add(Result(step="kill", outcome="otherwise", said="node1 TP1 killed: status says node3", figures=wrong))
    figures.add(Result(step="up", outcome="otherwise", said="up ended with 5"))
    figures.add(Result(step="up", outcome="as it should", said="4 ranks ready after 30 s", figures={"up_s": 30.1}))
    figures.add(Result(step="cut", outcome="not done", said="no time left"))
    text = page(figures)
    assert "signal in 1 of 2 kills" in text and "4 x NVIDIA H200, one host" in text
    assert "| gang0, TP4 | node1 TP1 | under load | another rank \\| went away | 0.4 |  |  | NO |" in text
    assert "| up | as expected | 4 ranks ready after 30 s |" in text and "| cut | not run | no time left |" in text
    assert (
        "up: up ended with 5 (as expected when run again, " in text
        and "kill: node1 TP1 killed: status says node3" in text
    )


@pytest.mark.parametrize("ranks", [1, 2, 3, 4])
def test_every_rank_is_killed_idle_and_under_load_in_turn(ranks: int) -> None:
    from tests.gpu.steps import _loaded

    for rank in range(ranks):
        turns = [_loaded(number, ranks) for number in range(rank, 4 * ranks, ranks)]
        assert sorted(turns[:2]) == sorted(turns[2:]) == [False, True], (rank, turns)


def test_topology_files_are_compared_gpu_by_gpu(tmp_path: Path) -> None:
    from tests.gpu.cards import compared

    (tmp_path / "nccl.xml").write_text(NCCL)
    (tmp_path / "ours.xml").write_text(OURS)
    assert compared(tmp_path / "nccl.xml", tmp_path / "nccl.xml") == {}
    differing = compared(tmp_path / "nccl.xml", tmp_path / "ours.xml")
    assert differing == {"sm": ["90", "89"], "nvlinks": [18, 0]}  # no width is 16 lanes to NCCL


def test_a_share_of_v3_has_the_shapes_of_one_of_32_gpus(tmp_path: Path) -> None:
    import yaml
    from tests.gpu import checkpoint, tuned

    from orchestrator.engines.registry import engine_of
    from orchestrator.engines.tuned_wanted import wanted_files
    from orchestrator.loading.profiles import load_profile, load_stack
    from orchestrator.protocol.planned import Layout

    def shapes(name: str, ranks: int) -> list[str]:
        profile = load_profile(name)
        layout, rules = (
            Layout(tensor_parallel=ranks, nnodes=ranks, gpus_per_node=1),
            engine_of(load_stack("sglang-0.5.23")).tuned,
        )
        return [one.name for one in wanted_files(profile, layout, rules, gpu="NVIDIA H200", triton="3.6.0")]

    for ranks in (1, 2, 4):
        share = {**checkpoint.profile(64, tuned.SHARE), "dimensions": tuned.share(ranks)}
        (tmp_path / "share.yml").write_text(yaml.safe_dump(share))
        assert shapes(str(tmp_path / "share.yml"), ranks) == shapes("DeepSeek-V3-0324-Block64x64", 32)


def test_answers_apart_are_seen_and_the_letters_are_left_out() -> None:
    from tests.gpu.answers import distance, letters_wrong
    from tests.gpu.checkpoint import prompts

    said = {"letters": {"next": [0.0], "best": [5]}, "random 0": {"next": [-1.0, -2.0], "best": [7, None]}}
    other = {"letters": {"next": [-9.0], "best": [6]}, "random 0": {"next": [-1.0, -5.0], "best": [7, 8, 9]}}
    assert distance(said, said).figures() == {"rms": 0.0, "largest": 0.0, "agreement": 1.0}
    apart = distance(said, other)
    assert apart.figures() == {"rms": 2.1213, "largest": 3.0, "agreement": 1.0} and not apart.near
    start = prompts()["letters"][0]
    assert letters_wrong({"letters": {"greedy": [start + number % 26 for number in range(32)]}}) == ""
    assert letters_wrong({"letters": {"greedy": [start] * 32}})


@pytest.mark.turns(of="a proof on GPUs is rehearsed")
@pytest.mark.lab
@pytest.mark.timeout(300)
@pytest.mark.skipif(os.geteuid() != 0, reason="gangs of emulated nodes with their own GPUs need root")
def test_a_rehearsal_plays_its_steps_with_the_stand_in(tmp_path: Path) -> None:
    from tests.gpu.figures import Figures

    figures, kept = tmp_path / "figures.json", tmp_path / "kept"
    done = proof("--rehearse", "--steps", "look,up,down", "--figures", str(figures), "--kept", str(kept))
    found = Figures.of(figures)
    assert [(one.step, one.outcome) for one in found.results] == [
        ("look", "as it should"),
        ("up", "as it should"),
        ("down", "as it should"),
    ], done.stdout + done.stderr
    assert done.returncode == 0 and "the lab is gone" in done.stdout


def test_a_benchmark_is_judged_by_its_own_noise() -> None:
    """16 % between runs of one way were seen: then 12 between two ways is no difference; quiet runs are held to 10."""
    from tests.gpu.measuring import is_apart

    assert not is_apart(-0.12, 0.16) and is_apart(0.17, 0.16)
    assert is_apart(-0.12, 0.02) and not is_apart(0.09, 0.02)
