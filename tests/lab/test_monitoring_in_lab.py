"""A real Prometheus scrapes the exporter of a serving gang; a killed rank reaches Alertmanager's receiver."""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from tests.support.hostile import HOSTILE, NOISES, Dripping, Strangers, resident_bytes, talker
from tests.support.ports import free_port
from tests.support.preloaded import L40S_DEPLOY
from tests.support.prometheus import Receiver, checked, program, query, receiver, running
from tests.support.small_lab import SmallLab, guarding, small_lab
from tests.support.waiting import slack, until

from .conftest import SEEN

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900), SEEN]

BOUND_S = 30.0
"""From a killed rank to the receiver: two intervals of 5 s and the delivery, on a machine without other load."""
SCRAPE_S = 0.5
"""Time limit of one scrape of four nodes."""
SHOWN_S = 2.0
"""Time limit from a killed rank to the page and to `status --watch`."""
SCRAPES = 8
SCRAPE_EVERY_S = 15
SOAK_S = float(os.environ.get("SOAK_S", "0"))
"""How long ranks are killed, one after the other; `make long`: 600."""
MOST_GROWTH = 24 << 20
SHARE = 0.01
"""The share of one core that may be used on each node."""
SPENT = """
ticks=0
for pid in $(pgrep -f ' (stay|gpus)$'); do
  set -- $(sed 's/.*) //' /proc/$pid/stat); ticks=$((ticks + ${12} + ${13} + ${14} + ${15}))
done
echo "$ticks $(getconf CLK_TCK)"
"""
"""Processor time of the process that answers the exporter on a node, with its ended children (proc_pid_stat(5))."""


@pytest.fixture(scope="module")
def lab() -> Iterator[SmallLab]:
    with small_lab("monitored", nodes=4) as made:
        made.serve()
        yield made


@contextmanager
def exporter(lab: SmallLab) -> Iterator[str]:
    """HOST:PORT of a running `l40s-deploy exporter`."""
    port = free_port()
    process = lab.start("exporter", f"--listen=:{port}")
    try:
        until(lambda: process.poll() is not None or scraped(f"127.0.0.1:{port}"), 30)
        assert process.poll() is None
        yield f"127.0.0.1:{port}"
    finally:
        process.terminate()
        process.communicate(timeout=30)


def scraped(address: str) -> str:
    """'' if nothing answers."""
    try:
        with urllib.request.urlopen(f"http://{address}/metrics", timeout=30) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def spent_s(lab: SmallLab, node: str) -> float:
    ticks, hertz = lab.on(node, SPENT).split()
    return int(ticks) / int(hertz)


def test_promtool_has_nothing_against_the_metrics_and_every_node_is_in_them(lab: SmallLab) -> None:
    with exporter(lab) as address:
        text = scraped(address)
    checked("promtool", "check", "metrics", stdin=text)
    assert 'l40s_gang_state{gang="gang0",state="ready"} 1.0' in text
    for node in lab.hosts():
        assert f'l40s_node_up{{gang="gang0",node="{node}"}} 1.0' in text
        assert f'l40s_gpu_power_watts{{gang="gang0",gpu="0",node="{node}"}}' in text
        assert f'l40s_rail_received_bytes_total{{device="mlx5_0",gang="gang0",node="{node}",port="1"}}' in text


def test_a_scrape_costs_each_node_less_than_a_hundredth_of_a_core(lab: SmallLab) -> None:
    with exporter(lab) as address:
        scraped(address)
        before = {node: spent_s(lab, node) for node in lab.hosts()}
        took = []
        for _ in range(SCRAPES):
            time.sleep(1.05)  # two within a second count as one scrape
            begin = time.monotonic()
            assert scraped(address)
            took.append(time.monotonic() - begin)
        spent = {node: spent_s(lab, node) - before[node] for node in lab.hosts()}
    shares = {node: seconds / SCRAPES / SCRAPE_EVERY_S for node, seconds in spent.items()}
    print(f"scrapes of 4 nodes: {sorted(took)[SCRAPES // 2]:.3f} s; of a core on each node: {shares}")
    assert sorted(took)[SCRAPES // 2] < SCRAPE_S * slack()
    assert min(spent.values()) > 0.0
    assert max(shares.values()) < SHARE


@pytest.mark.turns(of="monitoring: what happens is shown in time")
def test_a_killed_rank_reaches_the_receiver_in_time(lab: SmallLab, tmp_path: Path) -> None:
    program("prometheus")
    ports = free_port(), free_port()
    with exporter(lab) as address, receiver() as pager:
        lab.deploy(
            *("export", "prometheus", str(tmp_path), "--exporter", address, "--webhook", pager.url),
            *("--alertmanager", f"127.0.0.1:{ports[1]}", "--price-per-kwh", "0.28"),
        )
        checked("promtool", "check", "config", str(tmp_path / "prometheus.yml"))
        checked("promtool", "check", "rules", str(tmp_path / "l40s.rules.yml"))
        checked("amtool", "check-config", str(tmp_path / "alertmanager.yml"))
        with alertmanager(tmp_path, ports[1]), prometheus(tmp_path, ports[0]) as url:
            until(lambda: query(url, 'up{job="l40s"} == 1'), 30)
            until(lambda: query(url, "gang:l40s_power_watts:sum > 0"), 30)
            until(lambda: len(query(url, 'up{job="sglang"}')) == len(lab.hosts()), 30)
            assert failures(pager) == []
            node, pid = lab.rank(3)
            began = time.monotonic()
            lab.on(node, f"kill -9 {pid}")
            until(lambda: failures(pager), BOUND_S, lambda: (query(url, "ALERTS"), pager.got))
    at, alert = failures(pager)[0]
    print(f"from the killed rank to the receiver: {at - began:.1f} s (slack {slack():.1f})")
    assert alert["labels"] | {"gang": "gang0", "node": node, "tp_rank": "3", "severity": "critical"} == alert["labels"]
    assert "l40s-deploy why" in alert["annotations"]["runbook"]


@pytest.mark.turns(of="monitoring: what happens is shown in time")
def test_page_and_watch_show_a_death_in_time(lab: SmallLab) -> None:
    if lab.gang()["state"] != "ready":
        lab.deploy("down")
        lab.serve()
    port = free_port()
    with beside(lab, "status", "--watch", "--json") as watched, beside(lab, "web", f"--listen=:{port}"):
        until(lambda: 'class="now-up"' in page_part(port), 60)  # the nodes have been examined and drawn
        until(lambda: watched, 30)
        assert 'class="now-bad"' not in page_part(port) and not deaths(watched)
        node, pid = lab.rank(3)
        began = time.monotonic()
        lab.on(node, f"kill -9 {pid}")
        until(lambda: 'class="now-bad"' in page_part(port), 30, step_s=0.1)
        on_page = time.monotonic() - began
        until(lambda: deaths(watched), 30)
        in_watch = deaths(watched)[0] - began
    print(
        f"a killed rank is on the page after {on_page:.2f} s, in --watch after {in_watch:.2f} s (slack {slack():.1f})"
    )
    assert max(on_page, in_watch) < SHOWN_S * slack()


@contextmanager
def beside(lab: SmallLab, *words: str) -> Iterator[list[tuple[float, str]]]:
    """A command that keeps running; its lines, and when they came."""
    process = lab.start(*words)
    lines: list[tuple[float, str]] = []
    assert process.stdout is not None
    told = process.stdout
    reading = threading.Thread(target=lambda: lines.extend((time.monotonic(), line) for line in told), daemon=True)
    reading.start()
    try:
        yield lines
    finally:
        process.terminate()
        try:
            process.wait(60 * slack())
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)
        reading.join(10)
        assert process.wait() != -signal.SIGABRT, "".join(line for _, line in lines)
        told.close()


def page_part(port: int) -> str:
    """'' if nothing answers."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/part", timeout=30) as answer:
            return str(answer.read().decode())
    except OSError:
        return ""


def deaths(lines: Sequence[tuple[float, str]]) -> list[float]:
    """When each document with a dead rank came."""
    return [
        at
        for at, line in list(lines)
        if line.startswith("{")
        for gang in json.loads(line)["gangs"]
        if any(rank["state"] == "dead" for node in gang["nodes"] for rank in node["ranks"])
    ]


@pytest.mark.long
def test_among_hostile_neighbours_a_guard_tells_all_and_answers_prometheus_in_flat_memory(
    lab: SmallLab, tmp_path: Path
) -> None:
    """Receivers that drip or answer nonsense, clients of its metrics port that do, and logins that print."""
    if lab.gang()["state"] != "ready":
        lab.deploy("down")
        lab.serve()
    port, kills, heard_at, said, pagers = free_port(), 0, 0.0, tmp_path / "guard.txt", list[Receiver]()

    def all_heard() -> bool:
        return served_to_us(port) and {told(one).count("restored") for one in pagers} == {kills + 1}

    def is_stable() -> bool:  # as --stable says: its pause before a restart doubles otherwise
        return served_to_us(port) and time.monotonic() > heard_at + 10.0

    with ExitStack() as open_:
        pagers += [open_.enter_context(receiver()) for _ in range(2)]
        good = [{"kind": "webhook", "url": pager.url} for pager in pagers]
        lab.write_inventory(vars={"l40s_notify": good})
        assert "sent" in lab.deploy("notify", "--test").stdout
        talkers = open_.enter_context(ExitStack())
        ports = [talkers.enter_context(talker(*one)) for one in HOSTILE.values()]
        bad = [{"kind": "dingtalk", "url": f"http://127.0.0.1:{one}/{one}"} for one in ports]
        lab.write_inventory(vars={"l40s_notify": [good[0], *bad, good[1]]})
        open_.enter_context(noisy_logins(lab))
        words = f"guard --metrics {port} --limit 999 --pause 0.1 --stable 5 --golden-every 0".split()
        guard = open_.enter_context(guarding([*L40S_DEPLOY, *words], lab.environment, said))
        open_.callback(talkers.close)  # so that it ends without waiting for what they owe it
        until(lambda: "l40s_guard_up{" in scraped(f"127.0.0.1:{port}"), 60, said.read_text)
        dripping = open_.enter_context(Dripping("127.0.0.1", port, 64))
        strangers = open_.enter_context(Strangers("127.0.0.1", port, 2, 1))
        sizes, ends = [resident_bytes(guard)], time.monotonic() + SOAK_S
        while not kills or time.monotonic() < ends:
            until(is_stable, 30, step_s=0.2)
            node, pid = lab.rank(2)
            lab.on(node, f"kill -9 {pid}")
            kills += 1
            until(all_heard, 120, lambda: ([told(one) for one in pagers], said.read_text()[-3000:]), step_s=0.2)
            heard_at = time.monotonic()
            sizes.append(resident_bytes(guard))
        assert strangers.connections and dripping.connections > 64
    sampled = [size >> 20 for size in (sizes[0], sizes[len(sizes) // 2], sizes[-1])]
    print(f"{kills} kills, {len(told(pagers[0]))} notices; MiB at the start, in the middle, at the end: {sampled}")
    assert told(pagers[0]) == told(pagers[1])
    assert [told(pagers[0]).count(event) for event in ("failed", "restored")] == [kills, kills + 1]  # and the test's
    failed = pagers[0].documents()[1]
    assert failed["subject"] == "gang0" and "TP2" in failed["text"] and failed["fix"]
    assert sizes[-1] - sizes[min(1, kills - 1)] < MOST_GROWTH


@contextmanager
def noisy_logins(lab: SmallLab) -> Iterator[None]:
    """One of the noises at each login, in its turn; none that our own ssh would wait for."""
    noises = [noise for name, noise in NOISES.items() if name != "something that stays"]
    cases = "\n".join(f"{place}) {noise};;" for place, noise in enumerate(noises))
    turn = "n=$(cat /root/turn 2>/dev/null); echo $((n + 1)) >/root/turn"
    script = f"{turn}\ncase $((n % {len(noises)})) in\n{cases}\nesac\n"
    for node in lab.hosts():
        lab.on(node, "cat >/root/noise; echo sh /root/noise >/root/.bashrc", script.encode())
        assert "welcome" in lab.on(node, "true")
    try:
        yield
    finally:
        for node in lab.hosts():
            lab.on(node, "rm /root/.bashrc")


def served_to_us(port: int) -> bool:
    """Asked from an address of its own: a stranger's is the one that gives way."""
    ours = http.client.HTTPConnection("127.0.0.1", port, timeout=20, source_address=("127.0.0.2", 0))
    with closing(ours):
        ours.request("GET", "/metrics")
        return ours.getresponse().status == 200


@pytest.mark.turns(of="monitoring: what happens is shown in time")
def test_a_watching_doctor_says_what_is_new_and_what_is_gone(lab: SmallLab) -> None:
    node = next(iter(lab.hosts()))
    with receiver() as pager:
        lab.write_inventory(vars={"l40s_notify": [{"kind": "webhook", "url": pager.url}]})
        doctor = lab.start("doctor", "--watch", "10s")
        lines: list[str] = []
        reading = threading.Thread(target=lambda: lines.extend(doctor.stdout or ()), daemon=True)
        reading.start()
        try:
            until(lambda: looks(lab), 60)
            lab.run("break", node, "ecc", "1")
            until(lambda: any(f"{node}:" in line and "[GPU-HEALTH]" in line and "new:" in line for line in lines), 60,
                  lambda: lines)  # fmt: skip
            with exporter(lab) as address:
                assert f'l40s_finding{{id="GPU-HEALTH",node="{node}"' in scraped(address)
            lab.run("heal", node, "ecc")
            until(lambda: any("[GPU-HEALTH]" in line and "gone:" in line for line in lines), 60, lambda: lines)
        finally:
            doctor.terminate()
            doctor.wait(60)
        reading.join(10)
        if doctor.stdout is not None:
            doctor.stdout.close()
    assert sum("new:" in line and "[GPU-HEALTH]" in line for line in lines) == 1
    texts = [document["text"] for document in pager.documents() if document["event"] == "finding"]
    assert sum(text.startswith("GPU-HEALTH") for text in texts) == 1
    assert "found" in (lab.folder / "state" / "l40s-deploy" / "audit.jsonl").read_text()


def looks(lab: SmallLab) -> list[Path]:
    return list((lab.folder / "state" / "l40s-deploy" / "doctor").glob("*.json"))


def told(pager: Receiver) -> list[str]:
    return [document["event"] for document in pager.documents()]


def failures(pager: Receiver) -> list[tuple[float, dict[str, dict[str, str]]]]:
    """When L40sGangFailed arrived, and the alert."""
    return [
        (at, alert)
        for _, document, at in pager.got
        for alert in document["alerts"]
        if alert["labels"]["alertname"] == "L40sGangFailed" and alert["status"] == "firing"
    ]


@contextmanager
def prometheus(folder: Path, port: int) -> Iterator[str]:
    words = (f"--config.file={folder / 'prometheus.yml'}", f"--storage.tsdb.path={folder / 'tsdb'}")
    with running("prometheus", port, *words, log=folder / "prometheus.log") as url:
        yield url


@contextmanager
def alertmanager(folder: Path, port: int) -> Iterator[str]:
    words = (
        f"--config.file={folder / 'alertmanager.yml'}",
        f"--storage.path={folder / 'alerts'}",
        "--cluster.listen-address=",
    )
    with running("prometheus-alertmanager", port, *words, log=folder / "alertmanager.log") as url:
        yield url
