"""A gang of two nodes in a lab, through its troubles: what an operator sees must not depend on the engine."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from tests.contract.contract import REAL, STAND_IN, VLLM, Scenario, See
from tests.contract.under_test import EngineUnderTest, named
from tests.support.load import Stream, answered, complete
from tests.support.small_lab import SmallLab, small_lab
from tests.support.waiting import until

from l40s_lab.engine.model import CANARY_PROMPT, CANARY_TEXT

_FAIL_S = 60.0
"""From a process's death to a gang without a process."""
_HUNG_S = 300.0
"""Several probes of a leader that does not answer."""
_WRONG = {"flag-unknown": ("--no-such-flag",), "flag-value": ("--attention-backend", "nonsense")}
_LISTENER = 'import socket, time; held = socket.create_server(("", 8000)); time.sleep(600)'
_STREAMS = 2


@dataclass(frozen=True)
class _Family:
    """How an engine is told from outside.

    lab:    as `lab up --engine` calls it
    rank:   pgrep's pattern of a rank's title
    between: the same of the process between clients and ranks, on the leader
    tokens: of a generation that outlasts a kill, and the checks before a restart, but not the drain
    """

    lab: str
    rank: str
    between: str
    tokens: int

    def launcher(self, lab: SmallLab, node: str) -> int:
        """Whoever started the others: their parent."""
        first = self.between if node == "node0" else self.rank
        return int(lab.on(node, f"ps -o ppid= -p $(pgrep -of '{first}')"))


_SGLANG = _Family("sglang", "^sglang::scheduler_TP", "^sglang::detokenizer", 400)
_FAMILIES = {
    STAND_IN: replace(_SGLANG, lab="standin", tokens=1500),
    REAL: _SGLANG,
    VLLM: _Family("vllm", "^VLLM::Worker", "^VLLM::EngineCore", 300),
}
_VICTIMS: dict[str, tuple[str, Callable[[_Family, SmallLab], int], bool]] = {
    "rank-worker": ("node1", lambda _, lab: lab.rank(1)[1], False),
    "rank-leader": ("node0", lambda _, lab: lab.rank(0)[1], True),
    "launcher-leader": ("node0", lambda family, lab: family.launcher(lab, "node0"), False),
    "launcher-worker": ("node1", lambda family, lab: family.launcher(lab, "node1"), True),
    "between": ("node0", lambda family, lab: int(lab.on("node0", f"pgrep -of '{family.between}'")), False),
}
"""Name -> its node, its process id, and whether requests run when it is killed."""


def _play(engine: EngineUnderTest, see: See) -> None:
    family = _FAMILIES[engine.maker.name]
    with small_lab("gang-contract", engine=family.lab, gpus=1) as lab:
        _refused(lab, see)
        lab.serve()
        _served(lab, see)
        for name, (node, find, busy) in _VICTIMS.items():
            _killed(lab, f"kill-{name}", node, find(family, lab), family.tokens * busy, see)
            if name != "between":
                lab.serve()
        _guarded(lab, see)
        _hung(lab, see)
        _drained(lab, family.tokens, see)
        lab.deploy("down")
        see("left", lab.engine_processes() or "nothing")


def _refused(lab: SmallLab, see: See) -> None:
    """Before anything starts."""
    for name, words in _WRONG.items():
        done = lab.deploy("up", "--model", lab.model, "--", *words, code=None)
        cause = lab.gang()["cause"] or {"signature": "nothing started"}
        see(name, f"exit code {done.returncode}, {cause['signature']}")
    holder = lab.on("node0", f"setsid python3 -c '{_LISTENER}' </dev/null >/dev/null 2>&1 & echo $!").strip()
    until(lambda: lab.on("node0", "ss -Hltn sport = :8000"), _FAIL_S, "the port is taken")
    taken = lab.deploy("up", "--model", lab.model, code=None, timeout=_HUNG_S)
    see("port-taken", f"exit code {taken.returncode}, {lab.engine_processes() or 'nothing started'}")
    lab.on("node0", f"kill {holder}")


def _served(lab: SmallLab, see: See) -> None:
    gang = lab.gang()
    see("up", gang["state"])
    see("ranks", _ranks(gang))
    see("phases", " > ".join(gang["start"]["phases"]))
    see("text", complete(gang["service"]["url"], lab.model, CANARY_PROMPT, len(CANARY_TEXT)))
    body = {"model": "nobody", "prompt": "a", "max_tokens": 2}
    with answered(f"{gang['service']['url']}/v1/completions", body) as answer:
        see("other-name", named(str(answer.status), answer.read()))


def _ranks(gang: dict[str, Any]) -> str:
    each = ((node["name"], rank) for node in gang["nodes"] for rank in node["ranks"])
    return ", ".join(f"{name} TP{rank['tp_rank']} {rank['state']}" for name, rank in each)


def _killed(lab: SmallLab, name: str, node: str, pid: int, tokens: int, see: See) -> None:
    running = _requests(lab, tokens) if tokens else []
    lab.on(node, f"kill -KILL {pid}")
    gang = until(lambda: (seen := lab.gang())["state"] == "failed" and seen, _FAIL_S, "the gang counts as failed")
    until(lambda: not lab.engine_processes(), _FAIL_S, "no process of the engine is left")
    cause = gang["cause"]
    who = re.sub(r" \(pid \d+\)", "", cause["text"]) if cause["tp_rank"] is None else f"TP{cause['tp_rank']}"
    see(name, f"{cause['node']}, {who}, signal {cause['signal']}")
    for one in running:
        one.ended()


def _requests(lab: SmallLab, tokens: int) -> list[Stream]:
    """Long ones, under way."""
    url = str(lab.gang()["service"]["url"])
    return [Stream.of(url, lab.model, tokens).under_way() for _ in range(_STREAMS)]


def _guarded(lab: SmallLab, see: See) -> None:
    done = lab.deploy("guard", "--once", code=None, timeout=_HUNG_S)
    see("guard", f"exit code {done.returncode}, {lab.gang()['state']}")


def _hung(lab: SmallLab, see: See) -> None:
    """A rank stands still while requests come."""
    node, pid = lab.rank(1)
    lab.on(node, f"kill -STOP {pid}")
    until(lambda: "TP1 stopped" in _ranks(lab.gang()), _FAIL_S, "TP1 is stopped")
    see("stopped", "node1 TP1 stopped")
    until(lambda: lab.gang()["trouble"] == "hung", _HUNG_S, "the gang counts as hung")
    see("hung", "hung")
    done = lab.deploy("guard", "--once", code=None, timeout=_HUNG_S)
    gang = lab.gang()
    see(
        "hung-guard", f"exit code {done.returncode}, {gang['state']}, {'same' if lab.rank(1)[1] == pid else 'new'} rank"
    )


def _drained(lab: SmallLab, tokens: int, see: See) -> None:
    before, running = lab.gang(), _requests(lab, tokens)
    done = lab.deploy("restart", code=None, timeout=_HUNG_S)
    gang = lab.gang()
    see("restart", f"exit code {done.returncode}, {gang['state']}, new run {gang['run_id'] != before['run_id']}")
    see("drain", ", ".join(one.ended() for one in running))


GANG = Scenario(name="gang", play=_play, runs="lab", vllm=True)
