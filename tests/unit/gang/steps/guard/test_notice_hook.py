"""Hooks: commands and webhooks, with a deadline, never fatal."""

from __future__ import annotations

import json
import resource
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from orchestrator.gang.steps.guard.notice_hook import Hook, run_hook
from orchestrator.protocol.errors import InputError


def test_a_command_is_told_by_its_environment(tmp_path: Path) -> None:
    out = tmp_path / "out"
    hook = Hook(f"/bin/sh -c 'printf %s \"$L40S_EVENT $L40S_GANG $L40S_WHY\" > {out}'")
    assert run_hook(hook, "failed", gang="gang0", why="TP3 $(died)") == ""
    assert out.read_text() == "failed gang0 TP3 $(died)"


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("", ""),
        ("/nowhere/hook", "FileNotFoundError"),
        ("/bin/sh -c 'echo no >&2; exit 3'", "status 3 no"),
        ("/bin/sleep 60", "/bin/sleep ...: did not end within 0.5 s"),
        ("/bin/sh -c 'yes >&2; true'", "/bin/sh ...: did not end within 0.5 s"),
        ("/bin/sh -c 'sleep 9 & exit 3'", "status 3"),
        ("http://127.0.0.1:9/x", "ConnectionRefusedError"),
    ],
)
def test_a_hook_that_does_not_work_is_told_in_words(target: str, words: str) -> None:
    assert words in run_hook(Hook(target), "ready", gang="gang0", why="", deadline_s=0.5)


def test_what_a_hook_says_is_not_gathered() -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert "y" in run_hook(Hook("/bin/sh -c 'yes | head -c 120M >&2; exit 1'"), "ready", gang="g", why="")
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 60_000  # KiB


@pytest.mark.parametrize(
    "target", ["  ", "sh -c 's3cr3t", "http:///s3cr3t", "http://[s3cr3t", "http://host:99999/s3cr3t"]
)
def test_what_can_be_no_hook_is_refused_before_it_is_needed(target: str) -> None:
    with pytest.raises(InputError) as refused:
        Hook(target)
    assert "s3cr3t" not in str(refused.value)


@pytest.mark.parametrize(
    "target",
    [
        "/bin/sleep 60.s3cr3t 60",
        "/nowhere/hook s3cr3t",
        "http://127.0.0.1:9/s3cr3t",
        "http://name:s3cr3t@127.0.0.1:9/",
        "http://127.0.0.1:9/a b?s3cr3t",
        "http://127.0.0.1:9/?\N{SNOWMAN}s3cr3t",
    ],
)
def test_why_it_did_not_work_tells_no_secret(target: str) -> None:
    hook = Hook(target)
    said = run_hook(hook, "ready", gang="gang0", why="", deadline_s=0.5)
    assert said and "s3cr3t" not in said.replace("60.s3cr3t", "")
    assert "s3cr3t" not in repr(hook)


def test_a_webhook_gets_json() -> None:
    got: list[dict[str, object]] = []
    told = threading.Event()

    class Receiver(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            got.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(500 if self.path == "/x" else 204)
            if self.path == "/slow":
                self.send_header("Transfer-Encoding", "chunked")
            self.end_headers()
            if self.path == "/slow":  # its status has said all
                told.wait(20.0)

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Receiver) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        base = f"http://127.0.0.1:{server.server_port}"
        assert run_hook(Hook(f"{base}/a?b=c"), "ready", gang="gang0", why="w") == ""
        assert run_hook(Hook(f"{base}/x"), "ready", gang="gang0", why="w") == "HTTP 500"
        assert run_hook(Hook(f"{base}/slow"), "ready", gang="gang0", why="w", deadline_s=5.0) == ""
        told.set()
        server.shutdown()
    assert (got[0]["event"], got[0]["gang"], got[0]["why"]) == ("ready", "gang0", "w")
