"""Events of nodes whose clocks differ, and rates of counters."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from orchestrator import node
from orchestrator.gang.timeline import NodeEvents, growth, port_rates, timeline
from orchestrator.protocol.gauges import GaugesAnswer, PortGauges


def events(at: float, what: str, **more: object) -> list[dict[str, object]]:
    return [{"at": at, "event": what, **more}]


@pytest.mark.parametrize(("ahead_a", "ahead_b"), [(0.05, -0.01), (-0.03, 0.06), (0.0, 0.0)])
def test_nodes_whose_clocks_may_agree_keep_the_order_of_their_own_times(ahead_a: float, ahead_b: float) -> None:
    """The answers took 0.13 s, so the clocks' difference is known to within 0.065 s only."""
    told = {
        "a": NodeEvents(events=events(100.000, "cause", text="TP0 died"), ahead_s=ahead_a, doubt_s=0.065),
        "b": NodeEvents(events=events(100.012, "end"), ahead_s=ahead_b, doubt_s=0.065),
    }
    assert [one.node for one in timeline(told)] == ["a", "b"]


def test_a_clock_that_is_known_to_differ_is_corrected() -> None:
    told = {
        "a": NodeEvents(events=events(100.0, "cause"), ahead_s=0.0, doubt_s=0.05),
        "b": NodeEvents(events=events(90.0, "end"), ahead_s=-11.0, doubt_s=0.05),
    }
    assert [(one.node, one.at) for one in timeline(told)] == [("a", 100.0), ("b", 101.0)]


def test_a_clock_that_was_set_back_does_not_mix_up_one_node() -> None:
    told = timeline({"node0": NodeEvents(events=[{"at": 50.0, "event": "a"}, {"at": 10.0, "event": "b"}])})
    assert [event.what for event in told] == ["a", "b"]


SAID: dict[str, tuple[dict[str, object], str]] = {
    "checked": ({}, "the checks before the start have passed"),
    "state": ({"state": "failed"}, "failed"),
    "phase": ({"name": "weights", "step": 3, "of": 163, "since": 1.0}, "weights 3/163"),
    "cause": ({"text": "TP3 was killed", "node": "n"}, "TP3 was killed"),
    "remark": ({"text": "slow"}, "slow"),
    "armed for too long": ({}, "armed, and nothing was heard for too long: it ends"),
    "engine started": ({"pid": 7}, "the engine was started (pid 7)"),
    "engine ended": ({"how": "exit code 1"}, "the engine ended: exit code 1"),
    "process ended": ({"tp_rank": 3, "pid": 9, "how": "SIGKILL"}, "TP3 (pid 9) ended: SIGKILL"),
    "rails": ({"gone": ["mlx5_0:1"]}, "RDMA ports that are down: mlx5_0:1"),
    "service": ({"word": "slow", "detail": "no answer"}, "the service is slow: no answer"),
    "gathering": ({"again": False}, "the engine hangs: its ranks are looked at while they stand"),
    "gathered": ({"moved": False}, "its ranks were looked at"),
    "joined": ({"node": "b"}, "b is connected"),
    "left": ({"node": "b", "reason": "silent"}, "b is gone: silent"),
    "ended": ({"left_behind": []}, "everything has ended"),
}  # fmt: skip


@pytest.mark.parametrize("what", SAID)
def test_an_event_is_a_sentence(what: str) -> None:
    details, words = SAID[what]
    (one,) = timeline({"a": NodeEvents(events=events(1.0, what, **details))})
    assert one.words == words


def test_every_event_of_an_agent_has_a_sentence() -> None:
    files = (Path(node.__file__).parent / "agent").glob("*.py")
    written = {word for file in files for word in re.findall(r'(?:record\.event|Note)\(\s*"([^"]+)"', file.read_text())}
    assert written == SAID.keys()


def test_rails_that_are_back_and_events_of_other_releases() -> None:
    told = [*events(1.0, "rails", gone=[]), *events(2.0, "danced", partner="b", why=""), *events(3.0, "joined")]
    told += events(4.0, "rails", gone=5)
    words = [one.words for one in timeline({"a": NodeEvents(events=told)})]
    assert words == ["all RDMA ports work", "danced partner b", "joined", "rails gone 5"]


def test_a_state_is_said_once() -> None:
    (one,) = timeline({"a": NodeEvents(events=events(1.0, "state", state="failed"))})
    assert f"{one.what} {one.words}" == "state failed"


def reading(now: float, state: str = "4: ACTIVE", **counters: int) -> GaugesAnswer:
    return GaugesAnswer(now=now, ports=(PortGauges(device="mlx5_0", port=1, state=state, counters=counters),))


def test_bytes_are_words_of_four_a_second() -> None:
    before, now = (reading(at, port_rcv_data=n, port_xmit_data=n // 10) for at, n in ((10.0, 100), (12.0, 600)))
    (rate,) = port_rates(before, now)
    assert (rate.received_bytes_s, rate.sent_bytes_s) == (1000.0, 100.0)
    assert rate.up and rate.errors == 0 and rate.grown == {}


def test_errors_that_grow_are_named_and_all_are_counted() -> None:
    (rate,) = port_rates(
        reading(10.0, symbol_error=5, out_of_sequence=1), reading(12.0, symbol_error=5, out_of_sequence=4)
    )
    assert rate.grown == {"out_of_sequence": 3} and rate.errors == 9


def test_the_first_reading_and_a_driver_that_was_loaded_again_make_no_rate() -> None:
    (first,) = port_rates(None, reading(10.0, port_rcv_data=100, symbol_error=4))
    assert first.received_bytes_s is None and first.grown == {} and first.errors == 4
    (again,) = port_rates(reading(10.0, port_rcv_data=100), reading(12.0, state="1: DOWN", port_rcv_data=3))
    assert again.received_bytes_s is None and not again.up


def test_a_counter_s_growth() -> None:
    assert growth(100.0, 150.0, 2.0) == 25.0
    assert growth(100.0, 50.0, 2.0) is None and growth(1.0, 2.0, 0.0) is None
