from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
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
    from tests.support.gang import WATCH
    from tests.support.local_gang import LocalGang
    from tests.support.messages import message

    from orchestrator.gang.steps import staging
    from orchestrator.protocol.staging import Watch

    class Dialect:
        def engine(self, _: str) -> Dialect:
            return self

        def watch(self, _: Mapping[str, str]) -> Watch:
            return message(Watch, WATCH)

    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setattr(staging, "dialect", lambda _: Dialect())
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
