"""A skipped collective on two GPUs, and the class of hang that the product names: `python -m tests.gpu.hangs FILE`.

The ranks are a program of their own (nccl_ranks.py) over NCCL; what is gathered and judged is what an agent gathers and
a controller judges. --python: one that has torch, --device cpu: a rehearsal over gloo.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from tests.gpu.nccl_ranks import WORLD
from tests.gpu.stage import Otherwise, Stage, engine_python
from tests.support.gang import Cluster
from tests.support.ports import free_port

from l40s_lab.processes import wait_until
from orchestrator.gang.hangs import HangEvidence, classify
from orchestrator.node.agent.staged_run import run_of
from orchestrator.node.engine import ras
from orchestrator.node.engine.hang_inquiry import HangQuestion
from orchestrator.node.engine.hang_look import Gathering
from orchestrator.protocol.hang import HangLook

KINDS = {"eager": "HANG-DIVERGED", "in a graph": "HANG-UNKNOWN", "a replay": "HANG-DIVERGED"}
"""What is skipped, and the class that its evidence shows: NCCL does not count what is captured in a graph."""
PROGRAM = Path(__file__).with_name("nccl_ranks.py")
STARTS_S = 90.0
SETTLES_S = 4.0
"""After both have begun their last step: what can go on has."""


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.gpu.hangs", description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--kinds", default=",".join(KINDS))
    args = parser.parse_args(words)
    found = []
    for kind in args.kinds.split(","):
        for victim in range(WORLD):
            found.append(seen(kind, victim, args.python, args.device))
            print(json.dumps({key: value for key, value in found[-1].items() if key != "look"}), flush=True)
            args.file.write_text(json.dumps(found, indent=1))
    return 0


def played(stage: Stage, _: object = None) -> tuple[str, dict[str, Any]]:
    """Each kind with either rank as the victim, by the engine's torch and NCCL; raises Otherwise for another class."""
    stage.run("down", "--all", "--now")
    found = [seen(kind, victim, engine_python(real=True), "cuda") for kind in KINDS for victim in range(WORLD)]
    told = "; ".join(f"{one['kind']}, TP{one['victim']}: {one.get('class', 'failed')}" for one in found)
    figures = {f"{one['kind']}, TP{one['victim']}": one for one in found}
    if any(one.get("class") != KINDS[one["kind"]] for one in found):
        raise Otherwise(told, **figures)
    return told, figures


def seen(kind: str, victim: int, python: str, device: str) -> dict[str, Any]:
    """One gang, from its start to its end."""
    address = f"127.0.0.1:{free_port()}"
    environment = {**os.environ, "NCCL_RAS_ADDR": address, "NCCL_DEBUG": "VERSION", "NCCL_NVLS_ENABLE": "0"}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        log = (folder / "log").open("w")
        words = [python, str(PROGRAM), name, kind, str(victim)]
        ranks = [
            subprocess.Popen([*words, str(rank), device], env=environment, stdout=log, stderr=log)
            for rank in range(WORLD)
        ]
        try:
            stand = wait_until(
                lambda: all((folder / f"stands-{rank}").exists() for rank in range(WORLD)), deadline_s=STARTS_S
            )
            if not stand or any(rank.poll() is not None for rank in ranks):
                return {"kind": kind, "victim": victim, "failed": (folder / "log").read_text()[-600:]}
            time.sleep(SETTLES_S)
            look = gathered(folder, [rank.pid for rank in ranks], device, address)
            answer = _ras(address) if device == "cuda" else ""
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    hang = classify(HangEvidence(looks={look.node: look}))
    named = [one.tp_rank for one in hang.ranks]
    return {
        "kind": kind, "victim": victim, "class": hang.name, "ranks": named, "evidence": hang.evidence,
        "counts": hang.counts, "nccl": look.facts.nccl, "took_s": look.took_s, "look": look.as_json(), "ras": answer,
    }  # fmt: skip


def gathered(folder: Path, pids: list[int], device: str, address: str) -> HangLook:
    """As the agent of one node with both GPUs does it."""
    own = subprocess.run(["hostname", "-I"], capture_output=True, text=True, check=True).stdout.split()
    changes = {
        "device": device,
        "gpus": list(range(WORLD)),
        "network": {"ras": address},
        "addresses": dict.fromkeys(own, "node0"),
    }
    cluster = Cluster(folder / "gang", nodes=1, changes={-1: changes})
    asked = run_of(cluster.staging(0), str(folder))
    return Gathering(asked, HangQuestion(tuple(enumerate(pids)), os.getpid())).look()


def _ras(address: str) -> str:
    """As NCCL says it."""
    try:
        return ras.status(address)
    except (OSError, ValueError) as error:
        return f"no answer: {error}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
