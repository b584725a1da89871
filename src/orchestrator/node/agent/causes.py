"""Why a node's part of a gang ended: the text (the report's `cause`), and how close that is to the first failure."""

from __future__ import annotations

import enum
import math
import re
import signal
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING

from orchestrator.node.engine.kernel_words import KernelWord
from orchestrator.node.engine.ras_words import RasVerdict
from orchestrator.node.engine.watch import EXCEPTION, SUSPECT_FOR_S, LogWatch, Suspicion
from orchestrator.protocol.link import Account
from orchestrator.protocol.report import Cause

if TYPE_CHECKING:
    from orchestrator.node.engine.tree import ProcessDeath
    from orchestrator.node.supervision import Death


class Weight(enum.IntEnum):
    """How near an account is to the first failure. FOLLOWED: caused by another node's end. UNSURE: may have been (an
    exit with code 0, a signal after the errors of others). SEEN: nothing on that node came before it."""

    FOLLOWED = 1
    UNSURE = 2
    SEEN = 3


@dataclass(frozen=True)
class WeighedCause:
    """One node's account of why its part ends. blames: nodes whose addresses appear in its errors."""

    cause: Cause
    weight: Weight
    blames: tuple[str, ...] = ()

    @property
    def node(self) -> str:
        """The node that ended."""
        return self.cause.node

    def account(self) -> Account:
        """In the form that the leader link carries."""
        return Account(cause=self.cause, weight=int(self.weight), blames=self.blames)

    @classmethod
    def of(cls, account: Account) -> WeighedCause | None:
        """From a message; None if it carries no cause."""
        if account.cause is None:
            return None
        return cls(cause=account.cause, weight=_weight_of(account.weight, account.cause), blames=account.blames)


def _weight_of(weight: int | None, cause: Cause) -> Weight:
    """If the agent sent no weight, it knows only primary and secondary."""
    if weight in list(Weight):
        return Weight(weight)
    return Weight.FOLLOWED if cause.secondary else Weight.SEEN


LINES_SHOWN = 3
"""Lines to keep of a log that does not explain the end: just enough to see how far it got."""

_BY_DEVICES = frozenset(
    {EXCEPTION, "COLLECTIVE-TIMEOUT", "CUDA-CALL-FAILED", "CUDA-LIBRARY", "ENGINE-WATCHDOG", "GPU-DRIVER",
     "GPU-KERNEL-FAULT", "GPU-LOST", "IB-UNREACHABLE", "RDMA-CARD-FAILED", "RDMA-PORT-DOWN", "SHM-GONE"}
)  # fmt: skip
"""Ids in engines/causes.py whose real cause may be a broken GPU, link or memory."""
_ITS_OWN_DEATHS = (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS, signal.SIGTERM)
"""Signals that a rank's death can't explain: after one, the engine's parent exits or kills itself with SIGKILL."""
_ADDRESS = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}|[0-9A-Fa-f]{0,4}(?::[0-9A-Fa-f]{0,4}){2,7}")
"""IPv4 or IPv6. Addresses that don't belong to the gang are found in no inventory."""


def follows(died: ProcessDeath, parents: Death, watch: LogWatch, now: float) -> bool:
    """Whether the parent's death explains that of a process below it. Where the order was not seen: an engine's parent
    that ends its processes logs the reason first; one that is killed, or fails by itself, says nothing of a child."""
    if died.follows is not None:
        return died.follows
    if parents.signal in _ITS_OWN_DEATHS:
        return True
    spoke = [suspicion for suspicion in watch.suspicions(now - SUSPECT_FOR_S) if suspicion.tp_rank is None]
    crashed = died.death.signal not in (None, signal.SIGKILL)
    return (
        not crashed
        and not any(suspicion.secondary for suspicion in spoke)
        and (bool(spoke) or parents.exit_code is None)
    )


def rank_died(node: str, died: ProcessDeath, watch: LogWatch, now: float, nodes: Mapping[str, str]) -> WeighedCause:
    """A process of the engine ended: the log's reason if it gives one, else how it died. nodes: name by address."""
    part, death = died.part, died.death
    plain = f"{part.name} {death.clause()}"
    since = now - SUSPECT_FOR_S
    suspicion = watch.suspect(since, part.number)
    own = suspicion is not None and part.number is not None and suspicion.tp_rank == part.number
    others = suspicion is not None and suspicion.secondary and not own
    if others and death.signal is not None:
        # a signal ended it and it logged nothing, while others of this node logged that a peer is gone. If it was seen
        # alive after that, its parent killed it; else it may be the missing peer
        after = any(suspicion.secondary and suspicion.at <= died.alive_at for suspicion in watch.suspicions(since))
        weight, suspicion = (Weight.FOLLOWED, suspicion) if after else (Weight.UNSURE, None)
    else:
        weight = _weight(suspicion, death)
    cause = _with_suspicion(node, plain, death, part.number, suspicion, watch, now)
    return WeighedCause(cause, weight, blames(watch, since, nodes))


def guardian_ended(node: str, pid: int, death: Death, now: float) -> Cause:
    """The process that starts and ends the engine for the agent is gone, and the engine with it."""
    text = f"the engine's guardian process (pid {pid}) {death.clause()}"
    return Cause(node=node, text=text, fix=_fix(death), at=now, signal=death.signal, exit_code=death.exit_code, pid=pid)


def explained(weighed: WeighedCause, word: KernelWord) -> WeighedCause:
    """The same death with the kernel's reason for it; no earlier failure led to it."""
    cause = replace(
        weighed.cause,
        text=f"{word.text}: {weighed.cause.text}",
        fix=word.fix,
        signature=word.signature,
        lines=(*weighed.cause.lines[-LINES_SHOWN:], word.line),
        secondary=False,
    )
    return replace(weighed, cause=cause, weight=Weight.SEEN)


def explains_itself(cause: Cause) -> bool:
    """Whether the log gives a reason that no broken device can have caused."""
    return bool(cause.signature) and not cause.secondary and cause.signature not in _BY_DEVICES


def engine_ended(
    node: str, death: Death, watch: LogWatch, now: float, nodes: Mapping[str, str], *, leads: bool = False
) -> WeighedCause:
    """The engine's parent process ended by itself. Later log lines are of processes that its end has killed.

    leads: on the leader; its engine is told to end by nobody but this product and, past it, the operator
    """
    suspicion = watch.suspect(now - SUSPECT_FOR_S, until=now)
    plain = f"the engine's parent process {death.clause()}"
    cause = _with_suspicion(node, plain, death, None, suspicion, watch, now)
    weight = Weight.SEEN if leads and suspicion is None else _weight(suspicion, death)
    return WeighedCause(cause, weight, blames(watch, now - SUSPECT_FOR_S, nodes, now))


def blames(watch: LogWatch, since: float, nodes: Mapping[str, str], until: float = math.inf) -> tuple[str, ...]:
    """Nodes whose addresses appear in this node's errors between two nodes, of those between two times, in order."""
    lines = [
        suspicion.lines[-1]
        for suspicion in watch.suspicions(since, until)
        if (suspicion.secondary or suspicion.weak) and suspicion.lines
    ]
    named = (nodes.get(address.strip(".:")) for line in lines for address in _ADDRESS.findall(line))
    return tuple(dict.fromkeys(name for name in named if name is not None))


def followed(node: str, first: Cause, now: float) -> Cause:
    """This node was ended because another one had failed."""
    return Cause(node=node, text=f"stopped because {first.node} failed: {first.text}", at=now, secondary=True)


def hung(
    cause: Cause,
    gang: str,
    ras: RasVerdict | None = None,
    nodes: Mapping[str, str] = MappingProxyType({}),
    *,
    sure: bool = True,
) -> Cause:
    """The engine is alive but makes no progress. cause: by this node, in words of its own

    ras: NCCL RAS's answer, None if it was not queried; nodes: names of the gang's nodes by address; sure: it makes none
    for long enough to be hung. A rank that RAS names is identified by its process: RAS numbers ranks within a
    communicator, which may be only part of the gang.
    """
    culprit = ras.culprit if ras is not None else None
    text = f"the engine {'hangs' if sure else 'may hang'}: {cause.text}" + (f"; {ras.words}" if ras is not None else "")
    fix = (
        "check `l40s-deploy logs`; if a rank is stuck in a collective, run"
        f" `l40s-deploy restart {gang}` (a guard does this automatically)"
    )
    cause = replace(cause, text=text, fix=fix)
    if culprit is None or not (where := nodes.get(culprit.host)):
        return cause
    return replace(cause, node=where, pid=culprit.pid, gpu=culprit.gpu)


def _weight(suspicion: Suspicion | None, death: Death) -> Weight:
    """Exit code 0 was ordered: the engine's leader ends (sglang 0.5: ShutdownReq), and its node says why."""
    if suspicion is not None and suspicion.raised:
        return Weight.UNSURE  # the reason for the order is unknown here
    if suspicion is not None:
        return Weight.FOLLOWED if suspicion.secondary else Weight.SEEN
    return Weight.UNSURE if death.exit_code == 0 else Weight.SEEN


def told_by(node: str, suspicion: Suspicion) -> Cause:
    """What a log line says, by the rank that wrote it."""
    return Cause(
        node=node,
        tp_rank=suspicion.tp_rank,
        signature=suspicion.id,
        text=suspicion.text,
        fix=suspicion.fix,
        lines=suspicion.lines,
        secondary=suspicion.secondary,
    )


def _with_suspicion(
    node: str, plain: str, death: Death, tp_rank: int | None, suspicion: Suspicion | None, watch: LogWatch, now: float
) -> Cause:
    own = Cause(node=node, text=plain, at=now, tp_rank=tp_rank, signal=death.signal, exit_code=death.exit_code)
    if suspicion is None:
        return replace(own, fix=_fix(death), lines=watch.last_lines(tp_rank)[-LINES_SHOWN:])
    signed = replace(told_by(node, suspicion), text=f"{suspicion.text} ({plain})", at=now)
    if suspicion.tp_rank in (None, tp_rank):
        return replace(signed, tp_rank=tp_rank, signal=death.signal, exit_code=death.exit_code)
    return signed  # nobody saw how that process died


def _fix(death: Death) -> str:
    if death.signal == signal.SIGKILL:
        return "it was killed by a user or by the kernel's OOM killer: check `journalctl -k` on that node"
    if death.signal in (signal.SIGSEGV, signal.SIGABRT, signal.SIGBUS):
        return "it crashed in native code: read its last log lines, and check `journalctl -k` for NVRM: Xid"
    return "read the engine's log: `l40s-deploy logs`"


def choose(weighed_causes: Mapping[str, WeighedCause]) -> Cause:
    """The one cause: the account nearest to the first failure. Among equals, one whose errors blame no other node, then
    one whose node is blamed by most, then the first. If all only followed, the node that most of them blame is
    named."""
    told_of = list(weighed_causes.values())
    best = max(weighed.weight for weighed in told_of)
    votes = Counter(blamed for weighed in told_of for blamed in set(weighed.blames))
    if best is Weight.FOLLOWED:
        return _blamed(told_of, votes)
    nearest = [weighed for weighed in told_of if weighed.weight is best]
    return max(nearest, key=lambda weighed: (not set(weighed.blames) - {weighed.node}, votes[weighed.node])).cause


def _blamed(weighed_causes: Sequence[WeighedCause], votes: Counter[str]) -> Cause:
    if not votes:
        return weighed_causes[0].cause
    name = max(votes, key=lambda node: votes[node])
    by = next(weighed for weighed in weighed_causes if name in weighed.blames)
    if name == by.node:
        return by.cause
    text = f"{by.node} lost its connection to {name}: {by.cause.text}"
    return replace(by.cause, node=name, tp_rank=None, signal=None, exit_code=None, text=text)
