"""Debian's own Prometheus and Alertmanager, run on loopback for a test (`make setup` fetches the programs), and a
server that records webhook requests."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from tests.support.waiting import until

CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path("~/.cache").expanduser()) / "l40s-deploy" / "prometheus"


def program(name: str) -> str:
    """Path of promtool, amtool, prometheus or prometheus-alertmanager; skips the test if it is not installed."""
    found = shutil.which(name, path=f"{CACHE / 'usr' / 'bin'}:{os.environ.get('PATH', '')}")
    if found is None:
        pytest.skip(f"{name} is missing: `make setup` fetches it")
    return found


def checked(*words: str, stdin: str = "") -> str:
    """Run `promtool WORDS` or another of their tools, which must succeed; returns its output."""
    done = subprocess.run(
        [program(words[0]), *words[1:]], input=stdin, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@contextmanager
def running(name: str, port: int, *words: str, log: Path) -> Iterator[str]:
    """Run one of the two on a loopback port; yields its address once it is ready."""
    url = f"http://127.0.0.1:{port}"
    with log.open("wb") as file:
        process = subprocess.Popen(
            [*_in_its_place(name), f"--web.listen-address=127.0.0.1:{port}", *words], stdout=file, stderr=file
        )
    try:
        until(lambda: process.poll() is not None or _answers(f"{url}/-/ready"), 30, log.read_text)
        assert process.poll() is None, log.read_text()
        yield url
    finally:
        process.terminate()
        process.wait(20)


def _in_its_place(name: str) -> list[str]:
    """The command line, with the package's files where the program looks for them: Debian's Alertmanager reads its
    templates in /usr/share. In its own mount namespace, so nothing changes on this machine."""
    found = program(name)
    if not found.startswith(str(CACHE)):
        return [found]
    share = shlex.quote(str(CACHE / "usr" / "share"))
    return ["unshare", "--mount", "sh", "-c", f'mount --bind {share} /usr/share && exec "$0" "$@"', found]


def query(url: str, expression: str) -> list[dict[str, Any]]:
    """The samples that Prometheus has for an expression now."""
    with urllib.request.urlopen(f"{url}/api/v1/query?query={quote(expression)}", timeout=10) as answer:
        result: list[dict[str, Any]] = json.load(answer)["data"]["result"]
    return result


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=5) as answer:
            return bool(answer.status == 200)
    except OSError:
        return False


@dataclass
class Receiver:
    """got: (path, document, monotonic seconds) of every POST. status, answer: what it answers."""

    url: str = ""
    status: int = 200
    answer: Any = None
    got: list[tuple[str, Any, float]] = field(default_factory=list)

    def documents(self) -> list[Any]:
        return [document for _, document, _ in self.got]


@contextmanager
def receiver() -> Iterator[Receiver]:
    """On a loopback port that the system chooses."""
    kept = Receiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            kept.got.append((self.path, json.loads(body), time.monotonic()))
            self.send_response(kept.status)
            text = b"" if kept.answer is None else json.dumps(kept.answer).encode()
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    kept.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield kept
    finally:
        server.shutdown()
        server.server_close()
