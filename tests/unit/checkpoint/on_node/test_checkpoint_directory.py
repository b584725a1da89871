"""The facts read from a directory, and every way it can be broken."""

from __future__ import annotations

import json
import os
import shutil
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchestrator.checkpoint.on_node.directory import JOURNAL, files_below, look
from orchestrator.node.agent import weights
from orchestrator.protocol.errors import DeployError

from .conftest import CONFIG

SHARD, OTHER = "model-00001-of-000002.safetensors", "model-00002-of-000002.safetensors"
INDEX = "model.safetensors.index.json"


def faults(directory: Path) -> list[tuple[str, str]]:
    return [(fault["id"], fault["severity"]) for fault in look(directory)["faults"]]


def change_index(directory: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = directory / INDEX
    index = json.loads(path.read_text())
    change(index)
    path.write_text(json.dumps(index))


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
    with pytest.raises(DeployError, match="no such directory"):
        look(tmp_path / "none")


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


def emptied(directory: Path) -> None:
    shutil.rmtree(directory)
    directory.mkdir()


def only_a_config(directory: Path) -> None:
    emptied(directory)
    (directory / "config.json").write_text("{}")


def a_folder_for_a_shard(directory: Path) -> None:
    (directory / SHARD).unlink()
    (directory / SHARD).mkdir()


def the_same_shard_twice(directory: Path) -> None:
    (directory / SHARD).write_bytes((directory / OTHER).read_bytes())


@pytest.mark.parametrize(
    ("damage", "found"),
    [
        (emptied, {("CONFIG-MISSING", "stop")}),
        (only_a_config, {("NO-WEIGHTS", "stop")}),
        (lambda of: (of / SHARD).unlink(), {("SHARD-MISSING", "stop")}),
        (a_folder_for_a_shard, {("SHARD-BROKEN", "stop")}),
        (lambda of: (of / "old.safetensors").touch(), {("SHARD-UNUSED", "note")}),
        (
            lambda of: change_index(of, lambda index: index["weight_map"].update({"model.layers.9.w": SHARD})),
            {("TENSOR-MISSING", "stop")},
        ),
        (
            lambda of: change_index(of, lambda index: index["weight_map"].pop("model.norm.weight")),
            {("TENSOR-UNLISTED", "note")},
        ),
        (the_same_shard_twice, {("TENSOR-TWICE", "stop"), ("TENSOR-MISSING", "stop")}),
        (lambda of: change_index(of, lambda index: index.update(metadata={"total_size": 7})), {("INDEX-SIZE", "note")}),
        (lambda of: (of / JOURNAL).write_text("{}"), {("UNFINISHED", "stop")}),
        (
            lambda of: (of / "config.json").write_text(json.dumps(CONFIG).replace("128", "64")),
            {("SCALE-SHAPE", "stop")},
        ),
    ],
)
def test_what_is_wrong_is_a_fault(source: Path, damage: Callable[[Path], object], found: set[tuple[str, str]]) -> None:
    damage(source)
    assert set(faults(source)) >= found if damage is the_same_shard_twice else set(faults(source)) == found


def test_regular_files_and_links_to_them_and_nothing_hidden(tmp_path: Path) -> None:
    for name in ("a", "below/b", ".hidden", ".cache/c", "lost+found/d", "e.bin"):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.touch()
    (tmp_path / "link").symlink_to("a")
    os.mkfifo(tmp_path / "pipe")
    assert list(files_below(tmp_path, lambda path: not path.endswith(".bin"))) == ["a", "link", "below/b"]


@pytest.mark.parametrize(
    ("name", "to", "kind", "says"),
    [
        ("tokenizer.json", "../blobs/gone", "unfinished", "which does not exist"),
        ("code", ".", "far-link", "link to a directory"),
        ("loop", "loop", "unreadable", "can't be read"),
    ],
)
def test_a_link_to_no_file_is_refused_where_it_matters(
    tmp_path: Path, name: str, to: str, kind: str, says: str
) -> None:
    (tmp_path / name).symlink_to(to)
    assert name == "code" or not list(files_below(tmp_path, lambda _: False))
    with pytest.raises(DeployError, match=says) as told:
        list(files_below(tmp_path))
    assert (told.value.kind, told.value.where) == (kind, f"{tmp_path}/{name}")
    with pytest.raises(DeployError, match="can't be read"):
        list(files_below(tmp_path / "nowhere"))
