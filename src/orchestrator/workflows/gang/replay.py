"""The plan that a gang runs, or ran last, as its nodes have it: enough to start the very same again.

Whoever restarts need not be who started: no file of this machine is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from orchestrator.model.errors import InputError
from orchestrator.model.inventory import GangSpec
from orchestrator.planning.redaction import shown_env
from orchestrator.remote.fleet import Fleet
from orchestrator.remote.node_app import NodeRefusal, call
from orchestrator.workflows.gang.up import Rising
from orchestrator.workflows.status.reports import where

ANSWER_S = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Staged:
    """What a gang's nodes were told to run. requests: by node name, in node-rank order, without the run's key."""

    gang: GangSpec
    requests: Mapping[str, Mapping[str, Any]]

    @property
    def plan_id(self) -> str:
        """The same on every node."""
        return str(self._leader.get("plan_id") or "")

    @property
    def model(self) -> str:
        """The model profile's name."""
        return str(self._leader.get("model") or "")

    @property
    def service_url(self) -> str:
        """Where the gang serves."""
        return str((self._leader.get("service") or {}).get("url") or "")

    @property
    def http(self) -> Mapping[str, str]:
        """The engine's endpoints: alive, generate, models, ..."""
        return dict((self._leader.get("watch") or {}).get("http") or {})

    @property
    def drain_s(self) -> float:
        """How long running requests get when the gang is stopped, shutdown included."""
        stop = (self._leader.get("watch") or {}).get("stop") or {}
        return float(stop.get("drain_s") or 0.0) + float(stop.get("shutdown_s") or 0.0)

    @property
    def _leader(self) -> Mapping[str, Any]:
        return self.requests[self.gang.leader.name]

    def rising(self, *, going_back: bool = False) -> Rising:
        """The same again, under a new run id and a new key. going_back: over another plan that was staged since,
        so that each node takes its secrets back too."""

        def requests(run_id: str, key: str) -> Mapping[str, Mapping[str, Any]]:
            return {
                name: {
                    **request,
                    "run_id": run_id,
                    "key": key,
                    **({"secrets": {"of_run": request.get("run_id")}} if going_back else {}),
                }
                for name, request in self.requests.items()
            }

        document = {"plan_id": self.plan_id, "again": True, "nodes": [_shown(one) for one in self.requests.values()]}
        return Rising(gang=self.gang, plan_id=self.plan_id, document=document, requests=requests)


def _shown(request: Mapping[str, Any]) -> dict[str, Any]:
    """A request as a record may keep it: without secrets."""
    shown = {name: value for name, value in request.items() if name != "launch_script"}
    return {**shown, "env": shown_env(dict(request.get("env") or {}))}


def staged_plan(fleet: Fleet, gang: GangSpec, *, run_id: str = "") -> Staged:
    """Ask every node of a gang what it was told last, or for an older run that it has kept.

    Raises InputError where nothing was ever started, or where the nodes do not hold one plan for just these nodes;
    Unreachable where one does not answer.
    """
    asked = {"run_id": run_id} if run_id else {}
    told = fleet.on_every(
        lambda session: call(session, "staged", {**where(session.spec, gang.name), **asked}, deadline_s=ANSWER_S),
        only=[node.name for node in gang.nodes],
    )
    for failure in told.failures.values():
        if isinstance(failure, NodeRefusal) and failure.kind == "no-run":
            raise _nothing(gang, failure.where)
    requests = {
        node.name: {
            **dict(told.all()[node.name].get("request") or {}),
            **where(node, gang.name),
            "launch_script": str(told.all()[node.name].get("launch_script") or ""),
        }
        for node in gang.nodes
    }
    _refuse_disagreement(gang, requests)
    return Staged(gang=gang, requests=requests)


def _nothing(gang: GangSpec, place: str) -> InputError:
    return InputError(
        f"nothing was ever started as gang {gang.name}, so there is nothing to start again",
        where=place,
        fix="l40s-deploy up --model NAME",
    )


def _refuse_disagreement(gang: GangSpec, requests: Mapping[str, Mapping[str, Any]]) -> None:
    names = list(requests)
    for name, request in requests.items():
        if not request.get("run_id") or not request["launch_script"]:
            raise _nothing(gang, name)
        if request.get("plan_id") != requests[names[0]].get("plan_id"):
            raise InputError(
                f"{name} was told another plan ({request.get('plan_id')}) than {names[0]}"
                f" ({requests[names[0]].get('plan_id')}): an `up` was interrupted",
                where=f"gang {gang.name}",
                fix="l40s-deploy up --model NAME",
            )
        if list(request.get("members") or ()) != names:
            raise InputError(
                f"what {name} was told is for the nodes {', '.join(request.get('members') or ())}; "
                f"the inventory's gang is {', '.join(names)}",
                where=f"gang {gang.name}",
                fix="l40s-deploy up --model NAME plans for the gang as it is now",
            )
