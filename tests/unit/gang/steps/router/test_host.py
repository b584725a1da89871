"""What the router's own machine reports about it, over the node application itself."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from tests.support.certificates import certified_key
from tests.support.commands import router_of

from orchestrator.engines import router as words
from orchestrator.gang.remarks import of_certificate
from orchestrator.gang.steps.router.host import (
    certificate_findings,
    gangs_and_router,
    installed_router,
    router_gang,
    staged_router,
)
from orchestrator.gang.steps.router.router_start import start_of
from orchestrator.gang.view import GangView
from orchestrator.model.gang_state import GangState
from orchestrator.model.inventory import ROUTER_GANG, GangPorts, GangSpec, Inventory, NodeSpec, Reach, RouterSpec
from orchestrator.node.files import RUN_FILE
from orchestrator.protocol.errors import InputError
from orchestrator.protocol.severity import Severity
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
        start = start_of(router_of(spec), "/ready", words.InstalledRouter(words.SMG, "/r"))
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


FRONT = RouterSpec(
    node=NodeSpec(name="front", gang=ROUTER_GANG, node_rank=0, reach=Reach(connection="local", host="localhost"))
)
TODAY = datetime.now(timezone.utc)


@pytest.mark.parametrize(
    ("about", "days", "newer_days", "severity", "words"),
    [
        ("it lasts", 20, None, None, ""),
        ("it expires soon", 13, None, Severity.NOTE, "put a new one and its key where l40s_router_tls_cert says"),
        ("it has expired", -1, None, Severity.STOP, "expired on"),
        ("a renewed one was not read", 3, 90, Severity.NOTE, "l40s-deploy router down, then l40s-deploy router up"),
        ("the file has the same one", 3, 3, Severity.NOTE, "put a new one"),
    ],
)
def test_a_certificate_is_told_of_before_it_expires(
    about: str, days: int, newer_days: int | None, severity: Severity | None, words: str
) -> None:
    newer = None if newer_days is None else TODAY + timedelta(days=newer_days)
    found = of_certificate(TODAY + timedelta(days=days), TODAY, newer, "l40s_router_tls_cert")
    assert [one.severity for one in found] == ([] if severity is None else [severity]), about
    assert all(one.id == "CERT-EXPIRES" and words in f"{one.title} {one.fix}" for one in found)


def test_what_the_running_router_shows_counts_and_the_file_only_as_a_newer_one(tmp_path: Path) -> None:
    shown, _ = certified_key("router.example", days=2)
    renewed, _ = certified_key("router.example", days=80)
    (tmp_path / "cert.pem").write_text(renewed)
    view = GangView(name=ROUTER_GANG, state=GangState.READY, service_healthy=True, certificate=shown)
    spec = replace(FRONT, tls_cert=str(tmp_path / "cert.pem"))
    (found,) = certificate_findings(spec, view)
    assert "which it has not read" in found.title
    (alone,) = certificate_findings(replace(spec, tls_cert=str(tmp_path / "gone.pem")), view)
    assert "put a new one" in alone.fix
    assert certificate_findings(spec, replace(view, certificate=renewed)) == ()
    assert certificate_findings(spec, replace(view, certificate="")) == ()  # an older release started it
    assert certificate_findings(spec, replace(view, service_healthy=False)) == ()


@pytest.mark.parametrize(
    ("about", "files", "words"),
    [
        ("both fit", {"cert.pem": 0, "key.pem": 0}, ""),
        ("another user's machine, or another machine", {}, ""),
        ("the key is gone", {"cert.pem": 0}, "key.pem can't be read: No such file"),
        ("the certificate is gone", {"key.pem": 0}, "cert.pem can't be read: No such file"),
        ("another key", {"cert.pem": 0, "key.pem": 1}, "is not the key of the certificate"),
    ],
)
def test_files_that_would_not_start_the_serving_router_again_are_told_of(
    about: str, files: dict[str, int], words: str, tmp_path: Path
) -> None:
    pairs = [certified_key("router.example", days=80) for _ in range(2)]
    for name, place in files.items():
        (tmp_path / name).write_text(pairs[place][name == "key.pem"])
        (tmp_path / name).chmod(0o600)
    view = GangView(name=ROUTER_GANG, state=GangState.READY, service_healthy=True, certificate=pairs[0][0])
    spec = replace(FRONT, tls_cert=str(tmp_path / "cert.pem"), tls_key=str(tmp_path / "key.pem"))
    found = certificate_findings(spec, view)
    assert [finding.id for finding in found] == (["ROUTER-TLS-FILES"] if words else []), about
    assert words in "".join(finding.title for finding in found)
    for name, place in (("cert.pem", 0), ("key.pem", 1)):  # what was known goes with the files
        (tmp_path / name).write_text(pairs[0][place])
        (tmp_path / name).chmod(0o600)
    assert certificate_findings(spec, view) == ()
    (tmp_path / "key.pem").unlink()
    assert [finding.id for finding in certificate_findings(spec, view)] == ["ROUTER-TLS-FILES"]
