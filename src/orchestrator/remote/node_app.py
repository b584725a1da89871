"""Calls the node application: its verbs with a JSON request, its answers as values or as errors.

The application is in ~/.cache/l40s-deploy/ of the user that runs it on the node (after become: that user),
under a name that holds its digest. The first command tries to run it; a node that lacks it says so, gets it over
stdin, proves the digest, and runs it then.
"""

from __future__ import annotations

import json
import shlex
import threading
from collections.abc import Generator, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

from orchestrator.model.deadlines import ANSWER_S
from orchestrator.protocol.errors import Exit, NodeError, Unreachable
from orchestrator.protocol.message import M, Message, Unreadable, parsed
from orchestrator.protocol.verbs import (
    AskAnswer,
    AskRequest,
    GangRequest,
    HttpAnswer,
    LockAnswer,
    LockRequest,
    StagedAnswer,
)
from orchestrator.remote import session as session_limits
from orchestrator.remote.app_archive import App, application
from orchestrator.remote.deadline import Deadline, DeadlinePassed
from orchestrator.remote.session import CommandFailed, CommandResult, Conversant, Conversation, Session

_ABSENT = 121
_DAMAGED = 122
_NO_PYTHON = (126, 127)
"""How a POSIX shell ends when a command cannot be run, or is not there."""

_STAYS = "stay"
"""The role that answers a request a line, with an open end."""
TRIES = 3
"""Of a process that ends without an answer."""
PATIENCE_S = 0.1
"""For another caller's answer: as long as a Python takes to start on a busy node, which is what running alone costs."""
_ABSENT_KIND = "absent"
_SAY_ABSENT = f"""echo '{{"ok":false,"error":{{"kind":"{_ABSENT_KIND}"}}}}'"""
"""The application's answer where there is no application."""

_FOLDER = '"${XDG_CACHE_HOME:-$HOME/.cache}/l40s-deploy"'
_UPLOAD_DEADLINE_S = 60.0
_REFUSAL = b'{"ok":false,"error":'


class NodeRefusal(NodeError):
    """An error that the node application reported. kind: its word for programs, for example port-taken."""

    def __init__(self, what: str, *, where: str, fix: str, kind: str, trace: str = "") -> None:
        super().__init__(what, where=where, fix=fix, kind=kind)
        self.trace = trace
        if kind == "defect":
            self.exit_code = Exit.DEFECT


def call(session: Session, verb: str, request: Message, *, deadline_s: float) -> Any:
    """The value that a verb answers with.

    deadline_s: for the answer, once more where the application had to be delivered first; its login aside
    Raises NodeRefusal for an error that the node tells (its place prefixed by the node's name), NodeError for a
    node that cannot run the application, Unreachable as Session.run does.
    """
    app = application()
    limit = _AnswerLimit(session, verb, deadline_s)
    if (answer := _staying(app, session).ask(app, verb, request, limit)) is not None:
        return _told(session, answer)
    stdin = _request(request)
    if (done := session.run(_run(app, session, verb), stdin=stdin, deadline_s=limit.left())).status == _ABSENT:
        limit.deliver(app)
        done = session.run(_run(app, session, verb), stdin=stdin, deadline_s=limit.left())
    return _value(session, verb, done)


class _AnswerLimit:
    """The time for a verb's answer, whichever way and however often it is asked for."""

    def __init__(self, session: Session, verb: str, seconds: float) -> None:
        self._session, self._verb, self._seconds = session, verb, seconds
        self._deadline = Deadline(seconds)
        self._delivered = False

    def left(self) -> float:
        """Raises Unreachable where nothing is left."""
        try:
            return self._deadline.left() or self._seconds
        except DeadlinePassed:
            name = self._session.spec.name
            what = f"its answer to {self._verb} did not come within {self._seconds:g} s"
            raise Unreachable(what, where=name, fix=f"check that it responds: ssh {name} uptime") from None

    def deliver(self, app: App) -> None:
        """The application, after which the time begins again; once."""
        _deliver(app, self._session)
        if not self._delivered:
            self._deadline = Deadline(self._seconds)
        self._delivered = True


def ask(session: Session, verb: str, request: Message, answer: type[M], *, deadline_s: float) -> M:
    """The answer of a verb, read. Raises as `call` does, and NodeError where it is no such answer."""
    return answer_of(session, verb, call(session, verb, request, deadline_s=deadline_s), answer)


def answer_of(session: Session, verb: str, value: object, answer: type[M]) -> M:
    """The message that a verb's value holds. Raises NodeError where it holds none."""
    if isinstance(message := answer.read(value), Unreadable):
        raise NodeError(
            f"its answer to {verb} can't be read: {message}",
            where=session.spec.name,
            fix="run the command again; if it persists, check the disk and the memory of that node",
        )
    return message


@dataclass(frozen=True, slots=True)
class StreamLimit:
    """total_s: for all lines together; line_s: for the next one. None for no such limit.

    endless: no bound on the bytes of all lines together either, for a caller that keeps none
    """

    total_s: float | None = None
    line_s: float | None = None
    endless: bool = False


FOLLOWED = StreamLimit(endless=True)
"""As long as somebody watches: an engine's log may be silent for days."""


def stream(session: Session, verb: str, request: Message, limit: StreamLimit) -> Iterator[bytes]:
    """Lines that a streaming verb writes, as they come, each with its newline. Raises as `call` does."""
    app = application()
    for delivered in (False, True):
        written = session.stream(
            _run(app, session, verb), stdin=_request(request), deadline_s=limit.total_s, quiet_s=limit.line_s
        )
        try:
            yield from _told_lines(session, written if limit.endless else _bounded(session, verb, written))
        except CommandFailed as failed:
            if delivered or failed.status != _ABSENT:
                raise _cannot_run(session, verb, failed.status, failed.err) from None
            _deliver(app, session)
        else:
            return


def messages(
    session: Session, verb: str, request: Message, kind: type[M], limit: StreamLimit
) -> Generator[M, None, None]:
    """The messages that a streaming verb writes, as they come; what is no JSON object is of no verb.

    Raises as `stream` does, and NodeError for an object that is no such message. When it is closed, the node ends what
    it does.
    """
    for line in stream(session, verb, request, limit):
        raw = parsed(line)
        if isinstance(raw, Mapping):
            yield answer_of(session, verb, raw, kind)


def _bounded(session: Session, verb: str, lines: Iterator[bytes]) -> Iterator[bytes]:
    """What callers collect out of lines is bounded by the lines. Raises NodeError past that."""
    left = session_limits.MOST_OUTPUT
    for line in lines:
        left -= len(line)
        if left < 0:
            raise session_limits.too_much(session.spec.name, verb, session_limits.MOST_OUTPUT)
        yield line


def _run(app: App, session: Session, verb: str) -> str:
    """-E -s -S: no user's modules, and a quicker start; the application needs the standard library only.

    Where it is absent the request is read all the same: sshd ends a connection on which data comes for a channel that
    is closed already (OpenSSH, channels.c), and paramiko may send such (Channel._send lets go of its lock first).
    """
    python = shlex.quote(session.spec.reach.python)
    there = '[ -s "$f" ]'  # a power cut after the delivery leaves it empty
    absent = f"{there} || {{ cat >/dev/null; exit {_ABSENT}; }}"
    if verb == _STAYS:
        absent = f"until {there}; do read -r _ || exit {_ABSENT}; {_SAY_ABSENT}; done"
    return f'f={_FOLDER}/{app.name}; {absent}; exec {python} -EsS "$f" {shlex.quote(verb)}'


def _deliver(app: App, session: Session) -> None:
    """Upload by stdin into a name of its own, check the digest, rename: no reader ever sees half a file."""
    done = session.run(
        f'umask 077; d={_FOLDER}; t="$d/.{app.name}.$$"; mkdir -p "$d" && chmod 700 "$d" && cat >"$t" || '
        '{ rm -f "$t"; exit 1; }; '
        f'set -- $(sha256sum "$t"); [ "$1" = {app.digest} ] || {{ rm -f "$t"; exit {_DAMAGED}; }}; '
        f'mv "$t" "$d/{app.name}"',
        stdin=app.content,
        deadline_s=_UPLOAD_DEADLINE_S,
    )
    if done.status == 0:
        return
    words = _last_line(done.err) or f"status {done.status}"
    if done.status == _DAMAGED:
        words = f"the SHA-256 of the received file differs from the sent one {words if done.err else ''}".strip()
    raise _barred(session) or NodeError(
        f"the node application could not be put into ~/.cache/l40s-deploy: {words}",
        where=session.spec.name,
        fix="give the user a home directory with 1 MiB free, and install the coreutils package",
    )


def _value(session: Session, verb: str, done: CommandResult) -> Any:
    answer = _answer(done.out)
    if answer is None or (done.status != 0 and "error" not in answer):
        raise _cannot_run(session, verb, done.status, done.err or done.out)
    return _told(session, answer)


def _told(session: Session, answer: Mapping[str, Any]) -> Any:
    if answer.get("ok") is True:
        return answer.get("value")
    raise _refusal(session, answer)


@dataclass
class _Staying:
    """The application that keeps running on a node and answers one verb after the other.

    Starting a Python for each costs a node twenty times what a small verb does. Where this way is barred, or another
    caller waits for a longer answer, the verb runs by itself.
    """

    line: Conversation | None
    tries: int = TRIES
    asked: int = 0
    free: threading.Lock = field(default_factory=threading.Lock)

    def ask(self, app: App, verb: str, request: Message, limit: _AnswerLimit) -> dict[str, Any] | None:
        """The answer; None if it can't be had this way."""
        if self.line is None or self.tries <= 0 or not self.free.acquire(timeout=PATIENCE_S):
            return None
        try:
            answer = self._ask(self.line, verb, request, limit)
            if answer is not None and _is_absent(answer):
                limit.deliver(app)
                # the line that tells the shell to look for the application again may still be answered by it
                retries = (self._ask(self.line, verb, request, limit) for _ in range(2))
                answer = next((retry for retry in retries if retry is None or not _is_absent(retry)), None)
            self.tries = TRIES if answer is not None else self.tries - 1
            return answer
        finally:
            self.free.release()

    def _ask(self, line: Conversation, verb: str, request: Message, limit: _AnswerLimit) -> dict[str, Any] | None:
        self.asked += 1
        which = self.asked
        asked = json.dumps({"id": which, "verb": verb, "request": request.as_json()}, separators=(",", ":"))
        answered: list[dict[str, Any]] = []  # parsed once: a look's answer has megabytes

        def answers(line: bytes) -> bool:
            answer = _answer(line)
            if answer is None or (answer.get("id") != which and not _is_absent(answer)):
                return False
            answered.append(answer)
            return True

        line.ask(asked.encode("ascii"), deadline_s=limit.left(), wanted=answers)
        return answered[0] if answered else None


def _is_absent(answer: Mapping[str, Any]) -> bool:
    """The shell's answer; the application's have the id of their request."""
    error = answer.get("error")
    return "id" not in answer and isinstance(error, Mapping) and error.get("kind") == _ABSENT_KIND


_staying_on: WeakKeyDictionary[Session, _Staying] = WeakKeyDictionary()
_making = threading.Lock()


def _staying(app: App, session: Session) -> _Staying:
    with _making:
        staying = _staying_on.get(session)
        if staying is None:
            talks = isinstance(session, Conversant)
            line = session.converse(_run(app, session, _STAYS)) if talks else None  # type: ignore[attr-defined]
            staying = _staying_on[session] = _Staying(line)
        return staying


def _answer(out: bytes) -> dict[str, Any] | None:
    """The JSON object on the last line; a login script may have printed something before it."""
    answer = parsed(out.strip().rsplit(b"\n", 1)[-1])
    return answer if isinstance(answer, dict) and "ok" in answer else None


def _told_lines(session: Session, lines: Iterator[bytes]) -> Iterator[bytes]:
    for line in lines:
        answer = _answer(line) if line.startswith(_REFUSAL) else None
        if answer is not None:
            raise _refusal(session, answer)
        yield line


def _refusal(session: Session, answer: Mapping[str, Any]) -> NodeError:
    raw = answer.get("error")
    error = raw if isinstance(raw, Mapping) else {}
    place = str(error.get("where") or "")
    return NodeRefusal(
        str(error.get("what") or "the node application failed without a message"),
        where=f"{session.spec.name}: {place}" if place else session.spec.name,
        fix=str(error.get("fix") or ""),
        kind=str(error.get("kind") or ""),
        trace=str(error.get("trace") or ""),
    )


def _cannot_run(session: Session, verb: str, status: int, words: bytes) -> NodeError:
    name, python = session.spec.name, session.spec.reach.python
    if status in _NO_PYTHON:
        return _barred(session) or NodeError(
            f"cannot run {python}: {_last_line(words)}",
            where=name,
            fix="install python3 (3.10 or newer), or set ansible_python_interpreter",
        )
    ended = "a signal" if status < 0 else f"status {status}"
    return NodeError(
        f"the node application's verb {verb} ended with {ended} and no answer: {_last_line(words)}",
        where=name,
        fix=f"on the node, try: {python} -c 'import json, zlib', and check `dmesg` for the out-of-memory killer",
    )


def _barred(session: Session) -> NodeError | None:
    """The error if sudo's NOEXEC lets no command start another program, which is tried; else None."""
    reach = session.spec.reach
    if not reach.become or session.run("exec /bin/true", deadline_s=ANSWER_S).status != _NO_PYTHON[0]:
        return None
    return NodeError(
        f"sudo lets commands of {reach.become_user} start no other program (NOEXEC)",
        where=session.spec.name,
        fix=f"write EXEC into the rule on the node: {reach.user or 'USER'} ALL=({reach.become_user}) NOPASSWD: "
        "EXEC: ALL, and no `Defaults noexec` for that user; sudo -l shows both",
    )


def _request(request: Message) -> bytes:
    return json.dumps(request.as_json(), separators=(",", ":")).encode("ascii")


def _last_line(text: bytes) -> str:
    return text.decode("utf-8", "replace").strip().rsplit("\n", 1)[-1][:300]


def ask_lock(session: Session, request: LockRequest) -> LockAnswer:
    """Raises as `ask` does: an answer of other types is that node's failure."""
    return ask(session, "lock", request, LockAnswer, deadline_s=ANSWER_S)


def ask_staged(session: Session, request: GangRequest) -> StagedAnswer:
    """Raises like `ask`: NodeRefusal of the kind `no-run` if nothing was ever staged."""
    return ask(session, "staged", request, StagedAnswer, deadline_s=ANSWER_S)


def ask_http(session: Session, request: AskRequest, *, deadline_s: float) -> tuple[HttpAnswer, ...]:
    """One answer for each of the request's `asks`. Raises as `ask` does."""
    answers = ask(session, "ask", request, AskAnswer, deadline_s=deadline_s).answers
    if len(answers) != len(request.asks):
        raise NodeError(
            f"it answered {len(answers)} of {len(request.asks)} HTTP requests",
            where=session.spec.name,
            fix="run the command again; if it persists, check the disk and the memory of that node",
        )
    return answers
