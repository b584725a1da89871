"""How a tuning run's jobs reach the nodes."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from orchestrator.loading.profiles import load_stack
from orchestrator.protocol.errors import InputError
from orchestrator.tuning.messages import TuneJob
from orchestrator.tuning.steps.run import JobQueue, _rules_of, forget_results, keep_result, kept_results


def jobs(number: int) -> tuple[TuneJob, ...]:
    return tuple(TuneJob(id=f"job{place}", kernel="linear", n=1, k=1, batch=1, space="s") for place in range(number))


def test_what_a_lost_node_had_goes_to_the_next_and_is_given_up_after_two_tries() -> None:
    queue = JobQueue(jobs(6))
    first = queue.take(3)
    queue.end(first[0].id)
    queue.give_back(first, "node0: connection lost")
    rest = queue.take(100)
    assert {job.id for job in first[1:]} <= {job.id for job in rest} and first[0] not in rest
    for job in rest[:-1]:
        queue.end(job.id)
    assert rest[-1] in first
    queue.give_back(rest, "node1: connection lost")
    assert queue.lost == {rest[-1].id: "node1: connection lost"} and queue.take(1) == ()


def test_who_finds_the_queue_empty_waits_for_what_may_come_back() -> None:
    queue = JobQueue(jobs(1))
    mine = queue.take(1)
    got: list[tuple[TuneJob, ...]] = []
    other = threading.Thread(target=lambda: got.append(queue.take(1)))
    other.start()
    queue.give_back(mine, "lost")
    other.join(20.0)
    assert got == [mine]
    queue.end(mine[0].id)
    assert queue.take(1) == ()


def test_results_are_found_again_and_a_torn_line_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert kept_results("k") == {}
    keep_result("k", {"job": "a", "us": 2.0})
    with (tmp_path / "l40s-deploy/tuning/k.jsonl").open("a") as file:
        file.write('{"job": "b", "us"')
    keep_result("k", {"job": "c", "us": 3.0})
    keep_result("k", {"job": "a", "us": 1.0})
    assert {job: result["us"] for job, result in kept_results("k").items()} == {"a": 1.0, "c": 3.0}
    forget_results("k")
    assert kept_results("k") == {}


def test_kernels_of_vllm_are_refused() -> None:
    with pytest.raises(InputError, match="its kernels are vLLM's"):
        _rules_of(load_stack("vllm-0.33.0"))
