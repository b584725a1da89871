"""scripts/lock_index.py against our own index: removed packages are named, and no answer does not count as good."""

from __future__ import annotations

import hashlib
import http.server
import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from tests.support.wheels import wheel

SCRIPT = Path(__file__).parents[3] / "scripts/lock_index.py"
A, B = "a" * 64, "b" * 64
WHEEL = "one-1.0-py3-none-any.whl"


class Index(http.server.BaseHTTPRequestHandler):
    """Pages by project: files for JSON, a text for HTML, a number for an HTTP status."""

    pages: ClassVar[dict[str, list[dict[str, object]] | str | int]] = {}

    def do_GET(self) -> None:
        page = self.pages.get(self.path.strip("/").rpartition("/")[2], 404)
        if isinstance(page, int):
            self.send_error(page)
            return
        body = (page if isinstance(page, str) else json.dumps({"files": page})).encode()
        kind = "text/html" if isinstance(page, str) else "application/vnd.pypi.simple.v1+json"
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def index() -> Iterator[str]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Index)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/simple"
    server.shutdown()
    server.server_close()
    thread.join()


def offered(name: str = WHEEL, digest: str = A, yanked: bool | str = False) -> list[dict[str, object]]:
    return [{"filename": name, "hashes": {"sha256": digest}, "yanked": yanked}]


def ask(lock: Path, index: str, *words: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPT), str(lock), "--index", index, "--local-index", index, *words]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize(
    ("page", "status", "says"),
    [
        (offered(), 0, ""),
        (f'<a href="../{WHEEL}#sha256={A}">{WHEEL}</a>', 0, ""),
        (offered(yanked="broken"), 0, "one==1.0: yanked: broken"),
        (f'<a href="{WHEEL}#sha256={A}" data-yanked="">{WHEEL}</a>', 0, "one==1.0: yanked: no reason given"),
        (404, 3, "one==1.0: can't be had: the index has no such project"),
        (offered("one-2.0-py3-none-any.whl", B), 3, "one==1.0: can't be had: the index has no wheel of that version"),
        (offered("one-1.0.tar.gz", B), 3, "the index has no wheel of that version"),
        (offered(digest=B), 3, "the index has no file with a SHA-256 of the lock"),
        (offered("one-1.0-cp39-cp39-manylinux2014_x86_64.whl"), 3, "only files for another Python or C library"),
        (500, 4, "one==1.0: NOT CHECKED: http://127.0.0.1"),
    ],
)
def test_what_an_index_no_longer_offers_is_named(
    index: str, tmp_path: Path, page: list[dict[str, object]] | str | int, status: int, says: str
) -> None:
    Index.pages = {"one": page}
    lock = tmp_path / "small.lock"
    lock.write_text(f"--require-hashes\none==1.0 \\\n    --hash=sha256:{A}\nelse==3 ; sys_platform == 'win32'\n")
    done = ask(lock, index)
    assert done.returncode == status, done.stderr
    assert done.stdout == f"small.lock: {0 if status else 1} of 1 packages can be had\n"
    assert says in done.stderr if says else not done.stderr


def test_what_is_gone_outweighs_what_was_not_answered(index: str, tmp_path: Path) -> None:
    Index.pages = {"one": 404, "two": 503}
    lock = tmp_path / "small.lock"
    lock.write_text("one==1.0\ntwo==1.0\n")
    assert ask(lock, index).returncode == 3


def test_an_index_that_does_not_answer_in_time_is_told_and_no_success(tmp_path: Path) -> None:
    lock = tmp_path / "small.lock"
    lock.write_text("one==1.0\n")
    done = ask(lock, "http://127.0.0.1:9/simple", "--timeout", "1")
    assert done.returncode == 4
    assert "NOT CHECKED: http://127.0.0.1:9/simple/one/ did not answer: " in done.stderr
    assert "0 of 1 packages can be had" in done.stdout


def test_a_local_version_is_looked_for_in_folders_first(index: str, tmp_path: Path) -> None:
    Index.pages = {}
    there = wheel(tmp_path, "one", "1.0+cpu")
    lock = tmp_path / "small.lock"
    lock.write_text(f"one==1.0+cpu --hash=sha256:{hashlib.sha256(there.read_bytes()).hexdigest()}\n")
    assert ask(lock, index, "--find-links", str(tmp_path)).returncode == 0
    assert ask(lock, index, "--find-links", str(tmp_path / "no")).returncode == 3
