"""The gang's verbs: what the controller asks a node's application, and its answers. The reference has the keys.

A checkpoint's and a look's are in jobs.py and looks.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Any

from orchestrator.protocol.message import Message, schema
from orchestrator.protocol.report import AgentState, Cause, ToldError


@schema(frozen=True, slots=True, kw_only=True)
class GangRequest(Message):
    """What every request begins with. state_dir: None for the user's default; gang: '' for all of them.

    run_id: None for the run that was staged last; token: of the gang's lock, which the caller must still hold.
    """

    state_dir: str | None = None
    gang: str = ""
    run_id: str | None = None
    token: str = ""


@schema(frozen=True, slots=True, kw_only=True)
class ArmRequest(GangRequest):
    """deadline_s: what the checks may take."""

    deadline_s: float = 60.0


@schema(frozen=True, slots=True, kw_only=True)
class StopRequest(GangRequest):
    """now: end without draining; clear: forget a failed run's state; ordered: a person wants it to stay ended;
    because: what the run is ended for, which the controller saw and no agent can have seen. run_id: None for whatever
    runs, else that run alone is ended."""

    now: bool = False
    clear: bool = False
    ordered: bool = False
    deadline_s: float = 120.0
    because: Cause | None = None


@schema(frozen=True, slots=True, kw_only=True)
class ReportRequest(GangRequest):
    """Answer as soon as the mark is another one than `seen`, or after wait_s."""

    wait_s: float = 0.0
    seen: str | None = None


@schema(frozen=True, slots=True, kw_only=True)
class LogsRequest(GangRequest):
    """lines: so many of the newest; since_s: of these, from the first that is not older, 0 for all; follow: then those
    to come."""

    lines: int = 100
    follow: bool = False
    since_s: float = 0.0


@schema(frozen=True, slots=True, kw_only=True)
class HistoryRequest(GangRequest):
    """run_id: with that run's events; audit: with who worked on the gang; older: with the runs of 30 days
    of which the report alone is kept."""

    audit: bool = False
    older: bool = False


@schema(frozen=True, slots=True, kw_only=True)
class ExcerptRequest(GangRequest):
    """lines: of the log, in their order; the excerpt is around the last of them."""

    lines: tuple[str, ...] = ()
    before: int = 30
    after: int = 5


@schema(frozen=True, slots=True, kw_only=True)
class HttpRequest(Message):
    """One HTTP request for the node to make. body: JSON text, None for none.

    url: or a path alone: of the service of the request's gang, with the scheme, port and certificate that it was
         started with, whatever an inventory says by now
    authorization: for a server that is none of the request's gang; '' for that gang's own
    """

    method: str = "GET"
    url: str
    body: str | None = field(default=None, repr=False)
    authorization: str = field(default="", repr=False)
    timeout_s: float = 5.0


@schema(frozen=True, slots=True, kw_only=True)
class AskRequest(GangRequest):
    """With a gang, each request carries the API key of that gang's engine. at_once: all at the same time, not one
    after the other."""

    asks: tuple[HttpRequest, ...]
    at_once: bool = False


@schema(frozen=True, slots=True, kw_only=True)
class StageAnswer(Message):
    """folder: of the run, on the node; checkpoint: as `check` says it."""

    folder: str
    checkpoint: Mapping[str, str] = field(default_factory=dict)


@schema(frozen=True, slots=True, kw_only=True)
class CheckAnswer(Message):
    """Of `check`: what `arm` would refuse, and what tells this node's checkpoint from another one: a digest by file
    name, of those files that could be read."""

    refusals: tuple[ToldError, ...] = ()
    checkpoint: Mapping[str, str] = field(default_factory=dict)


@schema(frozen=True, slots=True, kw_only=True)
class StateAnswer(Message):
    """Of `arm` and `go`: the agent's state afterwards."""

    state: AgentState


@schema(frozen=True, slots=True, kw_only=True)
class StopAnswer(Message):
    """state: the agent's afterwards, or absent if nothing was ever staged."""

    state: str
    alive: bool = False
    left_behind: tuple[int, ...] = ()
    """Process ids that would not end."""
    held: tuple[str, ...] = ()
    """GPUs whose memory did not become free, and what holds it, as text."""

    @property
    def clean(self) -> bool:
        """Nothing of ours is left there, as far as the node knows."""
        return not (self.alive or self.left_behind or self.held)


@schema(frozen=True, slots=True, kw_only=True)
class OtherAgent(Message):
    """An agent on the node, with its state in another directory than the one that was asked about.

    node, port: its node's name and the port of its gang's leader; '' and 0 where an older release started it
    user: whose process it is, as it says
    stranger: the user who made it known, by the kernel, where that is neither root nor who was asked: then the rest is
              that user's word, which keeps nobody from anything, and of which no path is advised
    pid: its process id; 0 where that is not asked for
    """

    gang: str
    node: str = ""
    port: int = 0
    state_dir: str
    user: str
    stranger: str = ""
    pid: int = 0

    def what(self, state_dir: str, user: str) -> str:
        """For an operator whose inventory means this directory as this user."""
        if self.stranger:
            return f"a process of user {self.stranger} says that it is the agent of gang {self.gang}"
        ours = f"its state in {self.state_dir} as {self.user}"
        return f"gang {self.gang} runs there, {ours}; this inventory says {state_dir} as {user}"

    def fix(self, user: str) -> str:
        """How to work on it as its own inventory does."""
        if self.stranger:
            return f"ask {self.stranger} for the inventory that it was started with, or to stop it"
        settings = [f"`l40s_state_dir: {self.state_dir}`"]
        if user != self.user:
            settings.insert(0, "`ansible_become: true`" if self.user == "root" else f"user {self.user}")
        how = " and ".join(settings)
        return f"work on it with the inventory that it was started with, or set {how} in this one"


@schema(frozen=True, slots=True, kw_only=True)
class ReportAnswer(Message):
    """now: node's epoch seconds; reports: one a gang, each read on its own; seen: a mark that changes with them.

    begun: names of the gangs on which something was begun that is not finished.
    others: agents of other state directories, where a living one of this directory was not asked about; user: who
    was asked
    without_files: living agents of this directory that no file in it tells of, where the same holds
    """

    now: float
    state_dir: str = ""
    reports: tuple[Any, ...] = ()
    seen: str = ""
    begun: tuple[str, ...] = ()
    others: tuple[OtherAgent, ...] = ()
    user: str = ""
    without_files: tuple[OtherAgent, ...] = ()


@schema(frozen=True, slots=True, kw_only=True)
class HistoryAnswer(Message):
    """reports: one a kept run; events: of the run that was asked for, oldest first; audit: who worked on the gang.
    only_looks: who asks is a viewer there, and may change nothing."""

    now: float
    reports: tuple[Any, ...] = ()
    events: tuple[Mapping[str, Any], ...] = ()
    audit: tuple[Mapping[str, Any], ...] = ()
    only_looks: bool = False


@schema(frozen=True, slots=True, kw_only=True)
class ExcerptAnswer(Message):
    """Lines of the log; marked: the place of the one that was looked for, -1 where the log does not have it."""

    found: bool = False
    lines: tuple[str, ...] = ()
    marked: int = -1


@schema(frozen=True, slots=True, kw_only=True)
class StagedAnswer(Message):
    """request: the staging request without its key, secrets and script."""

    request: Any
    launch_script: str = ""


@schema(frozen=True, slots=True, kw_only=True)
class LockHolder(Message):
    """Who holds a lock; None where a lock does not say. age_s: since the last renewal, held_s: since it was taken, 0
    where that is unknown; both by the node's clock. expires_s: without a renewal; None for the usual 60 s."""

    token: str
    who: str | None = None
    host: str | None = None
    pid: int | None = None
    start: int | None = None
    boot: str | None = None
    pid_namespace: str | None = None
    command: str | None = None
    since: float | None = None
    why: str | None = None
    expires_s: float | None = None
    age_s: float = 0.0
    held_s: float = 0.0
    stale: bool = False

    @property
    def name(self) -> str:
        """`ops@desk (pid 4711)`."""
        return f"{self.who}@{self.host} (pid {self.pid})"


@schema(frozen=True, slots=True, kw_only=True)
class LockRequest(GangRequest):
    """op: acquire, renew, release, begin, finish or show.

    holder: of acquire; over: acquire although this token holds it, its process being dead; force: release whoever holds
    it; begun: of begin, what is kept until finish; node: whose state directory this is, of acquire; ended: of
    release, the error that ended the command.
    """

    op: str
    node: str = ""
    holder: LockHolder | None = None
    over: str = ""
    force: bool = False
    begun: Any = None
    ended: str = ""


@schema(frozen=True, slots=True, kw_only=True)
class LockAnswer(Message):
    """begun: what the holder, or one that was killed, has begun and not finished."""

    held: LockHolder | None = None
    mine: bool = False
    begun: Any = None


@schema(frozen=True, slots=True, kw_only=True)
class HttpAnswer(Message):
    """error: why there is no status; '' where there is one."""

    status: int = 0
    body: str = ""
    error: str = ""

    @property
    def ok(self) -> bool:
        """Status 200."""
        return self.status == 200

    @property
    def words(self) -> str:
        """What went wrong, for an operator: the error, or the status with the beginning of the body."""
        return self.error or f"HTTP {self.status}: {self.body[:200]}"


@schema(frozen=True, slots=True, kw_only=True)
class AskAnswer(Message):
    """In the order of the requests."""

    answers: tuple[HttpAnswer, ...]


ANSWERS: Mapping[str, type[Message]] = {
    "stage": StageAnswer,
    "check": CheckAnswer,
    "arm": StateAnswer,
    "go": StateAnswer,
    "stop": StopAnswer,
    "report": ReportAnswer,
    "history": HistoryAnswer,
    "excerpt": ExcerptAnswer,
    "staged": StagedAnswer,
    "lock": LockAnswer,
    "ask": AskAnswer,
}
"""Of a gang's verbs. tests/support/every_verb.py has all of the application, with what they are asked."""
