"""Labs for the tests: own names, own directory, always removed afterwards."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from tests.support.ports import free_port
from tests.support.router import ROUTER_PORTS, NotInstalled, router_environment, router_group
from tests.support.small_lab import RunningLab, SmallLab, small_lab

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
