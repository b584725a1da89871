"""Labs for the tests: own names, own directory, always removed afterwards.

A file whose `pytestmark` has one of these kinds is one variation of it (tests/support/turns.py): a run of `make test`
plays two files of each, one of kinds of two. What each run plays of the same, whichever file has its turn:

| kind | files | in each run |
|---|---|---|
| LOSES_A_PART | a guard goes on without a node; 32 ranks; hangs, rails; boots | tests/chaos, tests/simulation |
| BEHIND_ONE_ROUTER | rolling; two operators; several models; replicas | BEGUN_AND_FINISHED, tests/simulation |
| BEGUN_AND_FINISHED | the gate; commands that are interrupted | tests/unit/gang/steps, tests/changes |
| MEASURED | bench and golden; sweeps | tests/unit/sweep, tests/unit/bench, tests/unit/golden |
| SEEN | metrics and alerts; the doctor; plans of 32 ranks; recorded machines | tests/unit, tests/golden |
| PREPARED | all roles, from a bundle; the firewall; viewers | tests/unit/playbooks |
| THE_LAB_ITSELF | its life; level 0; its nodes; systemd on them | every other lab here |
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.support.ports import free_port
from tests.support.router import ROUTER_PORTS, NotInstalled, router_environment, router_group
from tests.support.small_lab import RunningLab, SmallLab, small_lab

LOSES_A_PART = pytest.mark.turns(of="labs: a gang loses a part", play=2)
BEHIND_ONE_ROUTER = pytest.mark.turns(of="labs: gangs behind one router", play=2)
BEGUN_AND_FINISHED = pytest.mark.turns(of="labs: what a command has begun is finished or taken back")
MEASURED = pytest.mark.turns(of="labs: what serves is measured")
SEEN = pytest.mark.turns(of="labs: what is seen of nodes, and planned on them", play=2)
PREPARED = pytest.mark.turns(of="labs: what `prepare` makes is taken back", play=2)
THE_LAB_ITSELF = pytest.mark.turns(of="labs: the lab itself", play=2)

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="emulated nodes need root")


@pytest.fixture(scope="module")
def labs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[str], RunningLab]]:
    """Makes lab handles; takes down every lab of a test file at the file's end."""
    made: list[RunningLab] = []

    def make(name: str) -> RunningLab:
        lab = RunningLab(name, tmp_path_factory.mktemp("labs"))
        made.append(lab)
        return lab

    yield make
    for lab in made:
        lab.end_started()
        lab.run("down")


@contextmanager
def routed_lab(name: str, **shape: Any) -> Iterator[SmallLab]:
    """A lab with the router on this machine, which is taken down first; skips the test where it can't be installed."""
    try:
        environment = router_environment()
    except NotInstalled as why:
        pytest.skip(str(why))
    with small_lab(name, router_port=free_port(adjacent=ROUTER_PORTS), **shape) as made:
        made.write_inventory(router=router_group(environment, made.folder / "router", made.router_port))
        try:
            yield made
        finally:
            made.deploy("router", "down", code=None)
