"""Delivery and calls of the node application; a tiny application replaces ours in tests of its answers."""

from __future__ import annotations

import gc
import hashlib
import json
import os
import subprocess
import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import paramiko
import pytest
from tests.support.reference_cluster import gang
from tests.unit.remote.conftest import AS_SUDO, fake_sudo

from orchestrator.model.inventory import NodeSpec, Reach
from orchestrator.protocol.errors import NodeError, Unreachable
from orchestrator.protocol.message import Message
from orchestrator.protocol.verbs import AskRequest, HttpAnswer, HttpRequest, LockRequest
from orchestrator.remote import app_archive, node_app
from orchestrator.remote import session as sessions
from orchestrator.remote.app_archive import App
from orchestrator.remote.local import connect
from orchestrator.remote.session import CommandResult
from orchestrator.remote.ssh_session import SshSession, open_session

from .conftest import Sshd

NOEXEC = Path("/usr/libexec/sudo/sudo_noexec.so")

ANSWERS = """
import json, sys
verb = sys.argv[1]
request = json.load(sys.stdin)
def say(document):
    print(json.dumps(document, separators=(",", ":")), flush=True)
if verb == "echo":
    say({"ok": True, "value": request})
elif verb == "none":
    say({"ok": True, "value": None})
elif verb == "told":
    say({"ok": False, "error": {"kind": "gpu-busy", "what": "GPU 3 is busy", "where": "GPU 3", "fix": "stop pid 7"}})
elif verb == "defect":
    say({"ok": False, "error": {"kind": "defect", "what": "x", "where": "y", "fix": "", "trace": "line"}})
elif verb == "crash":
    sys.exit("out of luck")
elif verb == "chatter":
    print("motd of a login script"); say({"ok": True, "value": 1})
elif verb == "garbage":
    print("{")
elif verb == "lines":
    for number in range(request["count"]):
        print("line", number)
elif verb == "lines-then-told":
    print("line 0", flush=True)
    say({"ok": False, "error": {"kind": "no-run", "what": "no such run", "where": "/x", "fix": "up"}})
"""


@dataclass(frozen=True)
class Raw(Message):
    """Any request."""

    keys: Mapping[str, Any]

    def as_json(self) -> dict[str, Any]:
        return dict(self.keys)


class Counting:
    """A session that counts its commands."""

    def __init__(self, session: SshSession) -> None:
        self._session = session
        self.spec = session.spec
        self.commands = 0

    def run(
        self, command: str | Sequence[str], *, stdin: bytes = b"", deadline_s: float, become: bool | None = None
    ) -> CommandResult:
        self.commands += 1
        return self._session.run(command, stdin=stdin, deadline_s=deadline_s, become=become)

    def stream(
        self,
        command: str | Sequence[str],
        *,
        stdin: bytes = b"",
        deadline_s: float | None,
        quiet_s: float | None = None,
    ) -> Iterator[bytes]:
        self.commands += 1
        return self._session.stream(command, stdin=stdin, deadline_s=deadline_s, quiet_s=quiet_s)

    def close(self) -> None:
        self._session.close()


def in_place(monkeypatch: pytest.MonkeyPatch, source: str) -> App:
    """An application of this source, in place of ours."""
    content = app_archive.build({"__main__.py": source.encode()})
    app = App(content, hashlib.sha256(content).hexdigest())
    monkeypatch.setattr("orchestrator.remote.node_app.application", lambda: app)
    return app


@pytest.fixture
def app(monkeypatch: pytest.MonkeyPatch) -> App:
    return in_place(monkeypatch, ANSWERS)


@pytest.fixture
def session(sshd: Sshd) -> Iterator[Counting]:
    opened = open_session(sshd.spec(), deadline_s=20)
    yield Counting(opened)
    opened.close()


def forget(sshd: Sshd, app: App) -> Path:
    """Remove the application from the node's cache; returns its path."""
    place = sshd.cache / "l40s-deploy" / app.name
    place.unlink(missing_ok=True)
    return place


def test_the_first_call_uploads_and_the_second_does_not(sshd: Sshd, session: Counting, app: App) -> None:
    place = forget(sshd, app)
    request = {"text": "ü \ud800 'x'", "n": [1, None]}
    assert node_app.call(session, "echo", Raw(request), deadline_s=20) == request
    assert session.commands == 3
    assert place.read_bytes() == app.content
    assert place.parent.stat().st_mode & 0o777 == 0o700
    assert [path.name for path in place.parent.iterdir() if path.name.startswith(".")] == []
    assert node_app.call(session, "echo", Raw({}), deadline_s=20) == {}
    assert session.commands == 4


def test_lines_together_are_bounded_where_somebody_may_keep_them(
    session: Counting, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MOST_OUTPUT", 1 << 20)
    with pytest.raises(NodeError, match="`lines` wrote more than 1 MB"):
        list(node_app.stream(session, "lines", Raw({"count": 200_000}), node_app.StreamLimit(total_s=60)))
    assert sum(1 for _ in node_app.stream(session, "lines", Raw({"count": 200_000}), node_app.FOLLOWED)) == 200_000


def test_the_first_stream_uploads_and_the_second_does_not(sshd: Sshd, session: Counting, app: App) -> None:
    forget(sshd, app)
    wanted = [b"line 0\n", b"line 1\n"]
    assert list(node_app.stream(session, "lines", Raw({"count": 2}), node_app.FOLLOWED)) == wanted
    assert session.commands == 3
    assert list(node_app.stream(session, "lines", Raw({"count": 2}), node_app.FOLLOWED)) == wanted
    assert session.commands == 4


@pytest.mark.parametrize(("verb", "value"), [("none", None), ("chatter", 1)])
def test_an_empty_value_is_a_value_and_what_a_login_script_prints_is_passed_over(
    session: Counting, app: App, verb: str, value: object
) -> None:
    assert node_app.call(session, verb, Raw({}), deadline_s=20) == value


@pytest.mark.parametrize(
    ("verb", "told"),
    [
        ("told", ("gpu-busy", "GPU 3 is busy", "node0: GPU 3", "stop pid 7", 3, "")),
        ("defect", ("defect", "x", "node0: y", "", 1, "line")),
    ],
)
def test_a_told_failure_has_the_nodes_name_and_a_defect_is_ours(
    session: Counting, app: App, verb: str, told: tuple[object, ...]
) -> None:
    with pytest.raises(node_app.NodeRefusal) as caught:
        node_app.call(session, verb, Raw({}), deadline_s=20)
    error = caught.value
    assert (error.kind, error.what, error.where, error.fix, error.exit_code, error.trace) == told


def test_a_failure_in_a_stream_comes_after_its_lines(session: Counting, app: App) -> None:
    lines = node_app.stream(session, "lines-then-told", Raw({}), node_app.FOLLOWED)
    assert next(lines) == b"line 0\n"
    with pytest.raises(node_app.NodeRefusal, match="no such run"):
        next(lines)


@pytest.mark.parametrize(("verb", "words"), [("crash", "status 1.*out of luck"), ("garbage", "and no answer: {")])
def test_no_answer_is_told_with_the_last_words(verb: str, words: str, session: Counting, app: App) -> None:
    with pytest.raises(NodeError, match=words):
        node_app.call(session, verb, Raw({}), deadline_s=20)
    if verb == "crash":
        with pytest.raises(NodeError, match=words):
            list(node_app.stream(session, verb, Raw({}), node_app.FOLLOWED))


@pytest.mark.skipif(not NOEXEC.exists(), reason="sudo is not installed")
@pytest.mark.parametrize("there", [True, False])
def test_a_sudo_that_bars_programs_is_told(
    there: bool, start_sshd: Callable[..., Sshd], app: App, tmp_path: Path
) -> None:
    """Where the application is there already, and where it has to be delivered."""
    server = start_sshd(environment=fake_sudo(tmp_path, f'{AS_SUDO} LD_PRELOAD={NOEXEC} exec "$@"'))
    if there:
        plain = open_session(server.spec(), deadline_s=20)
        assert node_app.call(Counting(plain), "none", Raw({}), deadline_s=20) is None
        plain.close()
    session = open_session(server.spec(become=True, become_user="l40s"), deadline_s=20)
    for ask in (
        lambda: node_app.call(session, "echo", Raw({}), deadline_s=20),
        lambda: list(node_app.stream(session, "lines", Raw({}), node_app.FOLLOWED)),
    ):
        with pytest.raises(NodeError, match=r"commands of l40s start no other program \(NOEXEC\)") as caught:
            ask()
        assert "ALL=(l40s) NOPASSWD: EXEC: ALL" in caught.value.fix
    session.close()


def test_a_missing_python_is_told(sshd: Sshd, app: App) -> None:
    session = open_session(sshd.spec(python="/no/python3"), deadline_s=20)
    for ask in (
        lambda: node_app.call(session, "echo", Raw({}), deadline_s=20),
        lambda: list(node_app.stream(session, "lines", Raw({}), node_app.FOLLOWED)),
    ):
        with pytest.raises(NodeError, match="cannot run /no/python3") as caught:
            ask()
        assert "ansible_python_interpreter" in caught.value.fix
    session.close()


def test_an_old_python_is_told(sshd: Sshd, tmp_path: Path) -> None:
    """Our own entry point under a python3 that says it is 3.8."""
    old = tmp_path / "python3"
    old.write_text(
        '#!/bin/sh\nwhile [ "$1" != "${1#-}" ]; do shift; done\n'
        "exec python3 -c 'import runpy, sys; sys.version_info = (3, 8, 10); sys.argv = sys.argv[1:]; "
        'runpy.run_path(sys.argv[0], run_name="__main__")\' "$@"\n'
    )
    old.chmod(0o755)
    session = open_session(sshd.spec(python=str(old)), deadline_s=20)
    with pytest.raises(node_app.NodeRefusal, match=r"python3 is 3.8; 3.10 or newer is needed") as caught:
        node_app.call(session, "report", Raw({}), deadline_s=20)
    assert caught.value.kind == "old-python"
    session.close()


def test_what_arrives_damaged_is_never_put_in_place(
    session: Counting, sshd: Sshd, app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = App(app.content, "0" * 64)
    monkeypatch.setattr(node_app, "application", lambda: other)
    with pytest.raises(NodeError, match="SHA-256"):
        node_app.call(session, "echo", Raw({}), deadline_s=20)
    assert not [path for path in (sshd.cache / "l40s-deploy").iterdir() if other.name in path.name]


def test_half_an_application_is_removed_and_an_empty_one_is_none(sshd: Sshd, session: Counting, app: App) -> None:
    place = forget(sshd, app)
    full: Any = SimpleNamespace(spec=session.spec, run=lambda line, **more: session.run(f"ulimit -f 0; {line}", **more))
    with pytest.raises(NodeError, match="could not be put into"):
        node_app._deliver(app, full)
    place.touch()
    assert node_app.call(session, "none", Raw({}), deadline_s=20) is None
    assert not list(place.parent.glob(".*"))


def test_a_home_that_cannot_be_written_is_told(start_sshd: Callable[..., Sshd], app: App) -> None:
    server = start_sshd()
    server.cache.write_text("a file where the folder should be")
    session = open_session(server.spec(), deadline_s=20)
    with pytest.raises(NodeError, match="could not be put into"):
        node_app.call(session, "echo", Raw({}), deadline_s=20)
    session.close()


def test_a_connection_lost_while_a_channel_is_being_opened_is_unreachable_at_once(
    start_sshd: Callable[..., Sshd], app: App, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_sshd()
    session = open_session(server.spec(), deadline_s=20)
    give_it = vars(paramiko.Channel)["_set_transport"]

    def too_late(channel: paramiko.Channel, transport: paramiko.Transport) -> None:
        server.kill_sessions()
        transport.join(20)
        give_it(channel, transport)

    monkeypatch.setattr(paramiko.Channel, "_set_transport", too_late)
    begun = time.monotonic()
    with pytest.raises(Unreachable):
        node_app.call(session, "echo", Raw({}), deadline_s=60)
    assert time.monotonic() - begun < 50


def test_the_real_application_answers_on_this_machine(tmp_path: Path) -> None:
    spec = NodeSpec(name="here", gang="g", node_rank=0, reach=Reach(host="here", connection="local"))
    value = node_app.call(connect(spec, deadline_s=1), "report", Raw({"state_dir": str(tmp_path)}), deadline_s=60)
    assert json.dumps(value)
    with pytest.raises(node_app.NodeRefusal, match="no verb 'nonsense'"):
        node_app.call(connect(spec, deadline_s=1), "nonsense", Raw({}), deadline_s=60)


STAYING = """
import json, sys
if sys.argv[1] == "stay":
    for line in sys.stdin:
        asked = json.loads(line)
        if asked["request"].get("die"):
            sys.exit(3)
        for noise in asked["request"].get("noise", ()):
            print(noise)
        value = ["stays", asked["verb"], asked["request"]]
        print(json.dumps({"id": asked["id"], "ok": True, "value": value}), flush=True)
else:
    print(json.dumps({"ok": True, "value": ["by itself", sys.argv[1], json.load(sys.stdin)]}))
"""


@pytest.fixture
def staying(monkeypatch: pytest.MonkeyPatch) -> None:
    in_place(monkeypatch, STAYING)


@pytest.mark.usefixtures("staying")
def test_verbs_are_answered_by_one_process_that_stays_from_the_delivery_on(sshd: Sshd) -> None:
    with closing(open_session(sshd.spec(), deadline_s=10)) as session:
        told = [node_app.call(session, verb, Raw({"n": n}), deadline_s=10) for n, verb in enumerate(("report", "stop"))]
        assert told == [["stays", "report", {"n": 0}], ["stays", "stop", {"n": 1}]]


@pytest.mark.usefixtures("staying")
def test_a_process_that_ends_is_replaced_and_one_that_ends_always_is_given_up(sshd: Sshd) -> None:
    with closing(open_session(sshd.spec(), deadline_s=10)) as session:
        assert node_app.call(session, "report", Raw({"die": 1}), deadline_s=10)[0] == "by itself"
        assert node_app.call(session, "report", Raw({}), deadline_s=10)[0] == "stays"
        told = [node_app.call(session, "report", Raw({"die": 1}), deadline_s=10)[0] for _ in range(5)]
        assert told == ["by itself"] * 5
        assert node_app.call(session, "report", Raw({}), deadline_s=10)[0] == "by itself"


@pytest.mark.usefixtures("staying")
def test_lines_that_are_no_answer_to_this_request_are_passed_over(sshd: Sshd) -> None:
    """A login script's, or the answer to a request that nobody waits for any more."""
    noise = ["Welcome!", "{", '{"ok":true}', '{"id":0,"ok":true,"value":"of another"}']
    with closing(open_session(sshd.spec(), deadline_s=10)) as session:
        for n in range(2):
            asked = {"n": n, "noise": noise}
            assert node_app.call(session, "report", Raw(asked), deadline_s=10) == ["stays", "report", asked]


@pytest.mark.parametrize(("verb", "asked"), [("probe", b"x" * 500_000), ("stay", b"x" * 100_000 + b"\n")])
def test_without_the_application_a_request_is_read_before_that_is_said(verb: str, asked: bytes, tmp_path: Path) -> None:
    session = SimpleNamespace(spec=SimpleNamespace(reach=SimpleNamespace(python="python3")))
    command = node_app._run(app_archive.application(), session, verb)
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    piped = subprocess.PIPE
    with subprocess.Popen(["/bin/sh", "-c", command], stdin=piped, stdout=piped, env=environment) as process:
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(asked)
        process.stdin.flush()
        if verb == "stay":  # it says so, and waits for the application
            assert b'"absent"' in process.stdout.readline()
        process.stdin.close()
        assert process.wait(20) == node_app._ABSENT


def test_a_session_that_was_cut_is_not_kept(sshd: Sshd) -> None:
    """Over weeks a guard opens a session after every cut; the verbs that stay on a node must not keep it alive."""
    before = set(node_app._staying_on)  # of other tests
    session = open_session(sshd.spec(), deadline_s=30)
    here = {"gang": "g", "state_dir": str(sshd.folder / "none")}
    assert node_app.call(session, "report", Raw(here), deadline_s=60)["reports"] == []
    gone = weakref.ref(session)
    session.close()
    del session
    gc.collect()
    assert gone() is None
    assert set(node_app._staying_on) <= before


def answering(monkeypatch: pytest.MonkeyPatch, answer: Any) -> Any:
    """A session whose node answers with this."""
    monkeypatch.setattr(node_app, "call", lambda *_, **__: answer)
    return SimpleNamespace(spec=gang().leader)


PAGE = HttpRequest(url="http://x")


def ask_page(session: Any) -> object:
    return node_app.ask_http(session, AskRequest(asks=(PAGE,)), deadline_s=1.0)


def ask_lock(session: Any) -> object:
    return node_app.ask_lock(session, LockRequest(op="show"))


@pytest.mark.parametrize(
    ("ask", "odd"),
    [
        (ask_page, "yes"),
        (ask_page, {"answers": [{"status": "200"}]}),
        (ask_page, {"answers": [{"status": 200}] * 2}),
        (ask_lock, {"held": "anna"}),
    ],
)
def test_an_odd_answer_is_the_nodes_failure(
    monkeypatch: pytest.MonkeyPatch, ask: Callable[[Any], object], odd: Any
) -> None:
    with pytest.raises(NodeError) as failure:
        ask(answering(monkeypatch, odd))
    assert failure.value.where == "node0"


def test_a_right_answer_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    pages = answering(monkeypatch, {"answers": [{"status": 200, "body": "ok"}, {"error": "refused"}], "now": 1.5})
    asked = node_app.ask_http(pages, AskRequest(asks=(PAGE, PAGE)), deadline_s=1.0)
    assert asked == (HttpAnswer(status=200, body="ok"), HttpAnswer(error="refused"))
    lock = answering(monkeypatch, {"held": {"token": "t", "who": "anna", "age_s": 3}, "mine": False})
    held = node_app.ask_lock(lock, LockRequest(op="show")).held
    assert held is not None and held.who == "anna"
