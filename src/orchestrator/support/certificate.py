"""A certificate: what one run of `certify` found, as a document that others can check. Pure."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from orchestrator.model.errors import Exit
from orchestrator.model.topology import Topology

FORMAT = 1
STEPS = ("discover", "stack check", "nettest", "up", "bench", "kill", "restart")
"""In their order."""


class StepVerdict(str, Enum):
    """Of one step. DIFFERS: slow, or not as planned, and the next steps run; WRONG: wrong results: no rank is started,
    and none killed; NOT_RUN: it could not be tried, so nothing is known; FAILED: it ended with an error"""

    OK = "ok"
    DIFFERS = "differs"
    NOT_RUN = "not-run"
    WRONG = "wrong"
    FAILED = "failed"
    INTERRUPTED = "interrupted"

    @property
    def ends(self) -> bool:
        """No further step is taken."""
        return self in (StepVerdict.WRONG, StepVerdict.FAILED, StepVerdict.INTERRUPTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class CertifiedStep:
    """One step. result: the document of its verb; error: what, where and fix where it has none"""

    name: str
    verdict: StepVerdict
    seconds: float
    result: Mapping[str, Any] | None = None
    error: Mapping[str, str] | None = None

    def as_json(self) -> dict[str, Any]:
        """With the digest of its result."""
        return {
            "name": self.name,
            "verdict": self.verdict.value,
            "seconds": round(self.seconds, 1),
            "error": self.error,
            "digest": digest(self.result),
            "result": self.result,
        }


def overall(steps: Sequence[CertifiedStep]) -> StepVerdict:
    """The gravest, in the order of StepVerdict; NOT_RUN at least where steps are missing."""
    order = list(StepVerdict)
    found = [one.verdict for one in steps] + [StepVerdict.NOT_RUN] * (len(steps) < len(STEPS))
    return max(found, key=order.index)


def exit_code(verdict: StepVerdict) -> int:
    """7 where something is wrong, slow or not as planned, 3 where a step could not be run. An error has its own."""
    return {StepVerdict.OK: Exit.DONE, StepVerdict.NOT_RUN: Exit.FINDINGS}.get(verdict, Exit.DIFFERS)


def certificate(about: Mapping[str, Any], steps: Sequence[CertifiedStep]) -> dict[str, Any]:
    """The document of `certify`; its `digest` is that of all other keys.

    about: the version, when, what ran on what; its `stand_in` is true where something emulated or an engine without
    GPUs answered, None where that is not known
    """
    document = {
        "format": FORMAT,
        **about,
        "verdict": overall(steps).value,
        "complete": len(steps) == len(STEPS) and all(not one.verdict.ends for one in steps),
        "steps": [one.as_json() for one in steps],
    }
    return {**document, "digest": digest(document)}


def hardware(topologies: Iterable[Topology]) -> dict[str, Any]:
    """How many nodes, GPUs by name and active RDMA ports there are, with their drivers."""
    seen = tuple(topologies)
    return {
        "nodes": len(seen),
        "gpus": dict(Counter(gpu.name for one in seen for gpu in one.gpus)),
        "rdma_ports": sum(port.active for one in seen for port in one.rdma),
        "drivers": sorted({one.driver for one in seen}),
    }


def digest(value: Any) -> str:
    """SHA-256 of a JSON value in one spelling: sorted keys, no spaces."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
