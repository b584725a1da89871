"""What the router's own machine reports about it, over the node application itself."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.engines import router as words
from orchestrator.gang.steps.router import routing
from orchestrator.gang.steps.router.host import (
    gangs_and_router,
    installed_router,
    router_gang,
    staged_router,
)
from orchestrator.gang.steps.router.routing import Router
from orchestrator.model.errors import InputError
from orchestrator.model.inventory import ROUTER_GANG, GangPorts, GangSpec, Inventory, NodeSpec, Reach, RouterSpec
from orchestrator.node.files import RUN_FILE
from orchestrator.remote.fleet import Fleet


def test_the_router_is_found_by_its_name_and_beside_all_gangs() -> None:
    def at(gang: str) -> NodeSpec:
        return NodeSpec(name="n", gang=gang, node_rank=0, reach=Reach(connection="local", host="localhost"))

    gangs = tuple(GangSpec(name=name, nodes=(at(name),)) for name in ("a", "b"))
    alone = Inventory(path="hosts.yml", gangs=gangs)
    routed = replace(alone, router=RouterSpec(node=at("other")))

    def found(inventory: Inventory, *names: str) -> list[list[str]]:
        return [[gang.name for gang in part] for part in gangs_and_router(inventory, names)]

    assert found(routed) == [["a", "b"], [ROUTER_GANG]] and found(alone) == [["a", "b"]]
    assert (
        found(routed, ROUTER_GANG) == [[ROUTER_GANG]]
        and found(routed, "b") == [["b"]]
        and found(routed, "a", ROUTER_GANG) == [["a"], [ROUTER_GANG]]
    )
    with pytest.raises(InputError, match="no gang is called"):
        found(alone, ROUTER_GANG)


def test_a_router_tells_what_it_was_started_with(tmp_path: Path) -> None:
    reach = Reach(connection="local", host="localhost")
    node = NodeSpec(
        name="front", gang=ROUTER_GANG, node_rank=0, reach=reach, ports=GangPorts(), state_dir=str(tmp_path)
    )
    spec = RouterSpec(node=node)
    gang = tmp_path / "gangs" / ROUTER_GANG
    with Fleet(router_gang(spec).nodes) as fleet:
        assert staged_router(fleet, spec) is None
        (gang / "runs" / "r1").mkdir(parents=True)
        (gang / "current").write_text("r1")
        start = routing._start_of(Router(spec), "/ready", words.InstalledRouter(words.SMG, "/r"))
        (staged,) = start.of_run("r1", "00").values()
        (gang / "runs" / "r1" / RUN_FILE).write_text(json.dumps(staged.kept()))
        told = staged_router(fleet, spec)
        assert told is not None and told.stack == "smg-1.13.0"
        assert told.watch.http[words.WORKERS_HEALTH] == "/ready"
        (gang / "runs" / "r1" / RUN_FILE).write_text(json.dumps({"argv": "not a list"}))
        assert staged_router(fleet, spec) is None


def test_what_the_routers_host_has_is_read_there(tmp_path: Path) -> None:
    reach = Reach(connection="local", host="localhost")
    node = NodeSpec(
        name="front", gang=ROUTER_GANG, node_rank=0, reach=reach, ports=GangPorts(), state_dir=str(tmp_path / "s")
    )
    spec = RouterSpec(node=node, venv=str(tmp_path / "venv"))
    packages = tmp_path / "venv/lib/python3.12/site-packages"
    with Fleet(router_gang(spec).nodes) as fleet:
        assert installed_router(fleet, spec).release is words.SMG
        (packages / "sglang_router-0.3.2.dist-info").mkdir(parents=True)
        assert installed_router(fleet, spec) == words.InstalledRouter(words.SGLANG_ROUTER, spec.venv)
        (packages / "smg-1.13.0.dist-info").mkdir()
        assert installed_router(fleet, spec) == words.InstalledRouter(words.SMG, spec.venv)
