"""Which hang it is, of gangs of real torch ranks over gloo: what a node gathers, and the class that it shows.

Each gang stands as two nodes, with half of its ranks each; nobody else would tell them apart.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from tests.support.gang import Cluster
from tests.support.turns import by_turns
from tests.support.waiting import until

from l40s_lab.engine.environment import ensure_engine
from orchestrator.gang.hangs import HangEvidence, classify
from orchestrator.node import processes, supervision
from orchestrator.node.agent.staged_run import run_of
from orchestrator.node.engine.hang_inquiry import HangQuestion
from orchestrator.node.engine.hang_look import Gathering
from orchestrator.protocol.hang import Hang, HangLook

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]
PROGRAM = Path(__file__).parents[1] / "support" / "hanging_ranks.py"
WORLD = 4
STANDS_S = 120
CLASSES = {
    "skips": "HANG-DIVERGED",
    "sleeps": "HANG-RANK-BEHIND",
    "computes": "HANG-RANK-BEHIND",
    "waits_for_a_disk": "HANG-HOST",
    "reads": "HANG-HOST",
    "stops": "HANG-HOST",
}
STOOD_IN = {"waits_for_a_disk": "D", "stops": "T"}
"""The victim's state (proc(5)); the others', and every other kind's, is S."""
CASES = [(kind, victim) for kind in CLASSES for victim in range(WORLD)]


def _kind(case: tuple[str, int]) -> str:
    return f"hang: {case[0]}"


@dataclass
class Gangs:
    """One process that has imported torch, and forks every gang's ranks."""

    folder: Path
    child: subprocess.Popen[str]
    pids: list[int] = field(default_factory=list)

    def start(self, kind: str, victim: int) -> None:
        """End the gang before, start this one, and wait until all but one that computes stand still."""
        assert self.child.stdin is not None and self.child.stdout is not None
        self.release()
        self.child.stdin.write(f"{kind} {victim} {WORLD}\n")
        self.child.stdin.flush()
        self.pids = json.loads(self.child.stdout.readline())
        at = self.pids[victim]
        until((self.folder / f"arrived{at}").exists, STANDS_S, "the victim is where it comes to a stand")
        wanted = {pid: "S" for pid in self.pids if kind != "computes" or pid != at}
        if kind in STOOD_IN:
            wanted[at] = STOOD_IN[kind]
        until(lambda: stands(wanted), STANDS_S)

    def release(self) -> None:
        """What waits for a file gets it."""
        for pipe in self.folder.glob("disk*"):
            os.close(os.open(pipe, os.O_RDWR | os.O_NONBLOCK))


def stands(wanted: Mapping[int, str]) -> bool:
    """Whether all of these processes have begun, use no processor for a second, and are in their state then."""
    before, end = list(map(supervision.processor_s, wanted)), time.monotonic() + 1.0
    until(lambda: time.monotonic() >= end, 5.0)
    states = [found.state if (found := processes.read(pid)) is not None else "" for pid in wanted]
    moved = [now - then for then, now in zip(before, map(supervision.processor_s, wanted), strict=True)]
    return all(before) and max(moved) < 0.02 and states == [*wanted.values()]


@pytest.fixture(scope="module")
def gangs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gangs]:
    if shutil.which("py-spy") is None and not Path(sys.executable).with_name("py-spy").exists():
        pytest.skip("py-spy is not installed here")
    folder = tmp_path_factory.mktemp("gangs")
    python = ensure_engine() / "bin" / "python3"
    with ExitStack() as held:
        child = subprocess.Popen(
            [str(python), str(PROGRAM), str(folder)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        held.enter_context(child)
        held.callback(child.kill)
        made = Gangs(folder, child)
        assert child.stdout is not None and child.stdin is not None
        assert child.stdout.readline() == "up\n"
        yield made
        child.stdin.write("end 0 0\n")
        child.stdin.flush()
        child.wait(60)
        made.release()


def hang_of(folder: Path, pids: list[int]) -> Hang:
    """As a controller sees it: two nodes look at the same time, each at its own ranks."""
    cluster = Cluster(folder / f"gang{pids[0]}", nodes=2)
    half = WORLD // 2

    def look(node: int) -> HangLook:
        ranks = tuple(enumerate(pids))[node * half : (node + 1) * half]
        return Gathering(run_of(cluster.staging(node), str(folder)), HangQuestion(ranks, os.getpid())).look()

    with ThreadPoolExecutor(2) as pool:
        looks = list(pool.map(look, range(2)))
    assert all(one.took_s < 11 for one in looks)
    return classify(HangEvidence(looks={one.node: one for one in looks}))


@pytest.mark.parametrize("case", by_turns(CASES, of=_kind), ids=[f"{kind}-{victim}" for kind, victim in CASES])
def test_the_class_and_the_rank_are_named(gangs: Gangs, case: tuple[str, int]) -> None:
    kind, victim = case
    gangs.start(kind, victim)
    found = hang_of(gangs.folder, gangs.pids)
    assert (found.name, [one.tp_rank for one in found.ranks]) == (CLASSES[kind], [victim]), found
    assert found.counts["read"] >= WORLD - 1
    print(kind, victim, found.evidence)
