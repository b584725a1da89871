"""Reading ahead: which files, how much of them, the messages, and that it ends on order."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from tests.support.waiting import until

from orchestrator.node import dispatch, supervision
from orchestrator.node.agent.weights import INDEX
from orchestrator.node.engine import read_ahead
from orchestrator.node.engine.read_ahead import ReadAhead
from orchestrator.protocol import staging
from orchestrator.protocol.staging import CacheOrder

GIB = 1 << 30


def checkpoint(folder: Path, layers: int = 5) -> Path:
    folder.mkdir()
    files = {f"model.layers.{layer}.mlp.weight": f"model-{layer}.safetensors" for layer in range(layers)}
    files["model.embed_tokens.weight"] = "model-embed.safetensors"
    for number, name in enumerate(files.values()):
        (folder / name).write_bytes(b"x" * (1000 + number))
    (folder / "leftover.safetensors").write_bytes(b"y" * 5000)
    (folder / INDEX).write_text(json.dumps({"weight_map": files}))
    (folder / "config.json").write_text(json.dumps({"num_hidden_layers": layers}))
    return folder


def names(paths: list[str]) -> list[str]:
    return [Path(path).name for path in paths]


def test_the_index_names_the_files(tmp_path: Path) -> None:
    found = names(read_ahead.of_checkpoint(str(checkpoint(tmp_path / "model"))))
    assert found == [*(f"model-{layer}.safetensors" for layer in range(5)), "model-embed.safetensors"]


@pytest.mark.parametrize(("stage", "layers"), [(0, [0, 1]), (1, [2, 3]), (2, [4, 5, 6])])
def test_a_pipeline_stage_needs_its_own_layers(tmp_path: Path, stage: int, layers: list[int]) -> None:
    folder = str(checkpoint(tmp_path / "model", layers=7))
    found = names(read_ahead.of_checkpoint(folder, stage, stage, 3))
    assert found == [*(f"model-{layer}.safetensors" for layer in layers), "model-embed.safetensors"]


@pytest.mark.parametrize(
    "index", ["no json", "[]", '{"weight_map": {"a": 3}}', '{"weight_map": {"a": "../../etc/shadow"}}', "[" * 100000]
)
def test_a_bad_index_names_nothing(tmp_path: Path, index: str) -> None:
    (tmp_path / INDEX).write_text(index)
    assert read_ahead.of_checkpoint(str(tmp_path)) == []


def test_a_folder_without_an_index_or_without_anything(tmp_path: Path) -> None:
    assert read_ahead.of_checkpoint(str(tmp_path / "absent")) == []
    (tmp_path / "b.safetensors").touch()
    (tmp_path / "notes.txt").touch()
    assert names(read_ahead.of_checkpoint(str(tmp_path))) == ["b.safetensors"]


def test_room_is_what_is_available_less_what_system_and_ranks_need() -> None:
    assert staging.room(1024 * GIB, 1000 * GIB, 8) == 960 * GIB
    assert staging.room(16 * GIB, 10 * GIB, 8) == 6 * GIB  # a small node keeps a quarter
    assert staging.room(1024 * GIB, 30 * GIB, 8) == 0


def test_files_without_room_are_counted_and_not_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = read_ahead.of_checkpoint(str(checkpoint(tmp_path / "model")))
    monkeypatch.setattr(read_ahead.HostMemory, "of_node", classmethod(lambda cls: cls(4 * 2500, 5000)))
    chosen, taken, skipped = read_ahead.ReadCounter(8).chosen(paths)
    assert (names(chosen), taken) == (["model-0.safetensors", "model-1.safetensors"], 2001)
    assert skipped == 1002 + 1003 + 1004 + 1005


def test_reading_stops_when_the_memory_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "large").write_bytes(b"x" * 1_000_000)
    monkeypatch.setattr(read_ahead, "CHUNK", 1000)
    monkeypatch.setattr(read_ahead, "LOOK_EVERY_BYTES", 10_000)
    monkeypatch.setattr(read_ahead.HostMemory, "of_node", classmethod(lambda cls: cls(4000, 1000)))
    reading = read_ahead.ReadCounter(8)
    reading.read(str(tmp_path / "large"))
    assert reading.done == 10_000
    assert reading.why


def test_the_process_says_what_it_reads_and_reads_everything(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "model")
    order = json.dumps({"folder": str(folder)})
    words = dispatch.command("read-ahead", "8", order)
    done = subprocess.run(words, capture_output=True, check=True, timeout=60)
    said = [json.loads(line) for line in done.stdout.splitlines()]
    assert said[0] == {"of": 6015, "skipped": 0}
    assert said[-2]["done"] == 6015
    assert said[-1] == {"state": "done", "why": ""}


def test_an_agent_hears_the_end(tmp_path: Path) -> None:
    ahead = ReadAhead(CacheOrder(folder=str(checkpoint(tmp_path / "model"))), ranks=8)
    ahead.start()
    assert ahead.helpers

    def over() -> bool:
        ahead.take()
        return ahead.cache is not None and ahead.cache.state == "done"

    until(over)
    assert ahead.cache is not None
    assert (ahead.cache.done, ahead.cache.of, ahead.cache.skipped) == (6015, 6015, 0)
    until(lambda: not ahead.helpers)
    assert ahead.fileno() == -1


def test_a_reader_that_hangs_is_ended_at_once(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    os.mkfifo(folder / "a.safetensors")  # opening it blocks until a writer comes
    ahead = ReadAhead(CacheOrder(folder=str(folder)), ranks=8)
    ahead.start()
    ahead.stop("the run ended")
    assert ahead.cache is not None
    assert (ahead.cache.state, ahead.cache.why) == ("stopped", "the run ended")
    until(lambda: not ahead.helpers)


def test_nothing_is_started_where_nothing_is_ordered() -> None:
    ahead = ReadAhead(None, ranks=8)
    ahead.start()
    ahead.stop("the run ended")
    assert (ahead.cache, ahead.fileno(), ahead.helpers) == (None, -1, set())


def _asked(folder: Path) -> subprocess.Popen[bytes]:
    child = subprocess.Popen(dispatch.command("weights-ahead"), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert child.stdin is not None
    child.stdin.write(json.dumps({"order": {"folder": str(folder)}, "ranks": 8}).encode())
    child.stdin.close()
    return child


def _line(child: subprocess.Popen[bytes]) -> Any:
    assert child.stdout is not None
    return json.loads(child.stdout.readline())["cache"]


def _readers(folder: Path) -> list[int]:
    return [one.pid for one in supervision.everything() if str(folder) in supervision.title(one.pid)]


def test_it_reads_everything_and_says_so(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "model")
    with _asked(folder) as child:
        said = [_line(child)]
        while said[-1]["state"] == "reading":
            said.append(_line(child))
        assert (said[-1]["state"], said[-1]["done"], said[-1]["of"]) == ("done", 6015, 6015)
        assert child.wait(20) == 0


def test_it_ends_when_nobody_listens_any_more(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "model")
    slow = folder / "model-0.safetensors"
    slow.unlink()
    os.mkfifo(slow)
    with _asked(folder) as child:
        assert _line(child)["state"] == "reading"
        until(lambda: len(_readers(folder)) == 1, 20)
        assert child.stdout is not None
        child.stdout.close()
        until(lambda: child.poll() is not None and not _readers(folder), 20)
