"""`tuning` as typed."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from orchestrator.cli.main import main

REFERENCE = str(Path(__file__).resolve().parents[4] / "inventory" / "reference.yml")
MODEL = "DeepSeek-V3-0324-Block64x64"


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
    assert [stack["name"] for stack in json.loads(out)["stacks"]] == ["sglang-0.4.4-l40s", "sglang-0.5.23"]
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
