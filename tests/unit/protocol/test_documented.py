"""docs/agent.md says what the node application does; the keys of its messages are made from the types."""

from __future__ import annotations

import re
from dataclasses import fields, is_dataclass
from pathlib import Path

from tests.support.every_verb import ANSWERS, LINES, LISTS, REQUESTS, keys

from orchestrator.node import dispatch
from orchestrator.node.dispatch import VERBS
from orchestrator.protocol import jobs, link, run_files, staging, verbs
from orchestrator.protocol.report import AgentState, RankReport, Report

PAGE = (Path(__file__).parents[3] / "docs" / "agent.md").read_text("utf-8")


def test_every_verb_has_its_types() -> None:
    assert set(REQUESTS) == set(VERBS)
    untyped = set(VERBS) - {*ANSWERS, *LINES, *LISTS}
    assert untyped == {"logs", "probe", "push-offer", "push-receive"}, "these write a log, a snapshot, a push's lines"


SECRET = {"authorization", "secret", "redact", "key"}


def test_no_secret_is_in_the_text_of_a_message() -> None:
    """A traceback and a log show messages as Python writes them."""
    modules = (jobs, link, run_files, staging, verbs)
    types = [one for module in modules for one in vars(module).values() if isinstance(one, type) and is_dataclass(one)]
    shown = {(one.__name__, field.name): field.repr for one in types for field in fields(one) if field.name in SECRET}
    assert {("Secrets", "redact"), ("Giving", "secret"), ("StagingRequest", "key")} <= set(shown)
    assert [place for place, is_shown in shown.items() if is_shown] == []


def test_the_page_has_every_state() -> None:
    states = PAGE.split("## States", 1)[1].split("##", 1)[0]
    assert all(state.value in states for state in AgentState)


def test_the_page_has_the_verbs_of_a_running_application() -> None:
    sentence = re.search(r"`python3 APP stay` .*?: ", PAGE, re.DOTALL)
    assert sentence is not None and set(dispatch.ANSWERED_IN_PLACE) <= set(re.findall(r"`([a-z-]+)`", sentence.group()))


def test_messages_inside_are_listed_once() -> None:
    assert keys(RankReport) == "tp_rank gpu pid state gpu_memory_bytes"
    report = keys(Report)
    assert report.count("exit_code") == 1 and "ranks[]{tp_rank gpu" in report and " verdict " in report
