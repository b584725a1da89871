from __future__ import annotations

import pytest
from tests.support.reference_cluster import gang
from tests.support.reference_plan import plan_of, staged

from orchestrator.model.inventory import Overrides
from orchestrator.model.plan import Plan
from orchestrator.planning.admission import limit_at_start, router_words, routers_limit
from orchestrator.planning.plan_file import changes
from orchestrator.protocol.errors import InputError

FLAG, VLLM_FLAG = "--max-queued-requests", "--max-num-queued-reqs"
QWEN = "Qwen3-235B-A22B-Instruct-2507-FP8"


def planned(max_queued: str, *args: str, **asked: object) -> Plan:
    return plan_of(gang(overrides=Overrides(max_queued=max_queued, args=args)), **asked)  # type: ignore[arg-type]


def flag(plan: Plan, name: str = FLAG) -> set[str | None]:
    """Its value on all nodes."""
    return {next((words[1] for words in node.flags if words[0] == name), None) for node in plan.gangs[0].nodes}


def said(plan: Plan) -> str:
    (line,) = [line for line in plan.gangs[0].memory.explanation if line.startswith("requests: ")]
    return line


def test_without_a_word_any_number_may_wait_and_the_plan_is_what_it_was() -> None:
    plan = planned("")
    assert flag(plan) == {None} and {node.request_limit for node in plan.gangs[0].nodes} == {None}
    assert said(plan).endswith("further ones wait, any number")
    assert plan.plan_id == plan_of().plan_id


def test_the_plan_chooses_by_the_kv_tokens_and_says_so() -> None:
    plan = planned("auto")
    memory = plan.gangs[0].memory
    assert memory.kv_tokens is not None and memory.requests == memory.kv_tokens // 2048
    assert flag(plan) == {str(memory.requests)}
    assert {node.request_limit for node in plan.gangs[0].nodes} == {memory.requests}
    assert said(plan).endswith(f"{memory.requests} more may wait")


def test_a_flag_that_lets_fewer_run_is_reckoned_with() -> None:
    assert planned("", "--max-running-requests", "16").gangs[0].memory.requests == 16
    assert flag(planned("auto", "--max-running-requests", "16")) == {"16"}


def test_each_group_of_attention_has_its_share() -> None:
    whole, groups = planned("10"), planned("10", ep=32, attn_dp=4)
    assert flag(whole) == {"10"} and flag(groups) == {"3"}
    assert {node.request_limit for node in groups.gangs[0].nodes} == {10}


def test_vllm_counts_those_that_run_as_well() -> None:
    plan = planned("10", "--max-num-seqs", "16", model=QWEN, stack="vllm-0.33.0", tp=4, pp=8)
    assert flag(plan, VLLM_FLAG) == {"26"} and plan.gangs[0].nodes[0].request_limit == 10


@pytest.mark.parametrize(
    ("max_queued", "args", "stack", "what"),
    [
        ("8", (), "sglang-0.4.4-l40s", "SGLang 0.4.4.* has no limit for its queue"),
        ("8", (FLAG, "9"), "sglang-0.5.23", "set the same"),
    ],
)
def test_what_can_not_be_is_refused(max_queued: str, args: tuple[str, ...], stack: str, what: str) -> None:
    with pytest.raises(InputError, match=what):
        planned(max_queued, *args, stack=stack)


@pytest.mark.parametrize(("stack", "what"), [("sglang-0.5.23-cpu", "goes by the KV tokens")])
def test_where_kv_tokens_are_not_calculated_only_a_number_helps(stack: str, what: str) -> None:
    with pytest.raises(InputError, match=what):
        planned("auto", stack=stack)
    assert flag(planned("8", stack=stack)) == {"8"}


def test_a_changed_limit_is_one_change() -> None:
    spec = gang()
    before, after = staged(spec, planned("8")), staged(spec, planned("9"))
    assert {(change.name, change.was, change.will) for change in changes(before, after)} == {(FLAG, "8", "9")}


@pytest.mark.parametrize(
    ("asked", "running", "limit"),
    [
        ("", [81], None),
        ("160", [], 160),
        ("auto", [81, 20], 202),
        ("auto", [20, None, 81], 364),
        ("auto", [None, None], None),
    ],
)
def test_what_a_router_starts_with(asked: str, running: list[int | None], limit: int | None) -> None:
    """A gang that tells nothing counts as the largest of the others."""
    assert limit_at_start(asked, running) == limit


def test_the_router_lets_as_many_wait_as_all_gangs_run() -> None:
    assert routers_limit([81, 20]) == 202
    assert routers_limit([81, None]) is None and routers_limit([]) is None
    assert router_words("", None) == ()
    (free,), (limited,), (unknown,) = router_words("", 202), router_words("160", 202), router_words("160", None)
    assert "l40s_router_max_requests: auto (202) as many wait" in free
    assert "at most 202 requests at once" in router_words("auto", 202)[0]
    assert "twice what all gangs run" in router_words("auto", None)[0]
    assert limited == f"{unknown}; all gangs run 101 at once" and unknown.endswith("429")
