"""The group `router` of an inventory."""

from __future__ import annotations

from pathlib import Path

import pytest

from orchestrator.loading.inventory import load_inventory
from orchestrator.model.errors import InputError

GANGS = "gangs: {children: {gang0: {hosts: {a: }}, gang1: {hosts: {b: }}}}\n"


def read(folder: Path, more: str):  # type: ignore[no-untyped-def]
    file = folder / "hosts.yml"
    file.write_text(GANGS + more)
    return load_inventory(file).router


def test_none_unless_asked_for(tmp_path: Path) -> None:
    assert read(tmp_path, "") is None


def test_a_host_with_its_own_ports(tmp_path: Path) -> None:
    spec = read(tmp_path, "router: {hosts: {head: {ansible_host: 10.0.0.1, l40s_router_port: 8080}}}\n")
    assert (spec.node.name, spec.port, spec.metrics_port) == ("head", 8080, 29000)
    assert spec.url == "http://10.0.0.1:8080"


def test_a_gangs_node_may_run_it(tmp_path: Path) -> None:
    assert read(tmp_path, "router: {hosts: {a: }}\n").node.gang == "router"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        ("router: {hosts: {c: , d: }}\n", "found 2 hosts"),
        ("router: {hosts: {}}\n", "found 0 hosts"),
        ("router: {hosts: {c: {l40s_router_port: 29000}}}\n", "other than l40s_router_metrics_port"),
        ("router: {hosts: {c: {l40s_router_prot: 1}}}\n", "l40s_router_prot"),
    ],
)
def test_refused_in_words(tmp_path: Path, more: str, words: str) -> None:
    with pytest.raises(InputError, match=words):
        read(tmp_path, more)
