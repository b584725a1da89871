"""The page by HTTP, and in a real browser: live, escaped, read only, closed to clients without a key."""

from __future__ import annotations

import base64
import gzip
import http.client
import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
from tests.support.faults import fault
from tests.support.healthy_cluster import HealthyNode, cluster_with
from tests.support.waiting import until
from tests.unit.bench.steps.test_bench_report import SWEEP, record
from tests.unit.gang.commands.test_watching import load, moment

from orchestrator.cli.main import main
from orchestrator.doctor.steps.doctor import diagnose
from orchestrator.engines.serving import ServedModel, Worker
from orchestrator.gang.history import FailureVerdict, PastRun
from orchestrator.gang.overview import Overview, RouterGlance
from orchestrator.gang.pace import StartDuration
from orchestrator.gang.steps.status.history import Explanation, GangHistory
from orchestrator.gang.steps.status.live import Moment
from orchestrator.gang.timeline import TimelineEvent
from orchestrator.gang.view import GangView
from orchestrator.model.gang_state import GangState, NodeState
from orchestrator.model.inventory import Inventory
from orchestrator.monitoring.commands import web
from orchestrator.monitoring.steps import pages as module
from orchestrator.monitoring.steps.last_hour import Sample
from orchestrator.monitoring.steps.live_page import KeptPast, live_page
from orchestrator.monitoring.steps.pages import Pages
from orchestrator.protocol.errors import NodeError
from orchestrator.protocol.report import Cause, Phase

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
        self.pages = Pages(Inventory(path="hosts.yml", gangs=()), (), source)  # type: ignore[arg-type]
        self._serving = web.serve(self.pages, "127.0.0.1", 0, key)
        self.port = self._serving.__enter__()
        self.url = f"http://127.0.0.1:{self.port}/"

    def get(self, path: str, method: str = "GET", **headers: str) -> tuple[int, str, dict[str, str]]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        text = answer.read().decode("utf-8", "replace")
        connection.close()
        return answer.status, text, dict(answer.getheaders())

    def close(self) -> None:
        self._serving.__exit__(None, None, None)


@pytest.fixture
def nothing_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "history", lambda *_: ())
    monkeypatch.setattr(module, "why", lambda *_: ())
    monkeypatch.setattr(module, "all_benches", lambda: ())
    monkeypatch.setattr(module, "examine_inventory", lambda *_: diagnose(cluster_with("node2", unplugged), {}))


def unplugged(machine: HealthyNode) -> None:
    fault("port without a link").breaks(machine)


@pytest.fixture
def site(nothing_kept: None) -> Iterator[Site]:
    one = Site(Played())
    yield one
    one.close()


def test_the_page_shows_what_status_shows(site: Site) -> None:
    status, text, headers = site.get("/")
    assert status == 200 and "gang0" in text and "312.4 tokens/s, 12 running, 3 queued" in text
    assert "71 °C" in text and "288 W" in text and "1.2 / 1.2 GB/s" in text
    assert "script-src 'nonce-" in headers["Content-Security-Policy"] and headers["X-Frame-Options"] == "DENY"
    assert "http://" not in text.replace("http://192.0.2.1:8000", "")  # nothing is loaded from elsewhere


def test_a_command_is_code_and_a_state_is_said_once(site: Site) -> None:
    view = site.source.now.seen.views[0]
    nodes = tuple(replace(node, phase=Phase(name="ready")) for node in view.nodes)
    remarked = replace(view, nodes=nodes, remarks=("node0: memlock <b>; run `l40s-deploy prepare`",))
    site.source.now = replace(site.source.now, seen=replace(site.source.now.seen, views=(remarked,)))
    _, text, _ = site.get("/part")
    assert "memlock &lt;b&gt;; run <code>l40s-deploy prepare</code>" in text
    assert re.search(r"node0</b> <span class=\"state s-ready\">ready</span>\s*<div", text)


@pytest.mark.parametrize("state", [None, *GangState])
def test_a_router_in_any_state_is_on_the_page(site: Site, state: GangState | None) -> None:
    models = (ServedModel("gpt-oss-120b", ("default",)),)
    workers = (Worker(url="http://192.0.2.1:8000", healthy=True, load=3, id="1", models=models),) if state else None
    router = RouterGlance(
        url="http://192.0.2.9:8080", node="node0", state=state, workers=workers, request_limit=1600 if state else None
    )
    site.source.now = replace(moment(), seen=replace(moment().seen, router=router))
    for path in ("/", "/part"):
        status, text, _ = site.get(path)
        assert status == 200 and "http://192.0.2.9:8080" in text
        shown = text.partition('id="router"')[2]
        assert (state.value if state else "unreachable") in shown
        known = "at most 1,600 requests" in shown and "3 requests, gpt-oss-120b (also default)" in shown
        assert known == (state is not None)


def test_a_death_is_in_the_next_part_and_nothing_of_it_is_markup(site: Site) -> None:
    site.source.now = moment("failed", dead=19)
    _, text, _ = site.get("/part")
    assert "failed" in text and "TP19 was killed by signal 9" in text
    assert "\x1b" not in text
    site.source.now = evil = moment("failed", dead=19)
    object.__setattr__(evil.seen.views[0].cause, "text", "<script>alert(1)</script>")
    _, text, _ = site.get("/part")
    assert "<script>" not in text and "&lt;script&gt;alert(1)" in text


def drawing(site: Site, node: str) -> str:
    """The SVG of a node's inside, once the nodes have been examined."""
    until(lambda: f'id="inside-{node}"' in site.get("/part")[1], 20)
    part = site.get("/part")[1]
    return part[part.index(f'id="inside-{node}"') :].partition("</svg>")[0]


def test_the_inside_of_a_node_is_coloured_by_what_it_does_now(site: Site) -> None:
    still = drawing(site, "node1")
    assert still.count('class="now-up"') == 7 and still.count('class="now-hot"') == 1  # GPU 3 is slowed
    assert "TP8<" in still and ">71 °C 288 W<" in still and "slowed by hardware thermal" in still
    assert "1.2 / 1.2 GB/s" in still
    site.source.now = moment("failed", dead=19)
    assert drawing(site, "node2").count('class="now-bad"') == 1
    assert "TP rank 19, process 73: dead" in drawing(site, "node2")


def test_a_rail_that_is_down_or_has_new_errors_is_seen_on_the_drawing(site: Site) -> None:
    loads = {"node0": load(up=False), "node1": load(grown={"symbol_error": 3})}
    site.source.now = replace(moment(), nodes=loads)
    assert re.search(r'class="d-down".*\n.*mlx5_0 .*>down<', drawing(site, "node0"))
    assert re.search(r'class="d-idle".*\n.*mlx5_0 .*>symbol_error \+3<', drawing(site, "node1"))
    assert "d-idle" not in drawing(site, "node3") and "d-down" not in drawing(site, "node3")


def test_of_a_silent_node_nothing_looks_alive(site: Site) -> None:
    site.source.now = replace(moment(), nodes={})
    gone = replace(site.source.now.seen.views[0].nodes[2], state=NodeState("unreachable"), ranks=(),
                   error=NodeError("no answer for 5 s", where="node2", fix=""))  # fmt: skip
    view = site.source.now.seen.views[0]
    object.__setattr__(view, "nodes", (*view.nodes[:2], gone, view.nodes[3]))
    shown = drawing(site, "node2")
    assert shown.count('class="now-old"') == 8 and shown.count('class="d-old"') == len(re.findall(r'class="d-', shown))
    assert "now-up" in drawing(site, "node3")


def test_the_finding_of_a_drawn_thing_has_the_number_that_doctor_gives_it(site: Site) -> None:
    assert re.search(r'class="m-slow".*class="num"[^>]*>1<', drawing(site, "node2"))
    assert "mlx5_1" in site.get("/doctor")[1] and 'id="f1"' in site.get("/doctor")[1]


def test_until_the_nodes_were_examined_the_page_says_so(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(*_: object) -> None:
        raise NodeError("sshd <gone>", where="node1", fix="")

    assert "are being examined" in site.get("/")[1]
    monkeypatch.setattr(module, "examine_inventory", failing)
    other = Site(Played())
    try:
        until(lambda: "could not be examined: node1: sshd &lt;gone&gt;" in other.get("/part")[1], 20)
    finally:
        other.close()


def test_the_last_failure_of_a_gang_that_runs_again_is_explained(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    cause = Cause(node="node2", tp_rank=19, text="out of memory", fix="lower mem_fraction", lines=("CUDA OOM",))
    others = (Cause(node="node0", text="NCCL: remote closed"),)
    verdict = FailureVerdict(gang="gang0", run_id="r-7", plan_id="p", model="M", stack="s", cause=cause, newest=False,
                      ago_s=60.0, secondary=others)  # fmt: skip
    monkeypatch.setattr(module, "why", lambda *_: (Explanation(gang="gang0", verdict=verdict, failures={}),))
    until(lambda: "Last failure of gang0" in site.get("/part")[1], 20)
    part = site.get("/part")[1]
    for words in ("out of memory", "CUDA OOM", "lower mem_fraction", "NCCL: remote closed", "run r-7"):
        assert words in part


def test_the_curves_of_the_newest_case_are_on_the_page(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    other = record(4, 20.0, layout="PP4", id="older")
    monkeypatch.setattr(module, "all_benches", lambda: (other, *SWEEP))
    until(lambda: "Newest benchmarks" in site.get("/part")[1], 20)
    part = site.get("/part")[1]
    assert part.count("<polyline") >= 4 and "at TP32" in part and "at PP4" not in part


def test_each_start_and_failure_is_a_bar_on_one_line_of_time(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two hours until now: a start of 30 minutes that served for 30 and failed, and one of 15 minutes that serves."""
    common: dict[str, Any] = {"gang": "gang0", "plan_id": "p", "model": "M", "command": "l40s-deploy up"}
    cause = Cause(node="node2", tp_rank=19, text="out of <memory>")
    runs = (
        PastRun(run_id="b", started=-3600.0, ended=0.0, by="anna@c1", end="ready",
                start=StartDuration(900.0, {}), **common),
        PastRun(run_id="a", started=-7200.0, ended=-3600.0, by="bo@c1", end="failed", cause=cause,
                start=StartDuration(1800.0, {}), **common),
    )  # fmt: skip
    monkeypatch.setattr(module, "history", lambda *_: (GangHistory(gang="gang0", runs=runs, audit=(), failures={}),))
    until(lambda: "Starts and failures" in site.get("/part")[1], 20)
    part = site.get("/part")[1]
    bars = re.findall(r'class="r-(\w+)" x="([\d.]+)" width="([\d.]+)"', part)
    assert bars == [("start", "50.0", "12.5"), ("served", "62.5", "37.5"),
                    ("start", "0.0", "25.0"), ("served", "25.0", "25.0"), ("failed", "50.0", "1")]  # fmt: skip
    assert "out of &lt;memory&gt;" in part and "ready after 900 s" in part and "bo@c1" in part


def test_a_part_is_pressed_for_who_takes_it_so(site: Site) -> None:
    drawing(site, "node0")
    connection = http.client.HTTPConnection("127.0.0.1", site.port, timeout=30)
    connection.request("GET", "/part", headers={"Accept-Encoding": "gzip"})
    answer = connection.getresponse()
    pressed = answer.read()
    connection.close()
    assert answer.getheader("Content-Encoding") == "gzip"
    assert "gang0" in gzip.decompress(pressed).decode() and len(pressed) < 0.25 * len(site.get("/part")[1])


def test_the_document_is_that_of_watch(site: Site) -> None:
    status, text, _ = site.get("/live.json")
    assert status == 200 and json.loads(text)["gangs"][0]["serving"]["tokens_s"] == 312.4


def test_another_site_s_name_does_not_lead_here(site: Site) -> None:
    assert site.get("/", Host="evil.example:8090")[0] == 403
    assert site.get("/", Host=f"localhost:{site.port}")[0] == 200


def test_without_the_key_there_is_nothing(nothing_kept: None) -> None:
    site = Site(Played(), KEY)
    try:
        wrong = ("", "Basic !", "Basic " + base64.b64encode(b"anna:wrong").decode(), "Bearer wrong", "Digest x",
                 "Bearer \xff\xfe", "Basic \xe9", "\xff")  # fmt: skip
        for header in wrong:
            status, text, headers = site.get("/live.json", Authorization=header)
            assert status == 401 and "gang0" not in text and "Basic" in headers["Www-Authenticate"]
        right = base64.b64encode(f"anna:{KEY}".encode()).decode()
        assert site.get("/", Authorization=f"Basic {right}", Host="10.0.0.1:8090")[0] == 200
        assert site.get("/live.json", Authorization=f"Bearer {KEY}")[0] == 200
    finally:
        site.close()


@pytest.mark.parametrize("name", ["Host", "Accept", "Accept-Encoding", "X-Any"])
def test_a_header_of_any_bytes_is_no_defect(site: Site, name: str) -> None:
    assert site.get("/live.json", **{name: "\xff\xfe gzip"})[0] < 500


def test_beyond_loopback_a_key_is_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["web", "--listen", "0.0.0.0", "-i", "/none.yml"]) == 2
    err = capsys.readouterr().err
    assert "no key was given" in err and "--key-file" in err


def test_an_ipv6_address_has_brackets(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(web, "Watching", lambda *_: nullcontext())
    monkeypatch.setattr(web, "serve", lambda *_: nullcontext(8090))
    monkeypatch.setattr(Pages, "remember", Mock(side_effect=KeyboardInterrupt))
    main(["web", "--listen", "[::1]", "-i", str(Path(__file__).parents[4] / "inventory" / "reference.yml")])
    assert "page: http://[::1]:8090/ " in capsys.readouterr().err


def test_a_page_without_benchmarks_says_so(site: Site) -> None:
    status, text, _ = site.get("/bench")
    assert status == 404 and "no benchmark is recorded" in text


PROBE = """setInterval(() => {
  const told = document.body.dataset;
  document.body.style.width = "WIDTHpx";  // a window is never below 500
  told.room = live.clientWidth; told.taken = live.scrollWidth;
  told.paper = getComputedStyle(document.body).backgroundColor;
  const legend = document.getElementById("legend");
  if (legend.source && !live.querySelector(".now-bad")) legend.dataset.kept = "since before";
}, 200);
again();
</script>"""
"""What the test adds to the page's script: it has the page's nonce."""


@pytest.mark.turns
@pytest.mark.skipif(CHROMIUM is None, reason="chromium is not installed")
@pytest.mark.parametrize(("width", "dark"), [(1200, False), (360, True)])
def test_a_browser_draws_it_and_draws_it_again(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, width: int, *, dark: bool
) -> None:
    """The script runs under its policy: the data fetched after a second is in the browser's document. Only scrollable
    elements are wider than the window, and a browser that prefers dark mode gets it."""
    calls: list[Any] = []
    first = site.source.now
    drawing(site, "node2")

    def look() -> Moment:
        calls.append(None)
        return first if len(calls) < 4 else moment("failed", dead=19)

    site.source.look = look  # type: ignore[method-assign]
    plain = site.pages.page
    probe = PROBE.replace("WIDTH", str(width))
    monkeypatch.setattr(site.pages, "page", lambda nonce: plain(nonce).replace("again();\n</script>", probe))
    done = subprocess.run(
        [
            str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
            f"--user-data-dir={tmp_path}", f"--window-size={width},900", "--hide-scrollbars",
            "--virtual-time-budget=3000",
            f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--dump-dom", site.url,
        ],
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip
    assert "TP19 was killed by signal 9" in done.stdout, done.stderr[-2000:]
    assert 'class="now-bad"' in done.stdout
    assert 'class="lost"' not in done.stdout
    body = done.stdout[done.stdout.index("<body") :].partition(">")[0]
    told = re.search(r'data-room="(\d+)" data-taken="(\d+)"', body)
    assert 'data-kept="since before"' in done.stdout  # unchanged parts are the same element
    assert told and int(told[1]) == int(told[2]) <= width
    assert f'data-paper="{"rgb(18, 22, 28)" if dark else "rgb(244, 246, 249)"}"' in body


def test_a_start_is_folded_once_the_gang_serves_and_a_remark_is_said_once() -> None:
    def event(at: float, what: str, words: str) -> TimelineEvent:
        return TimelineEvent(at=at, node="node0", what=what, words=words)

    told = (event(1, "phase", "weights"), event(2, "state", "ready"), event(3, "remark", "memlock is 8"),
            event(4, "rails", "mlx5_0 is down"))  # fmt: skip
    view = GangView(name="gang0", state=GangState.READY, service_healthy=True, remarks=("node0: memlock is 8 MB",))
    hour = {"gang0": (Sample(at=1.0, running=1.0), Sample(at=9.0, running=4.0))}
    moment = Moment(taken_at=9.0, seen=Overview(views=(view,)), nodes={}, gangs={}, events={"gang0": told})
    (gang,) = live_page(moment, KeptPast(hours=hour), None, "").gangs
    assert [one.words for one in gang.events] == ["mlx5_0 is down"]
    assert [one.words for one in gang.started] == ["weights", "ready"]
    assert [(one.title, one.newest) for one in gang.curves] == [("running requests", "4")]
    starting = replace(moment, seen=Overview(views=(replace(view, state=GangState.STARTING),)))
    (gang,) = live_page(starting, KeptPast(), None, "").gangs
    assert not gang.started and len(gang.events) == 3
