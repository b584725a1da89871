"""Differences between the staged plan and a new one: which settings, on which node, and no noise."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.support.reference_cluster import gang
from tests.support.reference_plan import plan_of, staged

from orchestrator.model.inventory import Overrides
from orchestrator.planning.plan_file import SettingChange, changes, words_of
from orchestrator.protocol.staging import StagingRequest


def staged_as(*, run_id: str = "r1", extra: tuple[str, ...] = (), **settings: Any) -> dict[str, StagingRequest]:
    spec = gang(**settings)
    requests = staged(spec, plan_of(spec, extra_args=extra), run_id=run_id)
    return {name: replace(one, key=run_id) for name, one in requests.items()}


def test_the_same_plan_in_another_run_changes_nothing() -> None:
    assert changes(staged_as(), staged_as(run_id="r2")) == ()


def test_a_user_whom_the_node_chose_itself_is_no_change() -> None:
    was = {name: replace(request, engine_user="deploy") for name, request in staged_as().items()}
    assert changes(was, staged_as()) == ()
    named = {change.name for change in changes(was, staged_as(engine_user="l40s"))}
    assert "engine_user" in named


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"extra": ("--enable-cache-report",)}, ("--enable-cache-report", None, "")),
        ({"extra": ("--cuda-graph-max-bs-decode", "64")}, ("--cuda-graph-max-bs-decode", "32", "64")),
        ({"overrides": Overrides(env=(("NCCL_DEBUG", "WARN"),))}, ("NCCL_DEBUG", "INFO", "WARN")),
        ({"lease_s": 60.0}, ("lease_s", "30.0", "60.0")),
    ],
)
def test_each_setting_that_differs_is_told_on_each_node(
    settings: dict[str, Any], expected: tuple[str, str | None, str]
) -> None:
    found = changes(staged_as(), staged_as(**settings))
    assert found == tuple(SettingChange(f"node{rank}", *expected) for rank in range(4))


@pytest.mark.parametrize("name", ["HF_TOKEN", "DB_HOST"])
def test_values_that_are_not_shown_are_told_as_such(name: str) -> None:
    was, will = (staged_as(overrides=Overrides(env=((name, value),))) for value in ("hf_old", "hf_new"))
    assert {(change.was, change.will) for change in changes(was, will)} == {("<secret>", "<secret>")}


def test_a_public_value_is_told_and_a_secret_in_an_argument_is_not() -> None:
    flag = "--otlp-traces-endpoint"
    was, will = (
        staged_as(overrides=Overrides(env=(("DB_HOST", host),), args=(flag, f"http://me:{host}@traces")))
        for host in ("old-host", "new-host")
    )
    told = {one.name: (one.was, one.will) for one in changes(was, will, dict.fromkeys(was, ("DB_HOST",)))}
    assert told == {"DB_HOST": ("old-host", "new-host"), flag: ("http://<secret>@traces",) * 2}
    assert was["node0"].secrets is not None and was["node0"].secrets.redact == ("http://me:old-host@traces",)


def test_nodes_that_come_and_go() -> None:
    gone = changes(staged_as(), {name: request for name, request in staged_as().items() if name != "node3"})
    assert {change.node for change in gone} == {"node3"}
    assert all(change.will is None for change in gone)


def test_a_command_line_in_words() -> None:
    said = words_of(("py", "-m", "x"), (("--a", "1", "2"), ("--b",), ("--c", ""), ("--d", "--e")))
    assert said == {"command": "py -m x", "--a": "1 2", "--b": "", "--c": "", "--d": "--e"}
    assert words_of((), ()) == {"command": ""}
