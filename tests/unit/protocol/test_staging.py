"""Staging requests: those of release 0.1.0, optional fields, and what is refused."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support import recorded_release as recorded
from tests.support.messages import message

from orchestrator.gang.steps.staging import read_staged, staged_request
from orchestrator.model.inventory import NodeSpec, Reach
from orchestrator.node.agent.staged_run import run_of
from orchestrator.protocol.errors import DeployError, InputError, NodeError
from orchestrator.protocol.message import unknown_keys
from orchestrator.protocol.staging import APART, Endpoint, StagingRequest
from orchestrator.protocol.verbs import StagedAnswer

LEAST = {"gang": "g", "run_id": "r", "node": "n", "node_rank": 0, "nnodes": 1, "leader": {"port": 7700}}


def node(name: str) -> NodeSpec:
    return NodeSpec(name=name, gang="gang0", node_rank=0, reach=Reach(host="localhost"), state_dir="/here")


@pytest.mark.parametrize("name", recorded.NODES)
def test_a_recorded_request_is_staged_again_without_loss(name: str) -> None:
    raw = recorded.staged()[name]["request"]
    request = staged_request(node(name), "gang0", message(StagedAnswer, recorded.staged()[name]))
    assert unknown_keys(StagingRequest, raw) == ()
    assert request.state_dir == "/here"
    assert request.launch_script == recorded.staged()[name]["launch_script"]
    again = json.loads(json.dumps(request.as_json())) | {"state_dir": None}
    raw["service"] = raw["service"] and {**raw["service"], "certificate": ""}  # a field that release did not know
    for kind in ("causes", "remarks"):
        raw["watch"][kind] = [{**entry, "weak": False, "after": "", "unless": ""} for entry in raw["watch"][kind]]
    assert {key: again[key] for key in raw if key != "watch"} == {key: raw[key] for key in raw if key != "watch"}
    assert {key: again["watch"][key] for key in raw["watch"] if key != "probe"} == {
        key: raw["watch"][key] for key in raw["watch"] if key != "probe"
    }
    assert raw["watch"]["probe"].items() <= again["watch"]["probe"].items()


def test_what_an_older_controller_leaves_out_has_its_default() -> None:
    run = run_of(LEAST, "/x")
    assert (run.lease_s, run.armed_for_s, run.watch.stop.leader_signal, run.canary) == (30.0, 120.0, "TERM", None)
    assert run.leader == Endpoint(address="", port=7700)
    assert run.secrets is None


@pytest.mark.parametrize(
    ("change", "place"),
    [
        ({"leader": {}}, "Run.leader has no key 'port'"),
        ({"gpus": "abc"}, 'Run.gpus is "abc"; a list is wanted'),
        ({"argv": ["a", 5]}, "Run.argv.1 is 5; a text is wanted"),
        ({"env": {"A": None}}, "Run.env.A is null; a text is wanted"),
        ({"lease_s": float("inf")}, "Run.lease_s is inf; a finite number is wanted"),
        ({"watch": {"phases": [{"phase": "x"}]}}, "Run.watch.phases.0 has no key 'pattern'"),
        ({"argv": ["a\0b"]}, "contains a NUL byte"),
        ({"env": {"A": "\0"}}, "contains a NUL byte"),
    ],
    ids=str,
)
def test_what_is_no_request_is_refused_in_words(change: dict[str, Any], place: str) -> None:
    with pytest.raises(DeployError) as refused:
        run_of({**LEAST, **change}, "/x")
    assert refused.value.kind == "bad-request"
    assert place in refused.value.what


def answer_with(change: dict[str, Any]) -> StagedAnswer:
    raw = copy.deepcopy(recorded.staged()["node0"])
    raw["request"] |= change
    return message(StagedAnswer, raw)


def test_what_only_another_release_knows_is_named_and_ignored_on_a_restart() -> None:
    other = recorded.staged()["node0"]["request"]["watch"] | {"patience": 7}
    found = read_staged(node("node0"), "gang0", answer_with({"numa_bind": True, "watch": other}))
    assert found.remarks[0] == "ignored, since this release has no such key: numa_bind, watch.patience"


def test_what_can_not_be_read_is_that_nodes_failure() -> None:
    with pytest.raises(NodeError, match=r"StagingRequest\.gpus is null") as refused:
        staged_request(node("node0"), "gang0", answer_with({"gpus": None}))
    assert refused.value.where == "node0"
    with pytest.raises(InputError, match="never started"):
        staged_request(node("node0"), "gang0", StagedAnswer(request={}))


def test_run_json_holds_no_secret() -> None:
    request = message(StagingRequest, {**LEAST, "key": "ab", "launch_script": "#!", "secrets": {"redact": ["hunter2"]}})
    assert not set(APART) & request.kept().keys()
    assert "hunter2" not in json.dumps(request.kept()) + repr(request)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=6,
)


@settings(deadline=None)
@given(st.sampled_from(sorted(StagingRequest.__dataclass_fields__)), JSON)
def test_no_request_is_more_than_a_refusal(key: str, value: Any) -> None:
    try:
        run = run_of({**LEAST, key: value}, "/x")
    except DeployError as refused:
        assert refused.kind == "bad-request"
    else:
        assert message(StagingRequest, run.as_json()).as_json().items() <= run.as_json().items()
