"""Reports as release 0.1.0 wrote them, and manipulated reports: never more than that node's failure."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import recorded_release as recorded

from orchestrator.gang.actions import Goal, next_step
from orchestrator.gang.commands.gangs import gang_block
from orchestrator.gang.commands.outcome import progress as progress_block
from orchestrator.gang.guarding import GuardMemory, Policy, decide
from orchestrator.gang.history import last_verdict
from orchestrator.gang.overview import status_json
from orchestrator.gang.steps.start_time import downtime_words
from orchestrator.gang.steps.status.reports import views_of
from orchestrator.gang.view import GangView
from orchestrator.model.gang_state import GangState
from orchestrator.model.inventory import GangSpec, NodeSpec, Reach
from orchestrator.protocol.errors import NodeError
from orchestrator.protocol.message import Unreadable, unknown_keys
from orchestrator.protocol.report import Report
from orchestrator.protocol.verbs import HistoryAnswer, ReportAnswer

GANG = GangSpec(
    name="gang0",
    nodes=tuple(
        NodeSpec(name=name, gang="gang0", node_rank=rank, reach=Reach(host="localhost"))
        for rank, name in enumerate(recorded.NODES)
    ),
)


def seen(raw: dict[str, dict[str, Any]]) -> GangView:
    """The gang from its nodes' raw reports, as `status` sees it."""
    answers = {node: ReportAnswer(now=0.0, reports=(report,)) for node, report in raw.items()}
    (view,) = views_of([GANG], answers, {})
    return view


def both(moment: str) -> dict[str, dict[str, Any]]:
    return {node: recorded.report(node, moment) for node in recorded.NODES}


@pytest.mark.parametrize("moment", recorded.answers())
def test_every_recorded_report_is_read_whole(moment: str) -> None:
    answer = ReportAnswer.read(recorded.answers()[moment])
    assert isinstance(answer, ReportAnswer)
    (raw,) = answer.reports
    report = Report.read(raw)
    assert isinstance(report, Report)
    if raw.get("transport"):
        del raw["transport"]["planned"]  # the same as types since
    assert unknown_keys(Report, raw) == ()
    assert holds(report.as_json(), raw)


def holds(written: Any, raw: Any) -> bool:
    """The written value contains everything of the raw one; it may have more keys."""
    if isinstance(raw, dict) and isinstance(written, dict):
        return all(key in written and holds(written[key], raw[key]) for key in raw)
    if isinstance(raw, list) and isinstance(written, list):
        return len(raw) == len(written) and all(map(holds, written, raw))
    return bool(written == raw)


MOMENTS = {
    "staged": GangState.STAGED,
    "armed": GangState.ARMED,
    "starting weights": GangState.STARTING,
    "ready settled": GangState.READY,
    "draining": GangState.DRAINING,
    "stopped settled": GangState.ABSENT,
    "failed settled": GangState.FAILED,
}


@pytest.mark.parametrize(("moment", "state"), MOMENTS.items())
def test_the_recorded_gang_is_seen_as_it_was(moment: str, state: GangState) -> None:
    assert seen(both(moment)).state is state


def test_the_recorded_verdict_names_the_rank_that_was_killed() -> None:
    kept = {
        node: [report for report in map(Report.read, answer["reports"]) if isinstance(report, Report)]
        for node, answer in recorded.histories().items()
    }
    verdict = last_verdict("gang0", kept)
    assert verdict is not None
    assert (verdict.cause.node, verdict.cause.tp_rank, verdict.cause.signal) == ("node0", 1, 9)
    assert all(isinstance(HistoryAnswer.read(answer), HistoryAnswer) for answer in recorded.histories().values())


ODD: dict[str, tuple[str, Any]] = {
    "text for a time": ("started_at", "soon"),
    "null for a time": ("phase.since", None),
    "not a number": ("updated_at", float("nan")),
    "no finite time": ("now", float("inf")),
    "a time beyond the calendar": ("phase.moved", 1e300),
    "a giant number": ("engine_pid", 10**400),
    "nested deeply": ("phase.name", [[[[[[]]]]]]),
    "a state of tomorrow": ("state", "hibernating"),
    "absent is no agent's word": ("state", "absent"),
    "a rank's state of tomorrow": ("ranks.0.state", "zombie"),
    "a rank without its number": ("ranks.0", {}),
    "ranks as text": ("ranks", "01"),
    "a cause as text": ("cause", "it broke"),
    "links as a list": ("links", ["node0"]),
    "a number for words": ("silent", [1]),
    "a limit as text": ("allowed_s.weights", "300"),
    "a truth as text": ("alive", "yes"),
}


def change(place: Any, way: Sequence[Any], value: Any) -> None:
    for step in way[:-1]:
        place = place[step]
    place[way[-1]] = value


@pytest.mark.parametrize("moment", ["ready settled", "starting weights", "failed settled"])
@pytest.mark.parametrize(("path", "value"), ODD.values(), ids=ODD)
def test_an_odd_value_is_that_nodes_failure_alone(moment: str, path: str, value: Any) -> None:
    raw = both(moment)
    change(raw["node1"], [int(word) if word.isdigit() else word for word in path.split(".")], value)
    view = seen(raw)
    odd, other = view.nodes[1], view.nodes[0]
    assert isinstance(odd.error, NodeError)
    assert f"Report.{path}" in odd.error.what
    assert "l40s-deploy down" in odd.error.fix
    assert other.error is None
    assert other.ranks == seen(both(moment)).nodes[0].ranks or view.state is GangState.ABSENT
    everything_about(view)


def test_a_report_of_a_newer_release_says_which_side_is_older() -> None:
    raw = both("ready settled")
    raw["node1"] |= {"agent_version": "7.1.0", "state": "hibernating"}
    error = seen(raw).nodes[1].error
    assert error is not None
    assert "its agent is l40s-deploy 7.1.0, newer than this one (" in error.what
    assert "use l40s-deploy 7.1.0 or newer" in error.fix


def test_what_a_newer_release_adds_is_passed_over() -> None:
    raw = both("ready settled")
    raw["node1"] |= {"agent_version": "7.1.0", "temperatures": [41, 42]}
    raw["node1"]["ranks"][0]["celsius"] = 41
    assert seen(raw).state is GangState.READY


def everything_about(view: GangView) -> None:
    """The verbs' results for a gang: none may raise, and `down` needs none of it."""
    json.dumps(status_json([view]), allow_nan=False)
    gang_block(view)
    progress_block([view])
    downtime_words(view, 30.0)
    decide(view, GuardMemory(), 0.0, Policy())
    for run_id in ("", view.run_id):
        next_step(Goal(plan_id="p", run_id=run_id), view)
    last_verdict("gang0", {"node0": [], "node1": []})


def _paths(value: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if way:
        yield way
    if isinstance(value, dict):
        for name in value:
            yield from _paths(value[name], (*way, name))
    elif isinstance(value, list):
        for place, one in enumerate(value):
            yield from _paths(one, (*way, place))


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)
LIKELY = (
    st.integers() | st.floats() | st.text() | st.sampled_from([None, True, 0, -1, 2**63 - 1, 1e11, -1e11, "", "ready"])
)


@settings(deadline=None)
@given(st.data())
def test_no_report_of_one_node_disables_a_verb(data: st.DataObject) -> None:
    """Extreme values of the right type are read, and every value that is read must cause no failure."""
    raw = both(data.draw(st.sampled_from([*MOMENTS])))
    for _ in range(data.draw(st.integers(1, 4))):
        way = data.draw(st.sampled_from(sorted(_paths(raw["node1"]), key=str)))
        change(raw["node1"], way, data.draw(LIKELY | ANYTHING))
    view = seen(raw)
    everything_about(view)
    report = Report.read(raw["node1"])
    kept = [] if isinstance(report, Unreadable) else [report]
    other = Report.read(raw["node0"])
    assert isinstance(other, Report)
    last_verdict("gang0", {"node0": [other], "node1": kept})
    assert view.nodes[0].error is None


@given(ANYTHING)
def test_any_json_at_all_is_a_report_or_is_said_to_be_none(raw: Any) -> None:
    assert isinstance(Report.read(raw), (Report, Unreadable))
    everything_about(seen({"node0": recorded.report("node0", "ready settled"), "node1": raw}))
