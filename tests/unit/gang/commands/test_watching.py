"""`status --watch` on a pseudo-terminal: one picture, redrawn where it changed; lines without a terminal."""

from __future__ import annotations

import fcntl
import json
import struct
import sys
import termios
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from tests.support.terminal import Shown, Terminal, rendered

from orchestrator.cli.screen import Screen
from orchestrator.engines.serving import Serving
from orchestrator.gang.commands.gangs import LOAD_TITLES
from orchestrator.gang.commands.watching import ChangeLines, serving_words, watch
from orchestrator.gang.overview import Overview
from orchestrator.gang.steps.status.live import GangLoad, Moment, NodeLoad
from orchestrator.gang.timeline import PortRate, TimelineEvent
from orchestrator.gang.view import GangView, NodeView
from orchestrator.model.gang_state import GangState, NodeState
from orchestrator.protocol.errors import NodeError
from orchestrator.protocol.gauges import GaugesAnswer, GpuGauges
from orchestrator.protocol.report import Cause, Phase, RankReport, RankState


def node(rank: int, state: str = "ready", dead: int = -1, **more: Any) -> NodeView:
    ranks = tuple(
        RankReport(tp_rank=8 * rank + gpu, gpu=gpu, pid=70 + gpu,
                   state=RankState.DEAD if 8 * rank + gpu == dead else RankState.ALIVE)
        for gpu in range(8)
    )  # fmt: skip
    return NodeView(name=f"node{rank}", node_rank=rank, state=NodeState(state), alive=True, ranks=ranks, **more)


def load(hottest: int = 71, **port: Any) -> NodeLoad:
    gpus = tuple(
        GpuGauges(index=index, temperature_c=hottest - index, power_mw=287_500, power_limit_mw=350_000,
                  sm_clock_mhz=2520, clocks_event_reasons=0x40 if index == 3 else 0,
                  memory_used_bytes=41 << 30, memory_total_bytes=45 << 30, ecc_corrected=2, ecc_uncorrected=0)
        for index in range(8)
    )  # fmt: skip
    rate = PortRate(**{"device": "mlx5_0", "port": 1, "up": True, "received_bytes_s": 1.24e9, "sent_bytes_s": 1.19e9,
                       "errors": 4, **port})  # fmt: skip
    return NodeLoad(gauges=GaugesAnswer(now=1.0, gpus=gpus), ports=(rate,))


def moment(state: str = "ready", dead: int = -1, **more: Any) -> Moment:
    cause = Cause(node="node2", tp_rank=19, text="TP19 was killed by signal 9\x1b[2J") if dead >= 0 else None
    nodes = tuple(node(rank, state, dead, **more) for rank in range(4))
    view = GangView(name="gang0", state=GangState(state), nodes=nodes, cause=cause, model="M", stack="s",
                    service_url="http://192.0.2.1:8000", service_healthy=True)  # fmt: skip
    busy = Serving(running=12, queued=3, prompt_tokens=1.0, generation_tokens=2.0, cache_used=0.41)
    return Moment(
        taken_at=0.0,
        seen=Overview(views=(view,)),
        nodes={f"node{rank}": load() for rank in range(4)},
        gangs={"gang0": GangLoad(now=busy, tokens_s=312.4)},
        events={"gang0": (TimelineEvent(at=0.0, node="node2", what="state", words="ready\x1b[2J"),)},
    )


class Played:
    """A sequence of views instead of a cluster; an action for a view runs before it is shown."""

    def __init__(self, *moments: Moment, at: Callable[[int], None] = lambda _: None) -> None:
        self._left = list(moments)
        self._at = at
        self.shown = 0

    def look(self) -> Moment:
        self._at(self.shown)
        self.shown += 1
        return self._left.pop(0) if len(self._left) > 1 else self._left[0]

    def over(self) -> bool:
        return len(self._left) == 1


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Shown]:
    def play(*moments: Moment, terminal: Terminal | None = None, wide: bool = False, term: str = "xterm") -> Shown:
        source = Played(*moments)
        monkeypatch.setattr("orchestrator.gang.commands.watching.DRAW_S", 0.0)
        screen = terminal or Terminal()
        last: list[bool] = []

        def until() -> bool:
            last.append(source.over())
            return len(last) > 1 and last[-2]

        def verb() -> int:
            watch(source, Screen(), wide=wide, until=until)  # type: ignore[arg-type]
            return 0

        return screen.run(verb, monkeypatch, term=term)

    return play


def test_the_picture_has_everything_that_moves(shown: Callable[..., Shown]) -> None:
    text = shown(moment()).text
    assert "gang0 ready" in text
    assert "312.4 tokens/s, 12 running, 3 queued, KV cache 41 %" in text
    assert "64-71 slowed  2.30 kW  1.24 / 1.19 GB/s  4" in text
    assert r"node2: ready\x1b[2J" in text  # no node's text controls the terminal


def test_weights_get_a_bar(shown: Callable[..., Shown]) -> None:
    assert "weights 41/163  ━━━━━" in shown(moment("starting", phase=Phase(name="weights", step=41, of=163))).text


def test_only_what_changed_is_written_again(shown: Callable[..., Shown]) -> None:
    told = shown(moment(), moment(), moment("failed", dead=19))
    assert "gang0 failed" in told.text and r"TP19 was killed by signal 9\x1b[2J" in told.text and "19x" in told.text
    assert told.raw.count(b"\x1b[J") == 1  # cleared once, at the beginning: nothing flickers
    assert told.raw.startswith(b"\x1b[?1049h") and told.raw.rstrip().endswith(b"\x1b[?1049l")
    still = shown(moment(), *[moment()] * 9)
    assert len(still.raw) < 1.1 * len(shown(moment()).raw)  # nine more looks at an unchanged gang cost almost nothing


def test_what_does_not_fit_is_said(shown: Callable[..., Shown]) -> None:
    told = shown(moment(), terminal=Terminal(columns=60, rows=6))
    assert len(told.lines) <= 6 and "more lines: enlarge the terminal" in told.lines[-1]


@pytest.mark.parametrize(("told_size", "size"), [((20, 60), (20, 60)), ((0, 0), (24, 80))])
def test_a_terminal_of_another_size_is_drawn_anew(
    monkeypatch: pytest.MonkeyPatch, told_size: tuple[int, int], size: tuple[int, int]
) -> None:
    terminal = Terminal(columns=140, rows=40)
    monkeypatch.setattr("orchestrator.gang.commands.watching.DRAW_S", 0.0)

    def resize(place: int) -> None:
        if place == 2:
            fcntl.ioctl(sys.stdout.fileno(), termios.TIOCSWINSZ, struct.pack("HHHH", *told_size, 0, 0))

    source = Played(moment(), moment(), moment(), moment(), at=resize)

    def verb() -> int:
        watch(source, Screen(), wide=False, until=lambda: source.shown > 4)  # type: ignore[arg-type]
        return 0

    told = terminal.run(verb, monkeypatch)
    assert told.raw.count(b"\x1b[H\x1b[J") == 2, told.raw
    lines = rendered(told.raw[told.raw.rindex(b"\x1b[H\x1b[J") :], *reversed(size))
    assert "gang0 ready  M by s" in lines and lines[-1].startswith("00:00:00 node2")


def test_wide_has_a_row_for_each_gpu(shown: Callable[..., Shown]) -> None:
    lines = shown(moment(), wide=True).lines
    (row,) = [line for line in lines if line.startswith("node1  3 ")]
    for words in ("  11  68  ", " 288/350 ", " 2520 ", " 41.0/45.0 ", " 2+0 ", "thermal"):
        assert words in row, row


def test_a_node_whose_driver_hangs_says_so(shown: Callable[..., Shown]) -> None:
    seen = moment()
    failure = NodeError("NVML did not respond", where="node3", fix="")
    told = shown(Moment(taken_at=0.0, seen=seen.seen, nodes={"node3": NodeLoad(failure=failure)})).text
    assert "NVML did not respond" in told


def test_without_a_terminal_there_are_lines(
    shown: Callable[..., Shown], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = ChangeLines(Screen())
    for one in (moment(), moment(), moment("failed", dead=19)):
        lines.show(one)
    out = [line.split(" ", 1)[1] for line in capsys.readouterr().out.splitlines()]
    assert out[:3] == [
        "gang0: ready", "gang0: 312.4 tokens/s, 12 running, 3 queued, KV cache 41 %", "gang0: node0: ready"
    ]  # fmt: skip
    assert r"gang0: failed: node2: TP19 was killed by signal 9\x1b[2J" in out
    assert "gang0: node2: failed; dead: TP19" in out
    assert len(out) == len(set(out))  # nothing is said twice
    assert b"\x1b[" not in shown(moment(), term="dumb").raw


def test_json_is_a_document_a_line(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("orchestrator.gang.commands.watching.DRAW_S", 0.0)
    source = Played(moment(), moment("failed", dead=19))
    watch(source, Screen(as_json=True), wide=False, until=lambda: source.shown > 1)  # type: ignore[arg-type]
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first["gangs"][0]["serving"]["tokens_s"] == 312.4
    assert first["gangs"][0]["nodes"][0]["gpus"][3]["temperature_c"] == 68
    assert second["gangs"][0]["cause"]["tp_rank"] == 19


def several(*states: str) -> Moment:
    """A gang for each state, whose start has left more events than a small terminal has lines."""
    first = moment()
    (view,) = first.seen.views
    steps = [TimelineEvent(at=float(at), node="node1", what="phase", words=f"step {at}") for at in range(9)]
    began = (*steps, TimelineEvent(at=9.0, node="node3", what="state", words="ready"))
    died = Cause(node="node2", tp_rank=19, text="TP19 was killed by signal 9")
    views = tuple(
        replace(view, name=f"gang{place}", state=GangState(state), cause=died if state == "failed" else None)
        for place, state in enumerate(states)
    )
    names = [one.name for one in views]
    busy = first.gangs["gang0"]
    seen = Overview(views=views)
    return replace(first, seen=seen, gangs=dict.fromkeys(names, busy), events=dict.fromkeys(names, began))


@pytest.mark.parametrize("count", [1, 2, 8])
def test_every_gang_has_a_line_in_a_small_terminal(count: int, shown: Callable[..., Shown]) -> None:
    told = shown(several(*["ready"] * count), terminal=Terminal(columns=80, rows=24))
    assert len(told.lines) <= 24 and max(map(len, told.lines)) <= 80
    assert all(any(line.startswith(f"gang{place} ready") for line in told.lines) for place in range(count))
    assert "step 8" not in told.text and "node3  ready" in told.text
    assert ("more lines" in told.text) == (count > 2)
    assert told.text.count("312.4 tokens/s") == count


@pytest.mark.parametrize("columns", [80, 60, 40])
@pytest.mark.parametrize("count", [1, 2, 8])
def test_nothing_vanishes_silently_at_the_terminals_edge(count: int, columns: int, shown: Callable[..., Shown]) -> None:
    down = load(device="mlx5_3", up=False)
    seen = several(*["ready"] * count)
    told = shown(replace(seen, nodes={**seen.nodes, "node2": down}), terminal=Terminal(columns=columns, rows=24))
    assert len(told.lines) <= 24 and max(map(len, told.lines)) <= columns
    row = next(line for line in told.lines if line.startswith("0     node0  ready"))
    missing = [title for title in LOAD_TITLES if title not in told.text]
    assert not missing and "…" not in row, told.text
    assert "rail errors: 4 on node0, node1, node3; mlx5_3 down on node2" in " ".join(map(str.strip, told.lines))


def test_a_line_that_is_cut_ends_with_a_sign_for_it(shown: Callable[..., Shown]) -> None:
    told = shown(several("ready", "failed", "ready"), terminal=Terminal(columns=40, rows=24))
    assert told.lines[2].startswith("gang1 failed  node2: TP19 was") and told.lines[2].endswith("…")


def test_the_gpus_columns_that_have_no_room_name_their_gpus(shown: Callable[..., Shown]) -> None:
    told = " ".join(map(str.strip, shown(moment(), terminal=Terminal(columns=40, rows=80), wide=True).lines))
    assert "ECC: 2+0 on all" in told and "slowed by: hardware thermal on node0 GPU 3, node1 GPU 3" in told, told


def test_gangs_that_are_not_well_have_their_details_first(shown: Callable[..., Shown]) -> None:
    told = shown(several("ready", "ready", "failed", "ready"), terminal=Terminal(columns=80, rows=24))
    brief, details = told.lines[1:5], told.lines[5:]
    assert brief[0].startswith("gang0 ready  312.4 tokens/s, 12 running")
    assert brief[2].startswith("gang2 failed  node2: TP19 was killed by signal 9")
    assert details[0].startswith("gang2 failed")


@pytest.mark.parametrize("count", [1, 2])
def test_many_remarks_leave_room_for_the_nodes_in_a_small_terminal(count: int, shown: Callable[..., Shown]) -> None:
    seen = several("degraded", *["ready"] * (count - 1))
    first, *others = seen.seen.views
    remarks = tuple(f"node{place % 4}: remark {place}, which is long enough for two lines of it" for place in range(20))
    sick = replace(first, trouble="slow", remarks=remarks)
    told = shown(replace(seen, seen=Overview(views=(sick, *others))), terminal=Terminal(columns=80, rows=24))
    assert len(told.lines) <= 24 and "remark 0" in told.text and "remark 3" not in told.text, told.text
    assert "17 more remarks: `l40s-deploy status --remarks`" in told.text and "node3  ready" in told.text
    tall = shown(replace(seen, seen=Overview(views=(sick, *others))), terminal=Terminal(columns=80, rows=99))
    assert "remark 19" in tall.text


def test_what_happens_after_the_start_is_shown(shown: Callable[..., Shown]) -> None:
    seen = several("ready")
    later = TimelineEvent(at=99.0, node="node1", what="rails", words="RDMA ports that are down: mlx5_0")
    told = shown(replace(seen, events={"gang0": (*seen.events["gang0"], later)}))
    assert "RDMA ports that are down: mlx5_0" in told.text and "step 8" not in told.text


def test_how_many_may_wait_is_said_where_somebody_limits_them() -> None:
    busy = moment().gangs["gang0"]
    assert "12 running, 3 queued" in serving_words(busy) and "12 running, 3 of 81 queued" in serving_words(busy, 81)
