from __future__ import annotations

import hashlib
import importlib.util
import io
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from orchestrator.remote import app_archive

BYTE_CODE = app_archive.byte_code


@pytest.fixture(autouse=True)
def _fresh() -> None:
    app_archive._application.cache_clear()


def test_the_same_sources_are_the_same_bytes() -> None:
    files = {"b.py": b"2", "a/b.py": b"#" * 5000}
    content = app_archive.build(files)
    assert content == app_archive.build(dict(reversed(files.items())))
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        held = {name: archive.read(name) for name in archive.namelist()}
    assert {name: text for name, text in held.items() if name.endswith(".py")} == files
    assert {f"{name}c" for name in files} == held.keys() - files.keys()


def test_another_python_takes_the_sources(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = {"__main__.py": b"import a; print(a.VALUE)", "a.py": b"VALUE = 7"}
    for magic in (importlib.util.MAGIC_NUMBER, b"\x01\x02\r\n"):
        monkeypatch.setattr(importlib.util, "MAGIC_NUMBER", magic)
        path = tmp_path / f"{magic.hex()}.pyz"
        path.write_bytes(app_archive.build(files))
        done = subprocess.run([sys.executable, "-EsS", path], capture_output=True, timeout=60, check=True)
        assert done.stdout == b"7\n"


def test_this_python_takes_the_byte_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_archive, "byte_code", lambda name, _: BYTE_CODE(name, b"print('byte code')"))
    (tmp_path / "app.pyz").write_bytes(app_archive.build({"__main__.py": b"print('source')"}))
    done = subprocess.run([sys.executable, tmp_path / "app.pyz"], capture_output=True, timeout=60, check=True)
    assert done.stdout == b"byte code\n"


def test_it_holds_node_and_protocol_and_pynvml_and_nothing_else() -> None:
    names = set(app_archive.sources())
    assert {"__main__.py", "pynvml.py", "orchestrator/__init__.py", "orchestrator/node/dispatch.py"} <= names
    rest = names - {"__main__.py", "pynvml.py", "orchestrator/__init__.py"}
    ours = ("orchestrator/node/", "orchestrator/protocol/")
    there = [name for name in rest if not name.startswith(ours)]
    assert there and all("/on_node/" in name or name.endswith(("/messages.py", "/__init__.py")) for name in there)


def test_it_is_kept_by_its_sources_and_made_anew_when_torn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = app_archive.application()
    assert first.digest == hashlib.sha256(first.content).hexdigest()
    assert first.name == f"l40s-node-{first.digest[:32]}.pyz"
    (kept,) = (tmp_path / "l40s-deploy").iterdir()
    assert kept.read_bytes().endswith(first.content)
    assert kept.parent.stat().st_mode & 0o777 == 0o700
    kept.write_bytes(kept.read_bytes()[:-30])
    app_archive._application.cache_clear()
    assert app_archive.application() == first
    monkeypatch.setattr(app_archive, "build", None)
    app_archive._application.cache_clear()
    assert app_archive.application() == first


def test_without_a_cache_it_is_made_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert app_archive.application().content
