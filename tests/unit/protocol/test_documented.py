"""docs/agent.md lists the keys that the types have."""

from __future__ import annotations

import os
import re
import typing
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from tests.support.documented import LISTED, block, keys, marks, verbs_table

from orchestrator.node.dispatch import VERBS
from orchestrator.node.verbs import stay
from orchestrator.protocol.every_verb import ANSWERS, LINES, LISTS, REQUESTS
from orchestrator.protocol.link import LEADERS, MEMBERS
from orchestrator.protocol.report import AgentState, RankReport
from orchestrator.protocol.verbs import GangRequest

PAGE = Path(__file__).parents[3] / "docs" / "agent.md"


BLOCKS: dict[str, Callable[[], str]] = {**{name: partial(block, name) for name in LISTED}, "verbs": verbs_table}


@pytest.mark.parametrize("name", BLOCKS)
def test_the_page_lists_the_keys(name: str) -> None:
    written = BLOCKS[name]()
    begin, end = marks(name)
    page = PAGE.read_text()
    found = re.search(f"{re.escape(begin)}(.*?){re.escape(end)}", page, re.DOTALL)
    assert found is not None, f"docs/agent.md lacks the marks {begin} and {end}"
    if os.environ.get("UPDATE_GOLDEN"):
        PAGE.write_text(page[: found.start(1)] + "\n" + written + page[found.end(1) :])
        return
    assert found.group(1).strip() == written.strip(), "UPDATE_GOLDEN=1 writes the page anew"


def test_every_verb_has_its_types_and_a_row() -> None:
    assert set(REQUESTS) == set(VERBS)
    untyped = set(VERBS) - {*ANSWERS, *LINES, *LISTS}
    assert untyped == {"logs", "probe", "push-offer", "push-receive"}, "these write a log, a snapshot, a push's lines"
    rows = re.findall(r"^\| `([a-z-]+)` \|", PAGE.read_text().partition("## A run")[0], re.MULTILINE)
    assert sorted(rows) == sorted(VERBS)


def test_the_page_has_every_message_of_the_link() -> None:
    rows = re.findall(r"^\| (member|leader|guardian) \| `([a-z-]+)", PAGE.read_text(), re.MULTILINE)
    assert {kind for _, kind in rows} == {*MEMBERS, *LEADERS}


@pytest.mark.parametrize("verb", ANSWERS)
def test_the_page_has_the_answer_of_each_verb(verb: str) -> None:
    row = re.search(rf"^\| `{verb}` \|.*$", PAGE.read_text(), re.MULTILINE)
    assert row is not None
    answer = row.group().rsplit("|", 2)[1]
    assert all(re.search(rf"\b{key}\b", answer) for key in typing.get_type_hints(ANSWERS[verb])), answer


@pytest.mark.parametrize("verb", sorted(REQUESTS.keys() - {"stage", "check"}))
def test_the_page_has_the_request_of_each_verb(verb: str) -> None:
    row = re.search(rf"^\| `{verb}` \|.*$", PAGE.read_text(), re.MULTILINE)
    assert row is not None
    asked = row.group().split("|")[2]
    keys = typing.get_type_hints(REQUESTS[verb]).keys() - typing.get_type_hints(GangRequest).keys()
    assert all(re.search(rf"\b{key}\b", asked) for key in keys), asked


def test_the_page_has_every_state() -> None:
    states = PAGE.read_text().split("## States", 1)[1].split("##", 1)[0]
    assert all(state.value in states for state in AgentState)


def test_the_page_has_the_verbs_of_a_running_application() -> None:
    sentence = re.search(r"`python3 APP stay` .*?: ", PAGE.read_text(), re.DOTALL)
    assert sentence is not None and set(stay.READ_OR_WRITE_A_FEW_FILES) <= set(
        re.findall(r"`([a-z-]+)`", sentence.group())
    )


def test_messages_inside_are_listed_once() -> None:
    assert keys(RankReport) == "tp_rank gpu pid state gpu_memory_bytes"
    report = keys(LISTED["report"])
    assert report.count("exit_code") == 1 and "ranks[]{tp_rank gpu" in report and " verdict " in report
