"""The full path from a plan to real agents, over local sessions: what `up` and `down` do, without SSH."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.support.gang import FAKE_ENGINE, Cluster
from tests.support.messages import message
from tests.support.ports import free_port

from orchestrator.gang.guarding import GuardDecision
from orchestrator.gang.steps.raising import raise_all
from orchestrator.gang.steps.status.reports import see
from orchestrator.gang.steps.up_operation import UpRequest, starts_of
from orchestrator.gang.view import GangView
from orchestrator.model.inventory import GangPorts, GangSpec, Inventory, NodeSpec, Reach
from orchestrator.model.plan import GangPlan, Memory, Plan
from orchestrator.planning.phase_limits import allowed_s
from orchestrator.planning.steps.plan import PlanRequest
from orchestrator.protocol.planned import Layout, NodeNetwork
from orchestrator.protocol.staging import Canary, Endpoint, NodePlan, Ports, ServiceOrder, Watch
from orchestrator.remote.fleet import Fleet


@dataclass
class Notes:
    """A watcher that records events and may interrupt."""

    plans: list[Plan] = field(default_factory=list)
    steps: list[str] = field(default_factory=list)
    views: list[GangView] = field(default_factory=list)
    decisions: list[GuardDecision] = field(default_factory=list)
    on_step: Callable[[str], None] = lambda _: None
    on_seen: Callable[[GangView], None] = lambda _: None

    def planned(self, plan: Plan) -> None:
        self.plans.append(plan)

    def step(self, gang: str, words: str) -> None:
        self.steps.append(words)
        self.on_step(words)

    def seen(self, views: Sequence[GangView]) -> None:
        self.views += views
        for view in views:
            self.on_seen(view)

    def decided(self, gang: str, decision: GuardDecision) -> None:
        self.decisions.append(decision)


@dataclass
class LocalGang(Cluster):
    """Nodes, inventory and plan of one gang on this machine."""

    def spec(self, rank: int) -> NodeSpec:
        return NodeSpec(
            name=self.name(rank),
            gang="gang0",
            node_rank=rank,
            reach=Reach(connection="local", host="localhost", python=sys.executable),
            state_dir=self.state_dir(rank),
            ports=GangPorts(agent=self.agent_port, http=int(self.http.rpartition(":")[2])),
            http_host="127.0.0.1",
        )

    @property
    def gang(self) -> GangSpec:
        return GangSpec(name="gang0", nodes=tuple(self.spec(rank) for rank in range(self.nodes)))

    @property
    def inventory(self) -> Inventory:
        return Inventory(path="hosts.yml", gangs=(self.gang,))

    def plan(self, plan_id: str = "plan1") -> Plan:
        http, rendezvous = (Endpoint(address="127.0.0.1", port=free_port()) for _ in range(2))
        nodes = tuple(self._node(rank, (http, rendezvous)) for rank in range(self.nodes))
        gang = GangPlan(
            name="gang0",
            dialect="fake",
            engine_version="1",
            layout=Layout(tensor_parallel=self.nodes * self.ranks_each, nnodes=self.nodes, gpus_per_node=0),
            memory=Memory(),
            dist_init=f"127.0.0.1:{rendezvous.port}",
            http_port=http.port,
            model_bytes=0,
            nodes=nodes,
        )
        return Plan(plan_id=plan_id, facts_digest="facts", facts=(), gangs=(gang,))

    def _node(self, rank: int, listens: Sequence[Endpoint]) -> NodePlan:
        staged, spec, http_url = self.staging(rank), self.spec(rank), f"http://{self.http}"
        return NodePlan(
            gang="gang0",
            node=self.name(rank),
            node_rank=rank,
            nnodes=self.nodes,
            members=tuple(self.name(member) for member in range(self.nodes)),
            addresses={"localhost": self.name(self.nodes - 1), "127.0.0.1": self.name(self.nodes - 1)},
            state_dir=spec.state_dir,
            model="Fake",
            stack="fake",
            layout=Layout(tensor_parallel=self.nodes * self.ranks_each, nnodes=self.nodes, gpus_per_node=0),
            network=NodeNetwork(address="127.0.0.1"),
            command=(sys.executable, str(FAKE_ENGINE)),
            env=staged["env"],
            tp_ranks=tuple(staged["tp_ranks"]),
            working_dir="/",
            model_path=str(staged["model_path"]),
            venv_python=sys.executable,
            ports=Ports(check_free=tuple(listens[: 2 if rank == 0 and self.nodes > 1 else 1])),
            http_url=http_url,
            leader=Endpoint(address="127.0.0.1", port=self.agent_port),
            lease_s=self.lease_s,
            service=ServiceOrder(url=http_url) if rank == 0 else None,
            canary=Canary(prompt="Capital of France?", expect_any=("Paris",)) if rank == 0 else None,
            watch=replace(message(Watch, staged["watch"]), allowed_s=allowed_s(0)),
        )

    def up(self, *, plan_id: str = "plan1", notes: Notes | None = None, **more: Any) -> tuple[GangView, ...]:
        """Carry out a plan, as `up` does."""
        request = replace(UpRequest(plan=PlanRequest(model="Fake"), timeout_s=20.0), **more)
        with Fleet(self.gang.nodes, hands_over=True) as fleet:  # as every command's
            return self.raise_on(fleet, request, self.plan(plan_id), notes)

    def raise_on(
        self, fleet: Fleet, request: UpRequest, plan: Plan | None = None, notes: Notes | None = None, **more: Any
    ) -> tuple[GangView, ...]:
        """Start the gang, over these connections."""
        return raise_all(
            fleet,
            starts_of([self.gang], plan or self.plan(), request),
            notes or Notes(),
            timeout_s=request.timeout_s,
            undo_on_interrupt=request.undo_on_interrupt,
            **more,
        )

    def view(self) -> GangView:
        with Fleet(self.gang.nodes, hands_over=True) as fleet:  # kept for the next look
            (view,) = see(fleet, [self.gang])
        return view

    def agent(self, rank: int) -> tuple[int, int]:
        """The agent of the current run, whoever started it."""
        current = Path(self.state_dir(rank), "gangs/gang0/current")
        if current.exists():
            self.run_id = current.read_text().strip()
        return super().agent(rank)


Local = Callable[..., LocalGang]
"""Makes one, in the words of `LocalGang`."""
