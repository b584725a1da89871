"""The page by HTTP, and in a real browser: live, escaped, read only, closed to who has no key."""

from __future__ import annotations

import base64
import http.client
import json
import shutil
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.unit.cli.test_watching import moment

from orchestrator.cli.main import main
from orchestrator.cli.web import serve
from orchestrator.model.inventory import Inventory
from orchestrator.workflows.status.live import Moment
from orchestrator.workflows.web import pages as module
from orchestrator.workflows.web.pages import Pages

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
KEY = "correct-horse-battery"


class Played:
    """Instead of a cluster."""

    def __init__(self) -> None:
        self.now: Moment = moment()

    def look(self) -> Moment:
        return self.now


class Site:
    def __init__(self, source: Played, key: str = "") -> None:
        self.source = source
        self.server = serve(Pages(Inventory(path="hosts.yml", gangs=()), (), source), "127.0.0.1", 0, key)  # type: ignore[arg-type]
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, str, dict[str, str]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.server.server_port, timeout=30)
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        text = answer.read().decode()
        connection.close()
        return answer.status, text, dict(answer.getheaders())

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setattr(module, "history", lambda *_: ())
    monkeypatch.setattr(module, "why", lambda *_: ())
    one = Site(Played())
    yield one
    one.close()


def test_the_page_shows_what_status_shows(site: Site) -> None:
    status, text, headers = site.get("/")
    assert status == 200 and "gang0" in text and "312.4 tokens/s, 12 running, 3 queued" in text
    assert "71 °C" in text and "287 W" in text and "1.2 / 1.2 GB/s" in text
    assert "script-src 'nonce-" in headers["Content-Security-Policy"] and headers["X-Frame-Options"] == "DENY"
    assert "http://" not in text.replace("http://192.0.2.1:8000", "")  # nothing is loaded from elsewhere


def test_a_death_is_in_the_next_part_and_nothing_of_it_is_markup(site: Site) -> None:
    site.source.now = moment("failed", dead=19)
    _, text, _ = site.get("/part")
    assert "failed" in text and "TP19 was killed by signal 9" in text
    assert "\x1b" not in text
    site.source.now = evil = moment("failed", dead=19)
    object.__setattr__(evil.seen.views[0].cause, "text", "<script>alert(1)</script>")
    _, text, _ = site.get("/part")
    assert "<script>" not in text and "&lt;script&gt;alert(1)" in text


def test_the_document_is_that_of_watch(site: Site) -> None:
    status, text, _ = site.get("/live.json")
    assert status == 200 and json.loads(text)["gangs"][0]["serving"]["tokens_s"] == 312.4


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE"])
def test_it_is_read_only(site: Site, method: str) -> None:
    assert site.get("/", method)[0] == 405


def test_another_site_s_name_does_not_lead_here(site: Site) -> None:
    assert site.get("/", Host="evil.example:8090")[0] == 403
    assert site.get("/", Host=f"localhost:{site.server.server_port}")[0] == 200


def test_without_the_key_there_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "history", lambda *_: ())
    monkeypatch.setattr(module, "why", lambda *_: ())
    site = Site(Played(), KEY)
    try:
        wrong = ("", "Basic !", "Basic " + base64.b64encode(b"anna:wrong").decode(), "Bearer wrong", "Digest x")
        for header in wrong:
            status, text, headers = site.get("/live.json", Authorization=header)
            assert status == 401 and "gang0" not in text and "Basic" in headers["Www-Authenticate"]
        right = base64.b64encode(f"anna:{KEY}".encode()).decode()
        assert site.get("/", Authorization=f"Basic {right}", Host="10.0.0.1:8090")[0] == 200
        assert site.get("/live.json", Authorization=f"Bearer {KEY}")[0] == 200
    finally:
        site.close()


def test_beyond_loopback_a_key_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["web", "--host", "0.0.0.0", "-i", "/none.yml"]) == 2
    err = capsys.readouterr().err
    assert "no key was given" in err and "--key-file" in err


def test_a_page_without_benchmarks_says_so(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "listed", lambda: ())
    status, text, _ = site.get("/bench")
    assert status == 404 and "no benchmark is recorded" in text


@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.parametrize("width", [1200, 360])
def test_a_browser_draws_it_and_draws_it_again(site: Site, tmp_path: Path, width: int) -> None:
    """The script runs under its policy: what it fetched after a second is in the browser's document."""
    calls: list[Any] = []
    first = site.source.now

    def look() -> Moment:
        calls.append(None)
        return first if len(calls) < 2 else moment("failed", dead=19)

    site.source.look = look  # type: ignore[method-assign]
    done = subprocess.run(
        [
            str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            f"--user-data-dir={tmp_path}", f"--window-size={width},900", "--virtual-time-budget=3000", "--dump-dom",
            f"http://127.0.0.1:{site.server.server_port}/",
        ],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "TP19 was killed by signal 9" in done.stdout, done.stderr[-2000:]
    assert 'class="lost"' not in done.stdout
