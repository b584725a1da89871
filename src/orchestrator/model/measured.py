"""What `sweep` measured of a model on a gang: candidates, what became of each, and which is the best for a load."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import field
from enum import Enum

from orchestrator.protocol.message import Message, schema
from orchestrator.protocol.planned import Layout
from orchestrator.protocol.staging import Asked

FORMAT = 1


class CandidateState(str, Enum):
    """MEASURED: at every load; FAILED: it did not start, answered wrong or broke; REFUSED: no plan can be made of it;
    LEFT: not measured, for want of time or not yet."""

    MEASURED = "measured"
    FAILED = "failed"
    REFUSED = "refused"
    LEFT = "left"


@schema(frozen=True, slots=True, kw_only=True)
class SweepLoad(Message):
    """What is asked of each candidate. requests: how many at once, a measurement each; input, output: tokens of each
    request; dataset: whose prompts, as benchmark records name it"""

    requests: tuple[int, ...]
    input: int
    output: int
    dataset: str


@schema(frozen=True, slots=True, kw_only=True)
class LoadPoint(Message):
    """One load of one candidate: the mean of `runs` runs.

    tok_s:   tokens a second that all requests got together, their prompts' time included
    decode_tok_s: the same from the last first token to the first end; None where the client does not tell
    ttft_ms, itl_ms: medians, to the first token and between tokens
    noise:   half of the interval that the runs leave for the mean of tok_s, as a share of it (90 of 100 cases)
    """

    requests: int
    tok_s: float
    ttft_ms: float
    itl_ms: float
    decode_tok_s: float | None = None
    runs: int
    noise: float


@schema(frozen=True, slots=True, kw_only=True)
class Candidate(Message):
    """One way to serve the model.

    id:       unique among those of a model on a gang: `tp32`, `pp4,tp8+kv=fp8`
    file:     the model's profile where it was named by its file, '' where by its name
    named:    the layout's name in the profile, '' for degrees
    settings: what differs from the plan's own choice, by the names of `--vary`
    args:     the same as the engine's flags
    expected: tokens a second by requests at once, calculated for the layout; empty where nothing can be said
    """

    id: str
    model: str
    file: str = ""
    layout: Layout
    named: str = ""
    settings: Mapping[str, str] = field(default_factory=dict)
    args: tuple[str, ...] = ()
    expected: Mapping[str, float] = field(default_factory=dict)


@schema(frozen=True, slots=True, kw_only=True)
class CandidateResult(Message):
    """What is known of a candidate.

    cause:   why it is not measured, with its id where it has one; '' where it waits for its turn
    plan_id: of the plan that it was started with, or would be; '' where there is none
    start_s: from nothing to ready; None where it was ready before or did not come up
    seconds: that it took in all
    stand_in: no real model answered
    """

    candidate: Candidate
    state: CandidateState = CandidateState.LEFT
    cause: str = ""
    plan_id: str = ""
    kv_tokens: int | None = None
    start_s: float | None = None
    seconds: float = 0.0
    points: tuple[LoadPoint, ...] = ()
    stand_in: bool = False

    @property
    def waits(self) -> bool:
        """Its turn is still to come."""
        return self.state is CandidateState.LEFT and not self.cause

    def point(self, requests: int) -> LoadPoint | None:
        """What was measured at this load."""
        return next((point for point in self.points if point.requests == requests), None)


@schema(frozen=True, slots=True, kw_only=True)
class NetworkTrial(Message):
    """All-reduces over all ranks with some variables of the network's library, without an engine.

    reduces_us: microseconds by bytes; cause: why there are none
    """

    name: str
    env: Mapping[str, str] = field(default_factory=dict)
    reduces_us: Mapping[str, float] = field(default_factory=dict)
    cause: str = ""


@schema(frozen=True, slots=True, kw_only=True)
class SweepRecord(Message):
    """One sweep as this machine keeps it.

    addresses: how SSH reaches the gang's nodes
    results:   in the order in which they are measured
    trials:    of the network, in theirs
    before:    what the gang was asked to serve when the sweep stopped it, and the plan's id; None and '' for nothing
    started:   ids of plans that the sweep itself has started
    kept:      the candidate that the gang was left with, `before`, or '' while it goes on or where nothing serves
    """

    format: int = FORMAT
    gang: str
    addresses: tuple[str, ...]
    model: str
    stack: str
    load: SweepLoad
    results: tuple[CandidateResult, ...] = ()
    trials: tuple[NetworkTrial, ...] = ()
    before: Asked | None = None
    before_plan: str = ""
    started: tuple[str, ...] = ()
    kept: str = ""
    at: float = 0.0


BEFORE = "before"
"""`SweepRecord.kept` where the gang serves again what it served before."""


def best(results: Iterable[CandidateResult], requests: int) -> CandidateResult | None:
    """The measured candidate with the most tokens a second at this load; None where none was measured at it."""
    measured = (result for result in results if result.state is CandidateState.MEASURED and result.point(requests))
    return max(measured, key=lambda result: speed(result, requests), default=None)


def speed(result: CandidateResult, requests: int) -> float:
    """Tokens a second at this load; 0 where it was not measured."""
    point = result.point(requests)
    return point.tok_s if point is not None else 0.0


def nearest_load(results: Iterable[CandidateResult], requests: int) -> int | None:
    """The measured load that says most about so many requests: this one, else the next larger one, else the largest.
    None where nothing was measured."""
    known = {point.requests for result in results if result.state is CandidateState.MEASURED for point in result.points}
    return min((load for load in known if load >= requests), default=max(known, default=None))
