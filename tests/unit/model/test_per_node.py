"""Failures of several nodes reported as one."""

from __future__ import annotations

import pytest

from orchestrator.model.per_node import PerNode
from orchestrator.protocol.errors import NodeError, Unreachable


def test_all_nodes_that_do_not_answer_are_named() -> None:
    lost = {name: Unreachable(f"{name} is silent", where=name, fix="look at its power") for name in ("a", "c")}
    with pytest.raises(Unreachable) as raised:
        PerNode(values={"b": 1}, failures=lost).all()
    assert raised.value.where == "a, c" and raised.value.fix == "look at its power"
    assert "2 nodes do not answer" in raised.value.what and "c: c is silent" in raised.value.what


def test_one_failure_is_itself() -> None:
    one = NodeError("no python", where="a", fix="install it")
    with pytest.raises(NodeError) as raised:
        PerNode(values={}, failures={"a": one, "b": Unreachable("silent", where="b", fix="")}).all()
    assert raised.value is one
    assert PerNode(values={"a": 1}, failures={}).all() == {"a": 1}


class Refused(NodeError):
    """With more than every error has."""

    def __init__(self, what: str, *, where: str, fix: str, kind: str) -> None:
        super().__init__(what, where=where, fix=fix)
        self.kind = kind


def test_equal_failures_are_one_with_all_their_places() -> None:
    full = {name: Refused("the disk is full", where=f"{name}: /run", fix="free it", kind="no") for name in ("a", "b")}
    with pytest.raises(Refused) as raised:
        PerNode(values={}, failures={**full, "c": NodeError("no python", where="c", fix="install it")}).all()
    assert (raised.value.where, raised.value.what) == ("a: /run, b: /run", "the disk is full")
    assert (raised.value.fix, raised.value.kind, full["a"].where) == ("free it", "no", "a: /run")
    lost = {name: Unreachable("no route to host", where=name, fix="look") for name in ("a", "b")}
    with pytest.raises(Unreachable) as unreached:
        PerNode(values={}, failures=lost).all()
    assert unreached.value.what == "2 nodes do not answer\n    a, b: no route to host"


def test_ordered_as_the_nodes_were_asked() -> None:
    failures = {name: Unreachable("silent", where=name, fix="") for name in ("d", "b")}
    found = PerNode(values={"c": 3, "a": 1}, failures=failures).ordered(["a", "b", "c", "d", "e"])
    assert (list(found.values), list(found.failures)) == (["a", "c"], ["b", "d"])
    assert found.ordered(["d", "c"]) == PerNode(values={"c": 3}, failures={"d": failures["d"]})
