"""templates/nettest.py on links of any speed, with a simulated clock: each size takes about its time box."""

from __future__ import annotations

import gc
import importlib.util
import itertools
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from orchestrator.nettest.schedule import BOX_S, LARGE

TEMPLATE = Path(__file__).parents[3] / "templates/nettest.py"
GIGABIT = 1e9 / 8
SPEEDS = (2e6 / 8, 2.5e6, GIGABIT / 8, GIGABIT, 12.5e9, 25e9, 400e9)
"""Bytes a second of one rank: 2 and 20 Mbit/s, 1 Gb/s shared by eight, ..., NVLink."""
LATENCIES = (5e-6, 1e-3, 30e-3)


@pytest.fixture(scope="module")
def ranks() -> Iterator[Any]:
    """The program, without the stack's torch."""
    torch, distributed = ModuleType("torch"), ModuleType("torch.distributed")
    torch.distributed = distributed  # type: ignore[attr-defined]
    before = {name: sys.modules.get(name) for name in ("torch", "torch.distributed")}
    sys.modules |= {"torch": torch, "torch.distributed": distributed}
    spec = importlib.util.spec_from_file_location("nettest_ranks", TEMPLATE)
    assert spec is not None and spec.loader is not None
    program = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(program)
    gc.enable()
    yield program
    for name, module in before.items():
        sys.modules.pop(name)
        if module is not None:
            sys.modules[name] = module


class Link:
    """A link on a simulated clock. opens_s: additional time for the first use of a size"""

    def __init__(self, speed: float, latency: float, *, opens_s: float = 0.0) -> None:
        self.speed, self.latency, self.opens_s, self.now = speed, latency, opens_s, 0.0
        self.sizes: list[int] = []

    def pass_on(self, size: int, count: int = 1) -> float:
        """Seconds per message, for `count` messages. Both ends exchange once: that is the latency."""
        took = self.latency + count * size / self.speed + (self.opens_s if size not in self.sizes else 0.0)
        self.sizes.append(size)
        self.now += took
        return took / count


class Reduction:
    """All-reduces over a link, as the program makes them."""

    def __init__(self, link: Link, size: int, *, capturable: bool = True) -> None:
        self.link, self.size, self.capturable, self.graphs = link, size, capturable, 0

    def once(self) -> float:
        return self.link.pass_on(self.size)

    seconds = once

    def capture(self) -> bool:
        if self.capturable:
            self.replay()
        return self.capturable

    def replay(self) -> float:
        self.graphs += 1
        return sum(self.link.pass_on(self.size) for _ in range(20))


@pytest.mark.parametrize(("speed", "latency"), list(itertools.product(SPEEDS, LATENCIES)))
@pytest.mark.parametrize("captured", [True, False])
def test_an_all_reduce_of_any_size_ends_in_its_time(ranks: Any, speed: float, latency: float, captured: bool) -> None:
    link, pace = Link(speed, latency, opens_s=20e-3), 14336 / speed + latency
    pace /= 14336
    for wanted in (14336, 57344, 458752, 1835008, LARGE):
        begin = link.now
        made, once = ranks._fitted(lambda size: Reduction(link, size), wanted, pace, BOX_S)
        seconds, why = ranks._reduced(made, once, BOX_S, captured=captured)
        pace = seconds / made.size
        assert link.now - begin < 3 * BOX_S, (wanted, made.size)
        assert seconds == pytest.approx(latency + made.size / speed)
        assert captured or not why
        assert why in ("", ranks.NO_ROOM) and (not captured or bool(made.graphs) != bool(why))
        if once * ranks.GRAPH_OPS * 2 <= BOX_S and captured:
            assert made.graphs >= 2 and not why
    assert made.size >= LARGE // 2 or latency + LARGE / speed > BOX_S / 3


def test_what_can_not_be_captured_says_so(ranks: Any) -> None:
    made = Reduction(Link(12.5e9, 5e-6), 14336, capturable=False)
    assert ranks._reduced(made, made.once(), BOX_S, captured=True)[1] == ranks.CANT


def test_a_quick_graph_is_replayed_more_often_than_an_operation_alone(ranks: Any) -> None:
    assert ranks._replays(5e-6, BOX_S) == ranks.REPLAYS > ranks.MOST_REPEATS
    assert ranks._replays(BOX_S / ranks.GRAPH_OPS / 2, BOX_S) == 1
    assert ranks._replays(BOX_S / ranks.GRAPH_OPS, BOX_S) == 0


@pytest.mark.parametrize(("speed", "latency"), list(itertools.product(SPEEDS, LATENCIES)))
@pytest.mark.parametrize("most", [1, 8])
def test_a_transfer_of_any_size_ends_in_its_time(
    ranks: Any, speed: float, latency: float, most: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = Link(speed, latency)
    monkeypatch.setattr(ranks, "time", SimpleNamespace(monotonic=lambda: link.now))
    size, times = ranks._moved(link.pass_on, LARGE, BOX_S, most)
    first = 2 * (ranks.FIRST_BYTES / speed + latency)
    assert link.now < first + 2 * BOX_S, size
    assert size == LARGE or size / speed + latency > BOX_S / 12
    assert size / min(times) == pytest.approx(speed, rel=0.35) or latency > size / speed / 4


def test_over_nvlink_a_burst_hides_the_answer(ranks: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    link = Link(400e9, 200e-6)
    monkeypatch.setattr(ranks, "time", SimpleNamespace(monotonic=lambda: link.now))
    size, times = ranks._moved(link.pass_on, LARGE, BOX_S, 8)
    assert size / min(times) > 0.85 * 400e9


def test_the_second_look_has_one_time_for_all_suspects(ranks: Any) -> None:
    """A slow node with eight GPUs: 24 suspects, none of which is faster when measured again."""
    suspects = [(("nodes", number, number + 8), ("nodes", 100, 101)) for number in range(24)]
    looked: list[Any] = []

    def once_more(link: Any, beside: float) -> tuple[float, float]:
        looked.append(link)
        return (1.0 if link[1] == 100 else 0.1), 0.35

    ranks._look_again([*suspects], once_more, tries=4, budget_s=20.0)
    assert len(looked) * 0.35 < 20.0 + 2 * 0.35
    assert {suspect for suspect, _ in suspects} <= set(looked)  # each of them once before any of them twice


def test_a_suspect_that_is_quick_again_is_not_looked_at_any_more(ranks: Any) -> None:
    looked: list[Any] = []

    def once_more(link: Any, beside: float) -> tuple[float, float]:
        looked.append(link)
        return 1.0, 0.1

    ranks._look_again([("slow", "usual")], once_more, tries=4, budget_s=20.0)
    assert looked == ["usual", "slow"]
