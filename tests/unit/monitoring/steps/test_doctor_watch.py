"""Only new and ended events are reported; counters become rates."""

from __future__ import annotations

from orchestrator.model.finding import Finding
from orchestrator.monitoring.steps.doctor_watch import Growth, difference, growths, known, notices
from orchestrator.protocol.gauges import GaugesAnswer, PortGauges
from orchestrator.protocol.severity import Severity


def finding(name: str, node: str = "node0", severity: Severity = Severity.SLOW, title: str = "t") -> Finding:
    return Finding(id=name, severity=severity, node=node, title=title, fix="look")


def test_what_stays_is_not_told_again_though_its_counts_change() -> None:
    before, now = known([finding("A", title="7 losses")]), known([finding("A", title="9 losses"), finding("B")])
    found, kept = difference(before, now, ())
    assert [one.id for one in found.new] == ["B"] and found.gone == () and kept == now


def test_what_is_gone_is_told_but_not_of_a_node_that_did_not_answer() -> None:
    before = known([finding("A"), finding("B", "node1")])
    found, kept = difference(before, (), ("node1",))
    assert [one.id for one in found.gone] == ["A"] and [one.id for one in kept] == ["B"]
    again, _ = difference(kept, known([finding("B", "node1")]), ())
    assert again.lines == ()


def test_a_finding_that_becomes_graver_is_new() -> None:
    before, now = known([finding("A", severity=Severity.NOTE)]), known([finding("A", severity=Severity.STOP)])
    assert [one.severity for one in difference(before, now, ())[0].new] == ["stop"]


def test_a_message_for_what_stops_or_slows() -> None:
    found, _ = difference((), known([finding("A"), finding("B", severity=Severity.NOTE), finding("C", node="")]), ())
    told = notices(found, 5.0)
    assert [(one.subject, one.text, one.fix) for one in told] == [
        ("node0", "A (slow): t", "look"),
        ("cluster", "C (slow): t", "look"),
    ]


def gauges(now: float, **counters: int) -> GaugesAnswer:
    return GaugesAnswer(now=now, ports=(PortGauges(device="mlx5_0", port=1, state="4: ACTIVE", counters=counters),))


def test_a_counter_that_grows_is_a_rate() -> None:
    before, now = gauges(100.0, out_of_sequence=5, np_cnp_sent=1), gauges(160.0, out_of_sequence=35, np_cnp_sent=1)
    assert growths({"node0": before}, {"node0": now, "node1": now}) == (
        Growth("node0", "mlx5_0", "out_of_sequence", 30, 60.0),
    )
    assert growths({"node0": before}, {"node0": now})[0].words == "node0 mlx5_0: out_of_sequence +30 (0.5 a second)"


def test_a_driver_that_was_loaded_again_is_no_growth() -> None:
    assert growths({"node0": gauges(100.0, out_of_sequence=50)}, {"node0": gauges(160.0, out_of_sequence=1)}) == ()
