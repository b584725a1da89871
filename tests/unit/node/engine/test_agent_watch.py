"""A guardian's conclusions: a table with a simulated clock."""

from __future__ import annotations

from orchestrator.node.engine.agent_watch import BEAT, GO, RELEASE, AgentWatch

ARM_S, LEASE_S = 120.0, 30.0


def vigil() -> AgentWatch:
    return AgentWatch(100.0, ARM_S, LEASE_S)


def test_an_agent_has_time_to_arm_and_then_its_lease() -> None:
    one = vigil()
    assert not one.over(100.0 + ARM_S)
    assert one.over(100.5 + ARM_S) and not one.reports_death(100.5 + ARM_S)
    one.hear(110.0, BEAT)
    assert not one.over(110.0 + LEASE_S) and one.over(110.5 + LEASE_S)
    one.hear(141.0, BEAT)
    assert not one.over(141.0), "it is back"


def test_go_starts_the_engine_among_other_words() -> None:
    one = vigil()
    assert not one.hear(101.0, BEAT)
    assert one.hear(102.0, BEAT + GO + BEAT)


def test_an_agent_that_is_gone_is_reported_unless_it_was_released() -> None:
    for words, reported in ((BEAT, True), (BEAT + RELEASE, False)):
        one = vigil()
        one.hear(101.0, words)
        one.hear(102.0, b"")
        assert one.over(102.0) and one.reports_death(102.0) is reported
