"""The verb as a user types it: exit codes, one JSON document, a message for every mistake."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.unit.checkpoint.on_node.conftest import CONFIG, fp8_pair, write

from orchestrator.cli.main import main

NAME = "model.layers.0.self_attn.kv_a_proj_with_mqa.weight"
SHARD = "model-00001-of-000001.safetensors"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """One cropped matrix and its scales, scale first."""
    config = {"architectures": ["X"], "num_attention_heads": 4, "quantization_config": CONFIG["quantization_config"]}
    tensors = fp8_pair(NAME, (576, 256), np.random.default_rng(5))
    return write(tmp_path / "model", tensors, order="scale first", shards=1, config=config)


def answer(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, Any]:
    code = main(["checkpoint", *map(str, words), "--json"])
    said = capsys.readouterr()
    return code, json.loads(said.out or said.err.splitlines()[-1])


def test_reblock_verify_check_and_a_flipped_byte(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "finer"
    code, done = answer(capsys, "reblock", source, target, "--block", 64, "--verify")
    assert (code, done["new_block"]) == (0, [64, 64])
    assert (done["written"]["shards_done"], done["proof"]["tensors"]) == (1, 2)
    code, seen = answer(capsys, "check", target)
    assert code == 0 and seen["quantisation"] == {"method": "fp8", "block": [64, 64]}
    assert seen["shards"] == {"named": 1, "readable": 1, "unused": []}
    code, again = answer(capsys, "reblock", source, target, "--verify")
    assert code == 0 and again["written"] is None
    shard = target / SHARD
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    code, failed = answer(capsys, "reblock", source, target, "--verify")
    assert (code, failed["error"]["where"]) == (7, f"{shard}: {NAME}")
    assert "element [575, 255]" in failed["error"]["what"]


def test_words_for_people(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoint", "reblock", str(source), str(tmp_path / "finer"), "--verify"]) == 0
    out = capsys.readouterr().out
    assert "1 shard in blocks of 64x64" in out
    assert "verified: 2 tensors (1 of them scales)" in out
    assert main(["checkpoint", "reblock", str(source), str(tmp_path / "finer")]) == 0
    assert "already complete" in capsys.readouterr().out
    assert main(["checkpoint", "check", str(source)]) == 0
    out = capsys.readouterr().out
    assert "fp8 in blocks of 128x128" in out
    assert "loads it" in out


def test_a_dry_run_says_what_would_be_written(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "finer"
    code, told = answer(capsys, "reblock", source, target, "--dry-run")
    (would,) = told["nodes"]
    assert code == 0 and (would["state"], would["shards"], would["todo"]) == ("empty", 1, 1)
    assert would["bytes"] > (source / SHARD).stat().st_size and not target.exists()
    assert main(["checkpoint", "reblock", str(source), str(target)]) == 0
    written = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    assert would["bytes"] == written
    capsys.readouterr()
    assert main(["checkpoint", "reblock", str(source), str(target), "--dry-run"]) == 0
    assert "already complete; nothing would be written" in capsys.readouterr().out
    (target / "config.json").write_text("{}")
    assert answer(capsys, "reblock", source, target, "--dry-run")[0] == 2
    assert answer(capsys, "reblock", source, source / "inside", "--dry-run")[0] == 2


def test_a_broken_shard_is_shown_and_exits_3(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shard = source / SHARD
    shard.write_bytes(shard.read_bytes()[:-5])
    assert main(["checkpoint", "check", str(source)]) == 3
    out = capsys.readouterr().out
    assert "SHARD-TRUNCATED" in out
    assert "refuses it" in out
    code, seen = answer(capsys, "check", source)
    assert (code, seen["loads"], seen["findings"][0]["id"]) == (3, False, "SHARD-TRUNCATED")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["check", "{tmp}/none"], "no such directory"),
        (["reblock", "{tmp}/none", "{tmp}/x"], "no such directory"),
        (["reblock", "{src}", "{src}"], "is the source"),
        (["reblock", "{src}", "{src}/x"], "is inside"),
        (["reblock", "{src}", "{tmp}"], "contains"),
        (["reblock", "{src}", "{tmp}/x", "--block", "48"], "is not divisible by 48"),
        (["reblock", "{src}", "{tmp}/x", "--block", "128"], "already"),
    ],
)
def test_a_mistake_is_exit_2_and_one_message(
    source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], says: str
) -> None:
    code, said = answer(capsys, *(word.format(tmp=tmp_path, src=source) for word in words))
    assert code == 2
    assert says in said["error"]["what"]
    assert said["error"]["fix"]


def test_names_from_a_file_cannot_drive_the_terminal(source: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = source / "model.safetensors.index.json"
    index.write_text(index.read_text().replace(SHARD, "\\u001b[31m[bold]s.safetensors"))
    assert main(["checkpoint", "check", str(source)]) == 3
    out = capsys.readouterr().out
    assert "\x1b[31m" not in out
    assert "\\x1b[31m[bold]s.safetensors" in out


@pytest.mark.parametrize(
    "words",
    [("--port", "70000"), ("--port", "-1"), ("--bwlimit", "inf"), ("--bwlimit", "1e999G"), ("--bwlimit", "nan")],
)
def test_numbers_out_of_range_are_refused(words: tuple[str, str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["checkpoint", "push", "/m", *words]) == 2
    assert "wanted" in capsys.readouterr().err
