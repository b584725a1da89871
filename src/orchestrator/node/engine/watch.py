"""Reads an engine's log lines with the patterns that came with the run: phases, causes, tracebacks, whose a line is.

It contains nothing about particular engines. Pure: lines and times in, phase and suspicions out.
"""

from __future__ import annotations

import math
import re
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from orchestrator.protocol.errors import DeployError
from orchestrator.protocol.report import Phase
from orchestrator.protocol.staging import CausePattern, Watch

_BEGIN = "Traceback (most recent call last)"
_CHAINED = ("During handling of the above exception", "The above exception was the direct cause")
UNRAISED = "Exception ignored in"
"""Python's words for what a destructor or a callback raised: it ends nothing (sys.unraisablehook)."""
_FRAME = re.compile(r'^\s{0,16}File "([^"]{1,512})", line (\d{1,7})')
_RAISED = re.compile(
    r"^(?:(?:[A-Za-z_]\w{0,63}\.){1,8}\w{1,64}|\w{0,64}(?:Error|Exception|Warning|Interrupt|Exit|Iteration|Group"
    r"|Unsupported|Timeout|Fault|Failure|Failed|Expired|NotFound|Abort)\w{0,64})(?:: |:?$)"
)
"""An exception's class: with its module, or one of Python's own; not any other word before a colon (`srun: error:`)."""
ASSERTS = re.compile(r"^\s{0,16}(assert \S.{0,200})")
"""The line of code of an assertion, below its frame."""
_THROWN = re.compile(r"^ {1,4}what\(\): {1,4}(?=\S)")
"""Of an exception of C++ that nobody catches (std::terminate of GCC's library)."""
_RECORD = re.compile(r"^\[")
"""A logger's line begins with its time in brackets."""


@dataclass(frozen=True)
class RankException:
    """An exception that ended a traceback. text: `Class: words`; file: `path:line` of its innermost frame, or ''."""

    tp_rank: int | None
    text: str
    file: str
    at: float

    @property
    def words(self) -> str:
        """The exception, and where it was raised."""
        return f"{self.text} ({self.file})" if self.file else self.text


def with_code(exception: str, code: str) -> str:
    """An assertion without words tells nothing but its line of code. code: '' where that was not told."""
    bare = exception.rstrip().rstrip(":")
    return f"{bare}: {code.rstrip(' ,(')}" if code and bare == "AssertionError" else exception


@dataclass
class Tracebacks:
    """Feed it the lines of a log in order.

    A rank's logger writes its prefix only before the first line; the lines that follow belong to the same rank.
    """

    raised: RankException | None = None
    """The newest exception."""
    _open: bool = False
    _chained: bool = False
    _owner: int | None = None
    _file: str = ""
    _code: str = ""
    """What the innermost frame asserts."""
    _speaker: str = ""
    _unraised: bool = False

    def _begin(self, tp_rank: int | None) -> None:
        if tp_rank is not None or not (self._open or self._chained):
            self._owner = tp_rank
        self._open, self._chained, self._file, self._code = True, False, "", ""

    def feed(self, line: str, tp_rank: int | None, now: float, speaker: str = "") -> int | None:
        """Take a line; tp_rank: from its own prefix; speaker: who marks each of its lines, which are not mixed with
        those of others. Returns the rank that the line belongs to."""
        if self._is_passed_over(line) or (speaker != self._speaker and _BEGIN not in line):
            return tp_rank
        self._speaker = speaker
        if _BEGIN in line:
            self._begin(tp_rank)
            return self._owner
        if line.startswith(_CHAINED):
            self._chained = True
            return self._owner
        self._chained = self._chained and not line.strip()  # a line is empty between the two
        if thrown := _THROWN.match(line):
            self.raised = RankException(tp_rank, line[thrown.end() :], "", now)
            return tp_rank
        if not self._open or _RECORD.match(line):
            self._open = False
            return tp_rank
        self._in_traceback(line, now)
        return self._owner

    def _in_traceback(self, line: str, now: float) -> None:
        """A frame, what it asserts, or the exception at the end."""
        if frame := _FRAME.match(line):
            self._file, self._code = f"{frame[1]}:{frame[2]}", ""
        elif code := ASSERTS.match(line):
            self._code = code[1]
        elif _RAISED.match(line):
            self._open = False
            self.raised = RankException(self._owner, with_code(line, self._code), self._file, now)

    def _is_passed_over(self, line: str) -> bool:
        """Whether it begins what Python tells of an exception that nobody could catch."""
        begins, before = line.startswith(UNRAISED), self._unraised
        self._unraised = begins or (before and not line.strip())
        if begins or (before and _BEGIN in line):
            self._open = False
            return True
        return False


LINES_KEPT = 60
TOLD_LATE_S = 5.0
"""The news that an engine is ready may reach its worker nodes this late; something may have failed since."""
SUSPECT_FOR_S = 30.0
"""A known cause's line counts as the reason for a death at most this long after it."""
_BLANK = re.compile(r"\s")
MOST_DIGITS = 9
EXCEPTION = "EXCEPTION"
"""Signature of an exception that no pattern knows."""
LINES_SHOWN = 8
MOST_WORDS = 400
"""Characters of an exception that are shown with its kind."""
LONGEST_SHOWN = 2048
"""Characters of a line that are searched and kept: LINES_SHOWN of them fit into one message of the leader link
(LONGEST_MESSAGE in node/network/wire.py) even where JSON needs 12 bytes for each."""


@dataclass(frozen=True)
class Suspicion:
    """A log line that matched a known cause. tp_rank: the rank that wrote it, None if the line does not say."""

    id: str
    text: str
    fix: str
    secondary: bool
    weak: bool
    tp_rank: int | None
    at: float
    lines: tuple[str, ...]
    raised: bool = False
    """It is an exception, of a known kind or not: a later one of the same process replaces it."""


NEVER = re.compile(r"(?!)")
"""What no line matches: an engine says nothing of the kind."""


@dataclass(frozen=True)
class KnownCause:
    """A cause's pattern, ready to search. after: what one of the last lines must have, and unless: none of them."""

    entry: CausePattern
    pattern: re.Pattern[str]
    after: re.Pattern[str]
    unless: re.Pattern[str]


@dataclass
class LogWatch:
    """Follows one engine's log. Feed it lines in order; read `phase` and call `suspect`."""

    phases: Sequence[tuple[str, re.Pattern[str]]] = ()
    causes: Sequence[KnownCause] = ()
    raised: Sequence[tuple[re.Pattern[str], CausePattern]] = ()
    pointers: re.Pattern[str] = NEVER
    remarks: Sequence[tuple[re.Pattern[str], CausePattern]] = ()
    proofs: Sequence[tuple[re.Pattern[str], CausePattern]] = ()
    """Features that the plan asks for and that the log has neither confirmed nor denied yet."""
    rank_prefix: re.Pattern[str] = NEVER
    record: re.Pattern[str] = NEVER
    requests: re.Pattern[str] = NEVER
    harmless: re.Pattern[str] = NEVER
    own: re.Pattern[str] = NEVER
    work: re.Pattern[str] = NEVER
    pause: re.Pattern[str] = NEVER
    phase: Phase = field(default_factory=Phase)
    remarked: list[str] = field(default_factory=list)
    """Log lines about lost speed that end nothing, each once, with a fix."""
    proved: list[str] = field(default_factory=list)
    """Features that the plan asks for and that the log confirms."""
    _position: int = -1
    tracebacks: Tracebacks = field(default_factory=Tracebacks)
    _recent: deque[tuple[int | None, str]] = field(default_factory=lambda: deque(maxlen=LINES_KEPT))
    """(rank that wrote it, None if unknown; the line)"""
    _suspicions: list[Suspicion] = field(default_factory=list)
    _raised: RankException | None = None
    _own: str = ""
    """How this node's ranks connect, as the log tells it: 'bond0 10.0.0.3'."""

    @classmethod
    def of(cls, watch: Watch) -> LogWatch:
        """From a dialect's watch data; a pattern that does not compile is a DeployError."""
        works = "|".join(f"(?:{pattern})" for pattern in (watch.probe.log, watch.probe.resumed) if pattern)
        return cls(
            phases=[(entry.phase, _compiled(entry.pattern)) for entry in watch.phases],
            causes=[
                KnownCause(entry, _compiled(entry.pattern), _compiled(entry.after), _compiled(entry.unless))
                for entry in watch.causes
            ],
            raised=[(_compiled(entry.pattern), entry) for entry in watch.raised],
            pointers=_compiled(watch.pointers),
            remarks=[(_compiled(entry.pattern), entry) for entry in watch.remarks],
            proofs=[(_compiled(entry.pattern), entry) for entry in watch.proofs],
            rank_prefix=_compiled(watch.rank_prefix),
            record=_compiled(watch.record),
            requests=_compiled(watch.requests),
            harmless=_compiled(watch.harmless),
            own=_compiled(watch.own),
            work=_compiled(works),
            pause=_compiled(watch.probe.pause),
        )

    def begin(self, now: float) -> None:
        """The engine was started: the first phase begins."""
        if self.phases:
            self._enter(0, now)

    def finish(self, now: float, lasting: re.Pattern[str] = NEVER) -> None:
        """The engine is ready: earlier log lines explain no later death, except those of the last seconds and those
        that `lasting` finds."""
        self._suspicions = [
            suspicion
            for suspicion in self._suspicions
            if now - suspicion.at <= TOLD_LATE_S or any(map(lasting.search, suspicion.lines[-1:]))
        ]
        if self.phase.name != "ready":
            self.phase = Phase(name="ready", since=now)
        self._position = len(self.phases)

    def feed(self, line: str, now: float, *, plain: bool = False, quiet: bool = False) -> bool:
        """Take one line; True if the phase or its step changed. Only the beginning of a long line is searched.

        plain: it is known to match no pattern but a rank's prefix; quiet: no cause, remark or proof
        """
        if plain and len(line) <= LONGEST_SHOWN:
            owner = self.tracebacks.feed(line, self._rank_of(line), now)
            self._recent.append((owner, line))
            if self._suspicions or self.tracebacks.raised is not self._raised:
                self._look_for_exceptions(owner, now, known=False)
            return False
        if self._is_a_clients(line):
            return False
        line = shown(line)
        record = self.record.match(line)
        words, speaker = (line[record.end() :], record["speaker"]) if record else (line, "")
        owner = self.tracebacks.feed(words, self._rank_of(line), now, speaker)
        self._recent.append((owner, line))
        if not self._own and (own := self.own.search(line)):
            self._own = f"{own['interface']} {own['address']}"
        if not quiet:
            self._look_for_notes(line)
        known = not quiet and self._look_for_causes(line, owner, now)
        self._look_for_exceptions(owner, now, known=known)
        return self._look_for_phases(line, now)

    def compiles(self, now: float) -> None:
        """A compiler runs below the engine: its phase moves on, though the log shows nothing."""
        self.phase = replace(self.phase, moved=now)

    def announces_pause(self, line: str) -> bool:
        """The line shows that the engine works but will not answer for a while."""
        return not self._is_a_clients(line) and self.pause.search(shown(line)) is not None

    def shows_work(self, line: str) -> bool:
        """The line shows that the engine works on a request."""
        return not self._is_a_clients(line) and self.work.search(shown(line)) is not None

    def _is_a_clients(self, line: str) -> bool:
        """It contains a client's text: a line of the request log, or a fragment of one that arrived in pieces.

        A pipe mixes the lines of several processes if they are longer than PIPE_BUF (pipe(7)).
        """
        if self.requests is NEVER:
            return False
        return bool(self.requests.search(line)) or (len(line) > LONGEST_SHOWN and not _BLANK.search(shown(line)))

    def suspect(self, since: float, tp_rank: int | None = None, until: float = math.inf) -> Suspicion | None:
        """The first primary cause seen between two times, else the first weak one, else the first exception of an
        unknown kind, else the first secondary cause, else None. Within each kind, lines of this rank come before those
        of others."""

        def order(suspicion: Suspicion) -> tuple[bool, bool, bool, bool]:
            others = tp_rank is not None and suspicion.tp_rank != tp_rank
            return suspicion.secondary, suspicion.raised, suspicion.weak, others

        recent = (suspicion for suspicion in self.suspicions(since, until) if self._may_explain(suspicion, tp_rank))
        return min(recent, key=order, default=None)

    def _may_explain(self, suspicion: Suspicion, tp_rank: int | None) -> bool:
        """If ranks mark their lines, an exception of the launcher does not explain a rank's death."""
        launchers = suspicion.raised and suspicion.tp_rank is None
        return not launchers or tp_rank is None or not any(owner is not None for owner, _ in self._recent)

    @property
    def seen(self) -> int:
        """How many suspicions it keeps."""
        return len(self._suspicions)

    def suspicions(self, since: float, until: float = math.inf) -> list[Suspicion]:
        """All that were seen between two times, in order."""
        return [suspicion for suspicion in self._suspicions if since <= suspicion.at <= until]

    def last_lines(self, tp_rank: int | None = None) -> tuple[str, ...]:
        """The newest lines, for a cause without a known signature. For one rank: its own, or all if no line names its
        rank."""
        recent = [(owner, line) for owner, line in self._recent if line.strip()]
        marked = tp_rank is not None and any(owner is not None for owner, _ in recent)
        return tuple(line for owner, line in recent if not marked or owner == tp_rank)[-LINES_SHOWN:]

    def _look_for_phases(self, line: str, now: float) -> bool:
        for position in range(len(self.phases) - 1, max(self._position, 0) - 1, -1):
            match = self.phases[position][1].search(line)
            if match is None:
                continue
            before = (self._position, self.phase.step, self.phase.of)
            if position > self._position:
                self._enter(position, now)
            step, of = _number(match, "step"), _number(match, "of")
            if step is None or of is None:
                step, of = self.phase.step, self.phase.of
            changed = before != (self._position, step, of)
            if changed:
                self.phase = replace(self.phase, step=step, of=of, moved=now if of else self.phase.moved)
            return changed
        return False

    def _enter(self, position: int, now: float) -> None:
        self._position = position
        name = self.phases[position][0]
        if name != self.phase.name:  # several patterns may mark one phase
            self.phase = Phase(name=name, since=now)

    def _look_for_notes(self, line: str) -> None:
        """Remarks and proofs, each once; a remark denies the proof that has its id."""
        if remarked := _matching(self.remarks, line):
            denied = {entry.id for entry in remarked}
            self.remarked += [f"{entry.text}: {entry.fix}" for entry in remarked]
            self.remarks = [remark for remark in self.remarks if remark[1] not in remarked]
            self.proofs = [proof for proof in self.proofs if proof[1].id not in denied]
        if proved := _matching(self.proofs, line):
            self.proved += [entry.text for entry in proved]
            self.proofs = [proof for proof in self.proofs if proof[1] not in proved]

    @property
    def unproved(self) -> list[str]:
        """Features that the plan asks for and that the log neither confirms nor denies, with what to do."""
        return [
            f"the plan asks for {entry.text}, and the engine's log does not show that it is in use: compare its speed"
            " with and without, with `l40s-deploy bench`"
            for _, entry in self.proofs
        ]

    def _forget_old_suspicions(self, now: float) -> None:
        if len(self._suspicions) >= LINES_KEPT:
            self._suspicions = [suspicion for suspicion in self._suspicions if now - suspicion.at <= SUSPECT_FOR_S]

    def _look_for_causes(self, line: str, owner: int | None, now: float) -> bool:
        """True if the line matches a known cause."""
        self._forget_old_suspicions(now)
        for known in self.causes:
            if (match := known.pattern.search(line)) and self._fits(known, owner):
                if self.harmless.search(line):  # last: most lines show no cause
                    return False
                cause = known.entry
                if not self._has_room(cause):
                    return True
                self._suspicions.append(
                    Suspicion(
                        id=cause.id,
                        text=cause.text + self._between(match),
                        fix=cause.fix,
                        secondary=cause.secondary,
                        weak=cause.weak,
                        tp_rank=owner,
                        at=now,
                        lines=tuple(line for whose, line in self._recent if owner in (None, whose))[-3:],
                    )
                )
                return True
        return False

    def _fits(self, known: KnownCause, owner: int | None) -> bool:
        """Whether the line comes after what the cause asks for. Lines of this rank count, and those of nobody."""
        if known.after is NEVER:
            return True
        lines = [line for whose, line in self._recent if owner is None or whose in (None, owner)]
        return any(map(known.after.search, lines)) and not any(map(known.unless.search, lines))

    def _between(self, match: re.Match[str]) -> str:
        """Both ends, where the line names the other one, else the port or GPU that it names."""
        ends = match.groupdict()
        if gpu := ends.get("gpu"):
            return f" (GPU {gpu})"
        peer = next((end for name, end in ends.items() if end and name.startswith("peer")), "")
        own = next((end for name, end in ends.items() if end and name.startswith("own")), "")
        if peer:
            return f" ({own or self._own or 'this node'} to {peer})"
        return f" ({own})" if own else ""

    def _forget_exceptions_of(self, owner: int | None) -> None:
        self._suspicions = [
            suspicion for suspicion in self._suspicions if not suspicion.raised or suspicion.tp_rank != owner
        ]

    def _look_for_exceptions(self, owner: int | None, now: float, *, known: bool) -> None:
        """An exception that no pattern knows is a cause too, if it is the last one that its process has logged."""
        raised = self._root()
        new = raised is not None and raised is not self._raised
        self._raised = raised
        if owner is not None or (new and not known):
            self._forget_exceptions_of(owner)
        if raised is None or not new or known or (owner is None and self.phase.name == "ready"):
            return
        self._suspicions.append(self._of_exception(raised, owner, now))

    def _root(self) -> RankException | None:
        """The newest exception, or the one before it where it only tells of what was told before."""
        raised, told_before = self.tracebacks.raised, self._raised is not None or bool(self._suspicions)
        if raised is not None and raised is not self._raised and told_before and self.pointers.search(raised.text):
            self.tracebacks.raised = self._raised
        return self.tracebacks.raised

    def _of_exception(self, raised: RankException, owner: int | None, now: float) -> Suspicion:
        lines = tuple(line for whose, line in self._recent if owner == whose)[-3:]
        suspicion = partial(Suspicion, tp_rank=owner, at=now, lines=lines, raised=True)
        kind, meaning = self.kind_of(raised.text, raised.file)
        if kind is None:
            return suspicion(
                id=EXCEPTION,
                text=f"engine process exited: {raised.words}",
                fix="no known cause matches: read the traceback with `l40s-deploy logs --around-failure`",
                secondary=False,
                weak=False,
            )
        return suspicion(id=kind.id, text=meaning, fix=kind.fix, secondary=kind.secondary, weak=kind.weak)

    def kind_of(self, text: str, file: str = "") -> tuple[CausePattern | None, str]:
        """The kind of an exception, `Class: words` raised at `path:line`, and what is told of it: its meaning with the
        object that it names, and its own words."""
        place = f"{shown(text)}\n{file}"
        for pattern, kind in self.raised:
            if match := pattern.search(place):
                return kind, f"{kind.text}{self._between(match)}: {text[:MOST_WORDS]}"
        return None, ""

    def _has_room(self, cause: CausePattern) -> bool:
        """A primary cause may replace a secondary one."""
        if len(self._suspicions) < LINES_KEPT:
            return True
        last = next((at for at, suspicion in reversed([*enumerate(self._suspicions)]) if suspicion.secondary), None)
        if cause.secondary or last is None:
            return False
        del self._suspicions[last]
        return True

    def _rank_of(self, line: str) -> int | None:
        match = self.rank_prefix.search(line)
        return _number(match, "tp") if match else None


def _matching(known: Sequence[tuple[re.Pattern[str], CausePattern]], line: str) -> list[CausePattern]:
    return [entry for pattern, entry in known if pattern.search(line)]


def shown(line: str) -> str:
    """A log line in the form that is kept and reported."""
    return line[:LONGEST_SHOWN]


def rank_of_title(title: str, pattern: re.Pattern[str], expected: Sequence[int]) -> int | None:
    """The TP rank of a process of this node, from its title; a single rank may have no number."""
    match = pattern.search(title)
    if match is None:
        return None
    if match.groupdict().get("tp") is None:
        return expected[0] if len(expected) == 1 else None
    number = _number(match, "tp")
    return number if number in expected else None


def _number(match: re.Match[str], name: str) -> int | None:
    """The number in a named group; None if there is none, or if it has more digits than anything here counts to."""
    text = match.groupdict().get(name) or ""
    return int(text) if 0 < len(text) <= MOST_DIGITS and text.isdecimal() else None


def _compiled(pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern) if pattern else NEVER
    except re.error as wrong:
        raise DeployError(
            f"pattern {pattern!r} does not compile: {wrong}", where="watch data", fix="", kind="bad-request"
        ) from None
