"""Which weights a checkpoint holds: recognised from a small part of it, in any folder."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.node.checkpoint import fingerprint
from orchestrator.node.checkpoint.fingerprint import of_weights
from orchestrator.node.look.prerequisites import answer

DATA = 1 << 20


def checkpoint(folder: Path, files: int = 2) -> Path:
    folder.mkdir(parents=True)
    names = [f"model-{number:05d}-of-{files:05d}.safetensors" for number in range(1, files + 1)]
    for number, name in enumerate(names):
        header = json.dumps({f"w{number}": {"dtype": "U8", "shape": [DATA], "data_offsets": [0, DATA]}}).encode()
        (folder / name).write_bytes(len(header).to_bytes(8, "little") + header + bytes([number]) * DATA)
    index = {"weight_map": {f"w{number}": name for number, name in enumerate(names)}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return folder


def test_a_copy_has_the_same_and_its_times_do_not_count(tmp_path: Path) -> None:
    one = checkpoint(tmp_path / "one")
    other = Path(shutil.copytree(one, tmp_path / "other"))
    for path in other.iterdir():
        os.utime(path, (1, 1))
    assert of_weights(str(one)) == of_weights(str(other)) != ""


def _last(folder: Path) -> Path:
    return sorted(folder.glob("*.safetensors"))[-1]


def _trained_anew(folder: Path) -> None:
    """Same names, shapes and sizes; only the values differ."""
    path = _last(folder)
    data = path.read_bytes()
    path.write_bytes(data[:-DATA] + b"x" * DATA)


def _one_end(folder: Path) -> None:
    path = _last(folder)
    path.write_bytes(path.read_bytes()[:-1] + b"x")


def _shorter(folder: Path) -> None:
    os.truncate(_last(folder), 4)


def _renamed_tensor(folder: Path) -> None:
    path = _last(folder)
    path.write_bytes(path.read_bytes().replace(b'"w1"', b'"v1"', 1))


def _gone(folder: Path) -> None:
    _last(folder).unlink()


def _index(folder: Path) -> None:
    path = folder / "model.safetensors.index.json"
    path.write_text(path.read_text() + "\n")


@pytest.mark.parametrize("change", [_trained_anew, _one_end, _shorter, _renamed_tensor, _gone, _index])
def test_other_weights_have_another(tmp_path: Path, change: Callable[[Path], None]) -> None:
    folder = checkpoint(tmp_path / "one")
    before = of_weights(str(folder))
    change(folder)
    assert of_weights(str(folder)) not in ("", before)


def test_only_samples_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = checkpoint(tmp_path / "one", files=1)
    read: list[int] = []
    pread = os.pread

    def counted(descriptor: int, count: int, at: int) -> bytes:
        data = pread(descriptor, count, at)
        read.append(len(data))
        return data

    monkeypatch.setattr(os, "pread", counted)
    assert of_weights(str(folder))
    assert sum(read) < fingerprint.SAMPLES * fingerprint.SAMPLE_BYTES + 1024


def test_what_can_not_be_read_has_none(tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "one")
    _last(folder).unlink()
    _last(folder).with_name("model-00002-of-00002.safetensors").mkdir()
    assert of_weights(str(folder)) == ""


def test_a_look_takes_it_only_where_per_rank_files_are_kept(tmp_path: Path) -> None:
    folder = str(checkpoint(tmp_path / "one"))
    assert answer({"model_path": folder})["weights"] == ""
    assert answer({"model_path": folder, "presharded": str(tmp_path)})["weights"] == of_weights(folder)
