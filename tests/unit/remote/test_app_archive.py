from __future__ import annotations

import hashlib
import io
import subprocess
import zipfile
from pathlib import Path

import pytest

from orchestrator.remote import app_archive


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app_archive, "_made", [])


def test_the_same_sources_are_the_same_bytes() -> None:
    files = {"b.py": b"2", "a/b.py": b"1" * 5000}
    content = app_archive.build(files)
    assert content == app_archive.build(dict(reversed(files.items())))
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        assert {name: archive.read(name) for name in archive.namelist()} == files


def test_the_name_holds_the_digest_of_the_bytes() -> None:
    app = app_archive.application()
    assert app.digest == hashlib.sha256(app.content).hexdigest()
    assert app.name == f"l40s-node-{app.digest[:32]}.pyz"


def test_it_holds_the_node_package_and_pynvml_and_nothing_else() -> None:
    names = set(app_archive.sources())
    assert {"__main__.py", "pynvml.py", "orchestrator/__init__.py", "orchestrator/node/verbs.py"} <= names
    rest = names - {"__main__.py", "pynvml.py", "orchestrator/__init__.py"}
    assert all(name.startswith("orchestrator/node/") and name.endswith(".py") for name in rest)


def test_it_is_kept_by_its_sources_and_made_anew_when_torn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    first = app_archive.application()
    (kept,) = (tmp_path / "l40s-deploy").iterdir()
    assert kept.read_bytes().endswith(first.content)
    assert kept.parent.stat().st_mode & 0o777 == 0o700
    kept.write_bytes(kept.read_bytes()[:-30])
    app_archive._made.clear()
    assert app_archive.application() == first
    monkeypatch.setattr(app_archive, "build", None)
    app_archive._made.clear()
    assert app_archive.application() == first


def test_without_a_cache_it_is_made_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", "/proc/nowhere")
    assert app_archive.application().content


def test_it_answers_in_the_machines_own_python(tmp_path: Path) -> None:
    app = app_archive.application()
    (tmp_path / app.name).write_bytes(app.content)
    done = subprocess.run(
        ["python3", "-EsS", str(tmp_path / app.name), "no-such-verb"], capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 2
    assert b'"kind":"unknown-verb"' in done.stdout
