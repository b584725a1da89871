"""The facts read from a directory, and every way it can be broken."""

from __future__ import annotations

import json
import os
import socket
import threading
from pathlib import Path
from typing import Any

import pytest

from orchestrator.checkpoint.on_node.directory import JOURNAL, files_below, listed, look
from orchestrator.node.agent import weights
from orchestrator.node.cache import reader
from orchestrator.node.failure import Failure

SHARD = "model-00001-of-000002.safetensors"
INDEX = "model.safetensors.index.json"


def faults(directory: Path) -> list[tuple[str, str]]:
    return [(fault["id"], fault["severity"]) for fault in look(directory)["faults"]]


def change_index(directory: Path, **changes: Any) -> None:
    path = directory / INDEX
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_a_whole_one(source: Path, small: Any) -> None:
    facts = look(source)
    assert facts["faults"] == []
    assert facts["block"] == [128, 128]
    assert facts["shards"] == {"named": 2, "readable": 2, "unused": []}
    assert facts["tensors"]["count"] == len(small)
    assert facts["tensors"]["by_dtype"]["F8_E4M3"]["count"] == 4
    assert facts["bytes"]["tensors"] == sum(len(data) for _, _, data in small.values())
    assert facts["bytes"]["files"] == sum(path.stat().st_size for path in source.glob("*.safetensors"))
    assert facts["experts"] == {1: 1}
    assert set(facts["layers"]) == {0, 1, 2}
    json.dumps(facts)


def test_no_directory(tmp_path: Path) -> None:
    with pytest.raises(Failure, match="no such directory"):
        look(tmp_path / "none")


def test_an_empty_directory(tmp_path: Path) -> None:
    assert [name for name, _ in faults(tmp_path)] == ["CONFIG-MISSING"]


def test_a_directory_without_weights(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    assert faults(tmp_path) == [("NO-WEIGHTS", "stop")]


def test_a_missing_shard_is_one_fault(source: Path) -> None:
    (source / SHARD).unlink()
    assert faults(source) == [("SHARD-MISSING", "stop")]


def test_a_shard_that_is_a_directory(source: Path) -> None:
    (source / SHARD).unlink()
    (source / SHARD).mkdir()
    assert faults(source) == [("SHARD-BROKEN", "stop")]


@pytest.mark.parametrize("kind", ["pipe", "socket", "device"])
@pytest.mark.parametrize(
    ("name", "fault"), [(SHARD, "SHARD-BROKEN"), (INDEX, "INDEX-BROKEN"), ("config.json", "CONFIG-BROKEN")]
)
def test_what_is_no_regular_file_is_told_and_never_waited_for(
    source: Path, name: str, fault: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source / name).unlink()
    found: list[Any] = []

    def ask() -> None:
        found.extend((faults(source), [*weights.check(source)], weights.told_apart(str(source))))
        reader.of_checkpoint(str(source), last=1, stages=2)
        reader.ReadCounter(ranks=1).read(str(source / name))

    with socket.socket(socket.AF_UNIX) as held:
        if kind == "pipe":
            os.mkfifo(source / name)
        elif kind == "device":
            (source / name).symlink_to("/dev/zero")
        else:
            monkeypatch.chdir(source)  # for a short path
            held.bind(name)
        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(30.0)
    assert not asking.is_alive()
    told, failures, digests = found
    assert (fault, "stop") in told
    assert name not in digests
    assert name != SHARD or "not intact" in failures[0].what


@pytest.mark.parametrize(("more", "word"), [(b"", "truncated"), (b"12", "too long")])
def test_a_size_that_is_not_the_headers(source: Path, more: bytes, word: str) -> None:
    data = (source / SHARD).read_bytes()
    (source / SHARD).write_bytes(data[:-1] if not more else data + more)
    facts = look(source)
    assert [fault["id"] for fault in facts["faults"]] == ["SHARD-TRUNCATED"]
    assert word in facts["faults"][0]["what"]


def test_a_shard_that_the_index_does_not_name(source: Path) -> None:
    (source / "old.safetensors").write_bytes(b"")
    assert faults(source) == [("SHARD-UNUSED", "note")]


def test_a_tensor_that_its_shard_does_not_hold(source: Path) -> None:
    weight_map = json.loads((source / INDEX).read_text())["weight_map"]
    change_index(source, weight_map={**weight_map, "model.layers.9.w": SHARD})
    assert faults(source) == [("TENSOR-MISSING", "stop")]


def test_a_tensor_that_the_index_does_not_list(source: Path) -> None:
    weight_map = json.loads((source / INDEX).read_text())["weight_map"]
    weight_map.pop("model.norm.weight")
    change_index(source, weight_map=weight_map)
    assert faults(source) == [("TENSOR-UNLISTED", "note")]


def test_a_tensor_in_two_shards(source: Path) -> None:
    (source / SHARD).write_bytes((source / "model-00002-of-000002.safetensors").read_bytes())
    assert ("TENSOR-TWICE", "stop") in faults(source)


def test_a_total_that_is_wrong(source: Path) -> None:
    change_index(source, metadata={"total_size": 7})
    assert faults(source) == [("INDEX-SIZE", "note")]


def test_scales_of_another_block(maker: Any, small: Any, tmp_path: Path) -> None:
    quantisation = {**maker.config["quantization_config"], "weight_block_size": [64, 64]}
    directory = maker.write(tmp_path / "x", small, config={**maker.config, "quantization_config": quantisation})
    assert set(faults(directory)) == {("SCALE-SHAPE", "stop")}


def test_a_target_under_way(source: Path) -> None:
    (source / JOURNAL).write_text("{}")
    assert faults(source) == [("UNFINISHED", "stop")]


def test_regular_files_and_links_to_them_and_nothing_hidden(tmp_path: Path) -> None:
    for name in ("a", "below/b", ".hidden", ".cache/c", "lost+found/d", "e.bin"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    (tmp_path / "link").symlink_to("a")
    os.mkfifo(tmp_path / "pipe")
    assert list(files_below(tmp_path, lambda path: not path.endswith(".bin"))) == ["a", "link", "below/b"]


def test_a_link_to_nothing_is_refused_where_the_file_matters(tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").symlink_to("../blobs/gone")
    assert not list(files_below(tmp_path, lambda _: False))
    with pytest.raises(Failure, match="which does not exist") as told:
        list(files_below(tmp_path))
    assert (told.value.kind, told.value.where) == ("unfinished", f"{tmp_path}/tokenizer.json")


def test_a_link_to_a_directory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "code").symlink_to(tmp_path)
    with pytest.raises(Failure, match="link to a directory") as told:
        list(files_below(tmp_path))
    assert told.value.kind == "far-link"


def test_what_cannot_be_read_is_refused(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    for directory in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(Failure) as told:
            list(files_below(directory))
        assert told.value.kind == "unreadable"


def test_a_directory_without_files_is_no_checkpoint(tmp_path: Path) -> None:
    (tmp_path / ".hidden").touch()
    with pytest.raises(Failure, match="contains no files") as told:
        listed(tmp_path)
    assert told.value.kind == "no-checkpoint"
