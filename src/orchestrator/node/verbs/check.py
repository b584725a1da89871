"""Verb `check`: what `arm` would refuse of a run, before anything of it is staged and while the gang's last one serves.

Nothing is written. Ports and GPUs that the gang's own last run holds are free by then, and do not count as taken.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from orchestrator.node import files, itself, processes, supervision
from orchestrator.node.agent import preflight, weights
from orchestrator.node.agent.preflight import NOTHING, OwnRun
from orchestrator.node.agent.run import Run, run_of
from orchestrator.node.engine.gpus import GpuMemory
from orchestrator.node.requests import request_of
from orchestrator.node.verbs import report
from orchestrator.node.verbs.stage import with_owner
from orchestrator.protocol.report import Refusal
from orchestrator.protocol.staging import Endpoint, Ports, StagingRequest
from orchestrator.protocol.verbs import CheckAnswer, GangRequest


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """The answer to a staging request, which needs no key and no script."""
    asked = request_of(GangRequest, request)
    state = files.state_dir(asked.state_dir)
    run = run_of(request, f"{files.gang_dir(state, asked.gang)}/runs/next")
    run, _ = with_owner(replace(run, ports=Ports(check_free=(*run.ports.check_free, *_of_agents(run)))))
    last = files.current_run(state, run.gang)
    memory = GpuMemory(itself.application(), run.gpus)
    try:
        failures = preflight.check(run, memory, _own(last) if last else NOTHING)
    finally:
        memory.close()
    refusals = tuple(Refusal(**failure.as_json()) for failure in failures)
    return CheckAnswer(refusals=refusals, checkpoint=weights.told_apart(run.model_path)).as_json()


def _of_agents(run: Run) -> tuple[Endpoint, ...]:
    """The leader's agent binds it when it is armed."""
    return (run.leader,) if run.leads else ()


def _own(folder: str) -> OwnRun:
    everything = supervision.everything()
    known = [pid for pid, start in (report.agent(folder), *report.left_over(folder)) if processes.alive(pid, start)]
    pids = {*known, *(one.pid for one in supervision.descendants(known, everything))}
    run = files.read_as(StagingRequest, f"{folder}/{files.RUN_FILE}")
    if run is None:
        return OwnRun(pids=frozenset(pids))
    ports = {endpoint.port for endpoint in (*run.ports.check_free, run.leader)}
    return OwnRun(pids=frozenset(pids), ports=frozenset(ports), gpus=frozenset(run.gpus))
