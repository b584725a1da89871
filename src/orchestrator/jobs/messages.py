"""A program that a controller has run on a node: a network test, tuners, checks of kernels, a benchmark's client."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from orchestrator.protocol.message import Message, schema
from orchestrator.protocol.staging import StagingRequest
from orchestrator.protocol.verbs import GangRequest

NEVER = r"(?!)"
"""The pattern that nothing matches."""
RESULTS = "3"
"""The open file that the program's own lines go to, one JSON object each."""


@schema(frozen=True, slots=True, kw_only=True)
class JobOrder(Message):
    """One node's part.

    word:    names its folder and container; noun: the job in messages
    run:     in the engine's place, as for an engine: whose user, rights and environment the program has; None: beside
             the engine that runs here, as it was staged
    files:   {name: text} in a folder of its own, which it runs in and which goes with it
    modules: likewise, where the environment has none of this name
    command: of the environment's Python
    env:     on top of the engine's; key: the variable that holds the gang's API key, '' for none
    result:  name of the file whose text is told at the end, '' for none
    progress, engine_log: patterns of (done, of) in its output, and of the engine's log lines that are told as numbers
    beside, too_long: fixes, for an engine that runs and for a passed deadline
    spared: whether an engine of this gang may run meanwhile: what is to be used here is not the engine's
    """

    word: str
    noun: str
    run: StagingRequest | None = None
    files: Mapping[str, str] = field(default_factory=dict)
    modules: Mapping[str, str] = field(default_factory=dict)
    command: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    key: str = ""
    result: str = ""
    progress: str = NEVER
    engine_log: str = NEVER
    deadline_s: float
    beside: str = ""
    too_long: str
    spared: bool = False


@schema(frozen=True, slots=True, kw_only=True)
class JobRequest(GangRequest):
    """With the gang's lock, for what runs in the engine's place."""

    order: JobOrder


@schema(frozen=True, slots=True, kw_only=True)
class JobLine(Message):
    """One line of a node; each job adds what its program says.

    answered, of: how far it is; result: a part of its file; decoded: of the engine's log
    log:   NCCL's lines of its output, in parts
    ended: exit status, after all else; what: the last words of its output where that is not 0
    """

    answered: int | None = None
    of: int = 0
    result: str = ""
    decoded: tuple[tuple[float, ...], ...] = ()
    log: str = ""
    ended: int = -1
    what: str = ""
