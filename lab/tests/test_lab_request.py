from __future__ import annotations

import pytest

from l40s_lab.life.request import Request
from orchestrator.model.errors import InputError


@pytest.mark.parametrize(
    ("request_", "where"),
    [
        (Request(name="../x"), "--name"),
        (Request(name=""), "--name"),
        (Request(name="Lab"), "--name"),
        (Request(name="x" * 25), "--name"),
        (Request(nodes=0), "--nodes"),
        (Request(nodes=241), "--nodes"),
        (Request(nodes=4, gangs=0), "--gangs"),
        (Request(engine="sglang", ranks=0), "--ranks"),
        (Request(engine="sglang", ranks=9), "--ranks"),
        (Request(ranks=8), "--ranks"),
        (Request(engine="none", level=1), "--level"),
        (Request(engine="none", deaths="cuda"), "--deaths"),
        (Request(like="mine.yml", nodes=4), "--like"),
        (Request(like="mine.yml", gangs=1), "--like"),
        (Request(recorded="snapshots", wiring="wrong"), "--from"),
        (Request(stack="sglang-0.5.23"), "--stack"),
        (Request(gpus="host"), "--gpus host"),
        (Request(gpus="host", stack="sglang-0.5.23", wiring="wrong"), "--gpus host"),
        (Request(gpus="host", stack="sglang-0.5.23", recorded="snapshots"), "--gpus host"),
        (Request(gpus="host", stack="sglang-0.5.23", engine="sglang"), "--gpus host"),
        (Request(gpus="host", stack="sglang-0.5.23", level=2), "--level"),
    ],
)
def test_what_cannot_be_is_refused(request_: Request, where: str) -> None:
    with pytest.raises(InputError) as refused:
        request_.check()
    assert refused.value.where == where


@pytest.mark.parametrize(
    ("name", "fix"), [("opA", "opa"), ("My Lab_2", "my-lab-2"), ("x" * 25, "x" * 24), ("../", "lab"), ("", "lab")]
)
def test_a_name_that_would_do_is_offered(name: str, fix: str) -> None:
    with pytest.raises(InputError) as refused:
        Request(name=name).check()
    assert refused.value.fix == f"--name {fix}"
