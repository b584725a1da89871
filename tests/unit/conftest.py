from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from tests.support.local_gang import LocalGang

    from orchestrator.model.finding import Finding


@pytest.fixture
def findings(monkeypatch: pytest.MonkeyPatch) -> list[Finding]:
    """What the doctor finds before a start comes from this list: this machine is no node."""
    from orchestrator.doctor.rules.support.cluster import Cluster
    from orchestrator.doctor.steps.doctor import Examination
    from orchestrator.gang.steps import checks

    found: list[Finding] = []
    seen = Cluster(topologies={}, snapshots={}, specs={})
    monkeypatch.setattr(checks, "examine", lambda *_: Examination(seen, tuple(found), (), {}))
    return found


@pytest.fixture
def local(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, findings: list[Finding]
) -> Iterator[Callable[..., LocalGang]]:
    """Makes a gang on this machine: nodes over `ansible_connection: local`, a scripted engine."""
    from tests.support.local_gang import LocalGang

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    made: list[LocalGang] = []

    def make(**words: Any) -> LocalGang:
        made.append(LocalGang(tmp_path / f"gang{len(made)}", **words))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def serving(local: Callable[..., LocalGang]) -> LocalGang:
    """A gang of two nodes on this machine that serves `plan1`."""
    gang = local()
    gang.up()
    return gang


@pytest.fixture(scope="session")
def advice() -> Iterator[set[str]]:
    """Every fix of an error or finding that is made in the tests below."""
    from orchestrator.model.finding import Finding
    from orchestrator.protocol.errors import DeployError

    fixes: set[str] = set()
    kinds: tuple[Any, ...] = (DeployError, Finding)

    def noted(begin: Callable[..., None]) -> Callable[..., None]:
        def begun(self: Any, *words: Any, **more: Any) -> None:
            begin(self, *words, **more)
            fixes.add(str(self.fix))

        return begun

    with pytest.MonkeyPatch.context() as patch:
        for kind in kinds:
            patch.setattr(kind, "__init__", noted(kind.__init__))
        yield fixes


@pytest.fixture(autouse=True)
def every_advised_command_is_one(advice: set[str]) -> Iterator[None]:
    """Our own parser takes the commands that fixes advise, with the values that they are printed with."""
    before = set(advice)
    yield
    from tests.support.advice import commands, refused

    wrong = {
        fix: refused(command)
        for fix in advice - before
        if "l40s-deploy " in fix
        for command in commands(fix)
        if refused(command)
    }
    assert wrong == {}


@pytest.fixture(autouse=True)
def only_this_machine_is_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Other addresses are unreachable at once: some networks drop what goes to those of RFC 5737, and each test that
    tries one would wait for its deadline."""
    really = socket.socket.connect

    def connect(self: socket.socket, address: Any) -> None:
        if self.type == socket.SOCK_STREAM and isinstance(address, tuple) and _is_another_machine(address[0]):
            raise OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))
        really(self, address)

    monkeypatch.setattr(socket.socket, "connect", connect)


def _is_another_machine(host: str) -> bool:
    with suppress(ValueError):
        address = ip_address(host)
        return not (address.is_loopback or address.is_unspecified)
    return False
