"""How a tuning run's jobs reach the nodes."""

from __future__ import annotations

import threading

from orchestrator.tuning.messages import TuneJob
from orchestrator.tuning.steps.run import JobQueue


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
