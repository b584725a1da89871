"""What moves on the nodes: GPUs' sensors and rails' counters, read once or again and again."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.engines.serving import Serving
from orchestrator.gang.rates import PortRate, port_rates
from orchestrator.model.chosen import chosen_gangs
from orchestrator.model.deadlines import ANSWER_S, WATCH_NVML_S
from orchestrator.model.errors import DeployError
from orchestrator.model.inventory import Inventory
from orchestrator.protocol.gauges import FiguresAnswer, FiguresRequest, GaugesAnswer
from orchestrator.remote.fleet import Fleet, StragglerWait
from orchestrator.remote.node_app import ask
from orchestrator.remote.session import Session

HOT_C = 83
"""From here a GPU is marked: an L40S slows down at 88 °C and stops at 92 (calculated margin of 5)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLoad:
    """What moves on a node, as it was last read. at: our monotonic seconds; failure: why the last reading failed."""

    gauges: GaugesAnswer | None = None
    ports: tuple[PortRate, ...] = ()
    at: float = 0.0
    failure: DeployError | None = None

    def as_json(self) -> dict[str, Any]:
        """gpus[], ports[] and gauges_error of `status --wide --json`."""
        told = self.gauges
        error = self.failure.what if self.failure else told.error if told else ""
        return {
            "gpus": [gpu.as_json() for gpu in told.gpus] if told else [],
            "ports": [port.as_json() for port in self.ports],
            "gauges_error": error or None,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class GangLoad:
    """What a gang is busy with; rates are None before the second reading."""

    now: Serving
    tokens_s: float | None = None
    prompt_tokens_s: float | None = None
    at: float = 0.0

    def as_json(self) -> dict[str, Any]:
        """gangs[].serving of `status --watch --json`."""
        return {
            "running": self.now.running,
            "queued": self.now.queued,
            "tokens_s": self.tokens_s,
            "prompt_tokens_s": self.prompt_tokens_s,
            "cache_used": self.now.cache_used,
        }


def read_gauges(session: Session) -> GaugesAnswer:
    """One reading of one node. Raises as `ask` does."""
    spec = session.spec
    request = FiguresRequest(state_dir=spec.state_dir, fs_root=spec.fs_root, nvml_deadline_s=WATCH_NVML_S, gangs=False)
    answer = ask(session, "figures", request, FiguresAnswer, deadline_s=ANSWER_S)
    return answer.gauges or GaugesAnswer(now=answer.now)


def node_loads(inventory: Inventory, gangs: tuple[str, ...] = ()) -> dict[str, NodeLoad]:
    """Every node of the chosen gangs, read once."""
    with Fleet([node for gang in chosen_gangs(inventory, gangs) for node in gang.nodes]) as fleet:
        answers = fleet.on_every(read_gauges, patience=StragglerWait(least_s=WATCH_NVML_S + 1))
    return _loads(answers.values, answers.failures)


def _loads(values: Mapping[str, GaugesAnswer], failures: Mapping[str, DeployError]) -> dict[str, NodeLoad]:
    now = time.monotonic()
    read = {name: NodeLoad(gauges=one, ports=port_rates(None, one), at=now) for name, one in values.items()}
    return read | {name: NodeLoad(at=now, failure=failure) for name, failure in failures.items()}


def add_loads(document: Mapping[str, Any], loads: Mapping[str, NodeLoad]) -> None:
    """Put what moves beside what `status --json` says of each node."""
    for gang in document["gangs"]:
        for node in gang["nodes"]:
            node.update(loads.get(node["name"], NodeLoad()).as_json())
