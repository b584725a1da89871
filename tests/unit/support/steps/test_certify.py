"""`certify` over a real gang of local agents: a real kill and restart, measurements made up; what is left, and when."""

from __future__ import annotations

import json
import stat
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from tests.support.local_gang import LocalGang, Notes

from orchestrator.bench.steps import bench as benching
from orchestrator.bench.steps import bench_report as benching_report
from orchestrator.bench.verdict import BenchVerdict
from orchestrator.gang.steps.up_operation import UpResult
from orchestrator.loading.profiles import load_profile
from orchestrator.model.gang_state import GangState
from orchestrator.model.profile import Load
from orchestrator.nettest.steps import nettest as nettesting
from orchestrator.nettest.verdict import NettestVerdict
from orchestrator.planning.steps.plan import PlanRequest
from orchestrator.protocol.errors import DeployError, Exit, InputError, LockHeld, NodeError
from orchestrator.support.commands.certify import prediction_lines
from orchestrator.support.steps import certify as certifying
from orchestrator.support.steps.certify import (
    STEPS,
    CertifiedStep,
    StepVerdict,
    certificate,
    certified_step,
    digest,
    exit_code,
    overall,
)
from orchestrator.tuning.kernels import KernelVerdict
from orchestrator.tuning.steps import kernels as kernels_of

pytestmark = pytest.mark.processes

HELD = LockHeld("somebody holds it", where="gang gang0", fix="wait")
NO_TORCH = NodeError("the environment has no torch", where="node1: python3", fix="prepare")


class Cluster:
    """A local gang whose measurements are what a test says. says: what each of them raises or concludes, by step"""

    def __init__(self, gang: LocalGang, folder: Path, patch: pytest.MonkeyPatch, **says: Any) -> None:
        self.gang, self.out, self.said = gang, folder / "out.json", list[str]()
        kept = folder / "kept.json"
        kept.write_text("{}")

        def says_of(step: str, usual: Any) -> Any:
            found = says.get(step, usual)
            if isinstance(found, BaseException):
                raise found
            return found() if callable(found) and not isinstance(found, type) else found

        def kernels(*_: Any, **__: Any) -> list[Any]:
            return [SimpleNamespace(verdict=says_of("kernels", KernelVerdict.RIGHT), real=True, lost={})]

        def nettest(*_: Any) -> list[Any]:
            verdict = says_of("nettest", NettestVerdict.OK)
            return [SimpleNamespace(result=SimpleNamespace(verdict=verdict), record={}, file=str(kept))]

        def up(*_: Any) -> UpResult:
            before = frozenset({"gang0"} if gang.view().serves else ())
            views = gang.view() if before else gang.up()[0]
            return UpResult(plan=gang.plan(), views=(views,), ready_before=before, seconds=1.0)

        def bench(*_: Any) -> list[Any]:
            return [SimpleNamespace(verdict=says_of("bench", BenchVerdict.EXPECTED), record={"stand_in": False})]

        patch.setattr(certifying, "examine_inventory", lambda _: SimpleNamespace(
            failures={}, worst=None, findings=(), cluster=SimpleNamespace(topologies={}, tcp={})))  # fmt: skip
        patch.setattr(certifying, "load_profile", lambda name: SimpleNamespace(name=name))
        patch.setattr(certifying, "up", up)
        patch.setattr(kernels_of, "run_now", kernels)
        patch.setattr(kernels_of, "check_json", lambda _: {"verdict": "any"})
        patch.setattr(nettesting, "run_now", nettest)
        tested = {"gangs": [{"file": str(kept), "on": gang.name(1)}]}
        patch.setattr(nettesting, "nettest_json", lambda _: tested)
        patch.setattr(benching, "at_loads", bench)
        patch.setattr(benching_report, "loads_json", lambda _: {"decode": []})
        if "restart" in says:
            patch.setattr(certifying, "restart", lambda *_: says_of("restart", None))

    def certify(self) -> DeployError | None:
        options = certifying.CertifyOptions(
            plan=PlanRequest(model="Fake", gangs=("gang0",)), out=self.out, command="x", timeout_s=60.0, load=Load()
        )
        screen = certifying.CertifyScreen(
            say=self.said.append,
            ended=lambda step: self.said.append(step["name"]),
            counting=lambda _: nullcontext(lambda *_: None),
            rising=lambda: nullcontext(Notes()),
        )
        return certifying.certify(self.gang.inventory, self.gang.gang, options, screen)[1]

    def verdicts(self) -> dict[str, str]:
        """By step, of the file, whose digests are right."""
        document = json.loads(self.out.read_text())
        assert document["digest"] == digest({key: value for key, value in document.items() if key != "digest"})
        assert all(one["digest"] == digest(one["result"]) for one in document["steps"])
        assert stat.S_IMODE(self.out.stat().st_mode) == 0o600 and self.gang.name(1) not in self.out.read_text()
        return {one["name"]: one["verdict"] for one in document["steps"]}


Local = Callable[..., LocalGang]


def test_a_rank_is_killed_named_and_the_gang_restarted_and_stopped(
    local: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(local(), tmp_path, monkeypatch)
    assert cluster.certify() is None
    assert cluster.verdicts() == dict.fromkeys(STEPS, "ok")
    document = json.loads(cluster.out.read_text())
    assert (document["verdict"], document["complete"], document["stand_in"]) == ("ok", True, False)
    steps = {one["name"]: one["result"] for one in document["steps"]}
    assert steps["kill"]["killed"] == {"node": "machine2", "tp_rank": 3, "signal": 9}
    assert steps["up"]["run_id"] != steps["restart"]["run_id"] and steps["restart"]["state"] == "ready"
    assert steps["nettest"]["gangs"][0] == {"file": certifying._sha256(tmp_path / "kept.json"), "on": "machine2"}
    cluster.gang.nothing_left()
    with pytest.raises(InputError, match="exists already"):
        cluster.certify()


@pytest.mark.turns(play=2)
@pytest.mark.parametrize(
    ("says", "verdicts", "raises"),
    [
        ({"nettest": NettestVerdict.FAILED}, ("ok", "ok", "wrong"), None),
        ({"kernels": KernelVerdict.FAILS}, ("ok", "wrong"), None),
        ({"kernels": NO_TORCH, "nettest": HELD}, ("ok", "not-run", "failed"), None),
        ({"bench": KeyboardInterrupt()}, ("ok",) * 4 + ("interrupted",), KeyboardInterrupt),
        ({"bench": NO_TORCH}, ("ok",) * 4 + ("failed",), None),
        ({"restart": KeyboardInterrupt()}, ("ok",) * 6 + ("interrupted",), KeyboardInterrupt),
    ],
)
def test_what_ends_it_is_written_down_and_nothing_is_left(
    local: Local,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    says: dict[str, Any],
    verdicts: tuple[str, ...],
    raises: type[BaseException] | None,
) -> None:
    cluster = Cluster(local(), tmp_path, monkeypatch, **says)
    if raises is None:
        failed = "failed" in verdicts
        assert isinstance(cluster.certify(), DeployError) is failed
    else:
        with pytest.raises(raises):
            cluster.certify()
    assert cluster.verdicts() == dict(zip(STEPS, verdicts, strict=False))
    assert not json.loads(cluster.out.read_text())["complete"]
    cluster.gang.nothing_left()


def test_a_run_of_somebody_else_is_never_touched(local: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gang = local()
    cluster = Cluster(gang, tmp_path, monkeypatch, nettest=lambda: gang.up() and NettestVerdict.OK)
    assert "left alone" in str(cluster.certify())
    assert cluster.verdicts()["up"] == "failed" and gang.view().state is GangState.READY
    cluster.out.unlink()
    with pytest.raises(InputError, match="gang0 runs on its nodes") as refused:
        cluster.certify()
    assert "l40s-deploy down gang0" in refused.value.fix and not cluster.out.exists()
    assert gang.view().serves


OK, DIFFERS, NOT_RUN, WRONG, FAILED, INTERRUPTED = StepVerdict


def steps(*verdicts: StepVerdict) -> list[CertifiedStep]:
    return [certified_step(name, one, 1.0) for name, one in zip(STEPS, verdicts, strict=False)]


@pytest.mark.parametrize(
    ("verdicts", "whole", "code"),
    [
        ((OK,) * 7, OK, Exit.DONE),
        ((OK,) * 6, NOT_RUN, Exit.FINDINGS),
        ((DIFFERS, NOT_RUN, *(OK,) * 5), NOT_RUN, Exit.FINDINGS),
        ((DIFFERS, *(OK,) * 6), DIFFERS, Exit.DIFFERS),
        ((OK, NOT_RUN, WRONG), WRONG, Exit.DIFFERS),
        ((OK, OK, OK, FAILED), FAILED, Exit.DIFFERS),
        ((INTERRUPTED,), INTERRUPTED, Exit.DIFFERS),
    ],
)
def test_the_gravest_step_decides(verdicts: tuple[StepVerdict, ...], whole: StepVerdict, code: int) -> None:
    found = steps(*verdicts)
    assert (overall(found), exit_code(whole)) == (whole, code)
    document = certificate({"stand_in": None}, found)
    assert document["complete"] is (len(verdicts) == len(STEPS)) and document["verdict"] == whole.value


def test_a_digest_is_of_all_that_is_said() -> None:
    document = certificate({"model": "a"}, steps(OK))
    rest = {key: value for key, value in document.items() if key != "digest"}
    assert document["digest"] == digest(rest) != digest({**rest, "model": "b"})
    assert digest({"a": 1, "b": (1, None)}) == digest({"b": [1, None], "a": 1})


def test_measured_speeds_stand_beside_what_was_predicted(
    local: Local, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = Cluster(local(), tmp_path, monkeypatch)
    options = certifying.CertifyOptions(
        plan=PlanRequest(model="DeepSeek-R1-Channel-INT8"), out=cluster.out, command="x", timeout_s=1.0, load=Load()
    )
    monkeypatch.setattr(certifying, "load_profile", load_profile)
    run = certifying._Certification(cluster.gang.inventory, cluster.gang.gang, options, None, cluster.gang.inventory)  # type: ignore[arg-type]
    run._about |= {"stand_in": False, "layout": "TP32", "hardware": {"gpus": {"NVIDIA L40S": 32}}}
    rows = [{"requests": 4, "tok_s": 153.98, "source": "log"}, {"requests": 128, "tok_s": 60.0, "source": "log"}]
    found = run._predicted({"decode": rows})
    assert found is not None and [point["within"] for point in found["points"]] == [True, False]
    lines = [*prediction_lines([{"name": "bench", "result": {"prediction": found}}])]
    assert lines[0].startswith("4 requests: 154 tokens/s (log), within the prediction of 20") and "outside" in lines[1]
    run._about["stand_in"] = True
    assert run._predicted({"decode": rows}) is None
