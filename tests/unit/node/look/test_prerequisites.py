"""An engine's prerequisites on a node: read from real files, and never more than a little."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from orchestrator.node.look.prerequisites import MOST_BYTES, answer


def test_a_checkpoint_and_an_environment(tmp_path: Path) -> None:
    model, venv = tmp_path / "model", tmp_path / "venv"
    model.mkdir()
    (venv / "bin").mkdir(parents=True)
    (model / "config.json").write_text('{"hidden_size": 1}')
    (venv / "bin" / "python3").write_text("")
    (venv / "pyvenv.cfg").write_text("home = /usr/bin\ninclude-system-site-packages = false\nversion = 3.11.2\n")
    told = answer({"model_path": str(model), "venv": str(venv)})
    assert json.loads(told["config"]) == {"hidden_size": 1}
    assert (told["config_error"], told["engine"], told["engine_python"]) == ("", True, "3.11.2")
    assert told["vocabularies"] is False
    (venv / "vocabularies").mkdir()
    assert answer({"model_path": "/", "venv": str(venv)})["vocabularies"] is True
    assert told["glibc"] == os.confstr("CS_GNU_LIBC_VERSION").split()[1]  # type: ignore[union-attr]


def test_nothing_there(tmp_path: Path) -> None:
    told = answer({"model_path": str(tmp_path / "no"), "venv": str(tmp_path / "no")})
    assert (told["config"], told["config_error"], told["engine"], told["engine_python"]) == (None, "ENOENT", False, "")


@pytest.mark.parametrize(
    ("content", "told"), [(b"x" * (MOST_BYTES + 1), (None, "EFBIG")), (b"\xff{}", ("\ufffd{}", ""))]
)
def test_odd_files(tmp_path: Path, content: bytes, told: tuple[str | None, str]) -> None:
    (tmp_path / "config.json").write_bytes(content)
    found = answer({"model_path": str(tmp_path), "venv": "/"})
    assert (found["config"], found["config_error"]) == told


@pytest.mark.parametrize("make", [os.mkdir, os.mkfifo])
def test_what_is_no_file_in_its_place(tmp_path: Path, make: Callable[[Path], None]) -> None:
    make(tmp_path / "config.json")
    assert answer({"model_path": str(tmp_path)})["config_error"] == "ENXIO"
