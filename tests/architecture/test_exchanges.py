"""Every place of the product that asks another machine by a connection of its own: each ends at its time limit, however
slowly the peer's bytes come, and at its byte limit, whatever it sends. Its list is made from the code."""

from __future__ import annotations

import ast
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.support.hostile import HOSTILE, talker
from tests.support.sources import PRODUCT
from tests.support.waiting import slack

from orchestrator.checkpoint.on_node.push import giver
from orchestrator.gang.steps.guard import notice_hook
from orchestrator.model.inventory import Mail, ReceiverKind, Recipient
from orchestrator.monitoring.steps import notify
from orchestrator.node.engine import ras
from orchestrator.node.network import http_connection
from orchestrator.node.verbs import ask as ask_verb
from orchestrator.protocol.jobs import Giving
from orchestrator.remote.deadline import downloaded

LIMIT_S = 0.4
OPENS = {"create_connection", "urlopen", "HTTPConnection", "HTTPSConnection", "connect", "connect_ex"}
"""What opens a connection, as it is called in the code."""


def opening() -> set[str]:
    """'package.module.Class.function' of each function that opens one, or has one opened."""
    return {
        f"{path.relative_to(PRODUCT).with_suffix('').as_posix().replace('/', '.')}.{name}"
        for path in sorted(PRODUCT.rglob("*.py"))
        for name, body in functions(ast.parse(path.read_text("utf-8")))
        if any(isinstance(node, ast.Call) and opens(node.func) for node in ast.walk(body))
    }


def functions(tree: ast.AST, within: str = "") -> Iterator[tuple[str, ast.AST]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            yield f"{within}{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{within}{node.name}.")


def opens(called: ast.expr) -> bool:
    if not isinstance(called, ast.Attribute):
        return isinstance(called, ast.Name) and called.id in {"_Smtp", "_SmtpOverTls"}
    if called.attr == "ask":
        return isinstance(called.value, ast.Name) and called.value.id == "http_connection"
    return called.attr in OPENS


def a_mail(port: int) -> object:
    mail = Mail(server="127.0.0.1", port=port, sender="a@example.org", to=("b@example.org",), tls="none")
    return notify.send(Recipient(kind=ReceiverKind.EMAIL, mail=mail), notify.trial(), deadline_s=LIMIT_S)


def a_webhook(port: int) -> object:
    recipient = Recipient(kind=ReceiverKind.WEBHOOK, url=f"http://127.0.0.1:{port}/")
    return notify.send(recipient, notify.trial(), deadline_s=LIMIT_S)


def a_question_for_others(port: int) -> object:
    asks = [{"method": "GET", "url": f"http://127.0.0.1:{port}/", "timeout_s": LIMIT_S}]
    return ask_verb.answer({"asks": asks})


def a_list_of_files(port: int) -> object:
    return list(giver.ready_at(Giving(address="127.0.0.1", port=port, secret="s")))


PLAYED: dict[str, Callable[[int], object]] = {
    "node.network.http_connection.connection": lambda port: http_connection.ask(
        "GET", f"http://127.0.0.1:{port}/", None, {}, LIMIT_S, longest=100_000
    ),
    "node.verbs.ask._one": a_question_for_others,
    "gang.steps.guard.notice_hook._post": lambda port: notice_hook._post(f"http://127.0.0.1:{port}/", {}, LIMIT_S),
    "monitoring.steps.notify._post": a_webhook,
    "monitoring.steps.notify._mail": a_mail,
    "remote.deadline.downloaded": lambda port: downloaded(f"http://127.0.0.1:{port}/", 100_000, LIMIT_S),
    "node.engine.ras.status": lambda port: ras.status(f"127.0.0.1:{port}"),
    "checkpoint.on_node.push.giver._asked": a_list_of_files,
}
"""How each is made to ask a peer on this port."""
ELSEWHERE = {
    "node.engine.service.Service._ask": "tests/unit/node/network/test_http_connection.py",
    "node.network.reach._start": "tests/unit/node/network/test_reach.py",
    "node.network.wire.Sockets.begin_to_connect": "tests/unit/node/agent/test_hostile_clients.py",
    "remote.ssh_way._tcp": "tests/unit/remote/test_dripping.py",
}
"""Where those are played that need more than a port: the test's file."""
READS_NOTHING = {"nettest.on_node.port_test._release"}
"""Those that close at once what they have opened."""


def test_every_exchange_is_played() -> None:
    assert opening() == {*PLAYED, *ELSEWHERE, *READS_NOTHING}
    assert [file for file in ELSEWHERE.values() if not Path(file).is_file()] == []


@pytest.mark.parametrize("hostile", HOSTILE)
@pytest.mark.parametrize("place", PLAYED)
def test_it_ends_whatever_the_peer_says(place: str, hostile: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for module, name in ((ras, "FIRST_WORD_S"), (ras, "ANSWER_S"), (giver, "LINE_S"), (giver, "IDLE_S")):
        monkeypatch.setattr(module, name, LIMIT_S)
    monkeypatch.setattr(ras, "TRIES", 1)
    ended: list[object] = []

    def ask(port: int) -> None:
        try:
            ended.append(PLAYED[place](port))
        except Exception as failure:  # which one, the tests of each place say
            ended.append(failure)

    with talker(*HOSTILE[hostile]) as port:
        asking = threading.Thread(target=ask, args=(port,), daemon=True)
        began = time.monotonic()
        asking.start()
        asking.join(5 * slack())
        assert ended, f"{place} still waits after {time.monotonic() - began:.0f} s"
