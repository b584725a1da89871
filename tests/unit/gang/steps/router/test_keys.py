"""Keys are rotated while gangs serve: in every state no entry of the router is replaced by one whose key is refused."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.parse import unquote

import pytest
from tests.support.commands import router_of

from orchestrator.engines import router as words
from orchestrator.gang.operations import OperationKind
from orchestrator.gang.steps import raising, restart_sequence
from orchestrator.gang.steps.restart_sequence import GangRestart, RestartRequest, RestartSequence, RestartVerb
from orchestrator.gang.steps.router import client
from orchestrator.gang.steps.router.client import KeyNotPassed, KeyRefused, Router
from orchestrator.gang.steps.staging import Staged
from orchestrator.gang.view import GangView
from orchestrator.model.gang_state import GangState
from orchestrator.model.inventory import GangPorts, GangSpec, NodeSpec, Reach, RouterSpec
from orchestrator.model.secret_text import fingerprint
from orchestrator.protocol.errors import DeployError
from orchestrator.protocol.staging import Endpoint, ServiceOrder, StagingRequest
from orchestrator.protocol.verbs import HttpAnswer, HttpRequest

NO_KEY = "asks for none"
URLS = {"a": "http://a", "b": "http://b"}


@dataclass
class Front:
    """Two engines with the keys that they were started with, behind a router; `file`: the gangs' key."""

    file: Path
    engines: dict[str, str] = field(default_factory=dict)
    entries: dict[str, dict[str, Any]] = field(default_factory=dict)
    clients: str = ""
    """The key that the router asks its clients for and passes on; '' for none."""
    most_lost: int = 0
    """Entries that a client could be sent to in vain, at the worst moment."""

    def ask_from(self, _: object, __: str, asks: Sequence[HttpRequest], **___: object) -> list[HttpAnswer]:
        (ask,) = asks
        url, _, path = ask.url.removeprefix("http://").partition("/")
        if url:  # else it is for the router itself
            key = self.engines.get(f"http://{url}", "")
            refused = path == "v1/models" and key != NO_KEY and ask.authorization != f"Bearer {key}"
            return [HttpAnswer(status=401 if refused else 200)]
        return [self._router(ask)]

    def _router(self, ask: HttpRequest) -> HttpAnswer:
        if ask.url.startswith("/v1/"):
            return HttpAnswer(status=401 if self.clients and ask.authorization != f"Bearer {self.clients}" else 400)
        if ask.method in ("POST", "PUT"):
            body = json.loads(ask.body or "")
            self.entries[body["url"]] = {"id": body["url"], "is_healthy": True, "models": [{"id": "m"}], **body}
        if ask.method == "DELETE":
            self.entries.pop(unquote(ask.url.rpartition("/")[2]))
        listed = list(self.entries.values())
        self.most_lost = max(self.most_lost, sum(not self.reaches(one) for one in listed))
        return HttpAnswer(status=200, body=json.dumps({"workers": listed}))

    def reaches(self, entry: dict[str, Any]) -> bool:
        """Whether the gang takes a client's request."""
        return (self.clients or entry["api_key"]) == self.engines.get(entry["url"])

    @property
    def serving(self) -> list[str]:
        """Gangs that a client's request reaches."""
        return sorted(url for url, one in self.entries.items() if self.reaches(one))

    def restart(self) -> None:
        """With the file's key."""
        self.entries, self.clients = {}, key_of(self)


@pytest.fixture
def front(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Front:
    made = Front(tmp_path / "key")
    rotate(made, "old")
    staged = SimpleNamespace(stack=words.SMG.name, watch=SimpleNamespace(http={words.WORKERS_HEALTH: "/health"}))
    monkeypatch.setattr(client, "staged_router", lambda *_: staged)
    monkeypatch.setattr(client, "ask_from", made.ask_from)
    monkeypatch.setattr("orchestrator.gang.steps.router.host.ask_from", lambda *given, **_: made.ask_from(*given))
    monkeypatch.setattr(client, "POLL_S", 0.0)
    monkeypatch.setattr(restart_sequence, "wait_until_drained", lambda *_: None)
    return made


def rotate(front: Front, key: str) -> None:
    front.file.write_text(f"{key}-gangs-key-0123456789\n")
    front.file.chmod(0o600)


def key_of(front: Front) -> str:
    return front.file.read_text().strip()


def router(front: Front) -> Router:
    reach = Reach(connection="local", host="localhost")
    node = NodeSpec(name="front", gang="router", node_rank=0, reach=reach, ports=GangPorts())
    return router_of(RouterSpec(node=node, gang_key_file=str(front.file)))


def both_serve(front: Front) -> None:
    for url in URLS.values():
        front.engines[url] = key_of(front)
        router(front).take_in(url, "r1")
    assert front.serving == sorted(URLS.values())


@pytest.mark.parametrize("asks_clients", [False, True])
def test_an_entry_stays_where_the_inventory_names_no_key_any_more(front: Front, asks_clients: bool) -> None:
    """A router that asks its clients for the key passes it on, and needs none of its own."""
    both_serve(front)
    without = router(front)
    node = replace(without.spec.node, api_key_file=str(front.file) if asks_clients else None)
    without.spec = replace(without.spec, node=node, gang_key_file=None)
    if asks_clients:
        without.refuse_other_key(URLS["a"])
        return
    with pytest.raises(KeyRefused, match="names none for gangs"):
        without.take_in(URLS["a"], "r2")
    assert front.serving == sorted(URLS.values())


SAID: list[str] = []
LOCK: Any = SimpleNamespace(begin=lambda _: None, finish=lambda: None)


def turn(front: Front, monkeypatch: pytest.MonkeyPatch, name: str, key: str) -> GangRestart:
    """One gang's turn, after which its engine has this key."""
    url = URLS[name]
    spec = GangSpec(name=name, nodes=(NodeSpec(name=name, gang=name, node_rank=0, reach=Reach(host=name)),))
    served = GangView(name=name, state=GangState.READY, service_healthy=url in front.engines, service_url=url)

    def at(gangs: Sequence[GangSpec]) -> list[str]:
        return [gang.name for gang in gangs]

    def stop(_: object, gangs: Sequence[GangSpec], *__: object, **___: object) -> None:
        for one in at(gangs):
            front.engines.pop(URLS[one], None)

    def view(one: str, **more: Any) -> GangView:
        return replace(served, name=one, service_url=URLS[one], service_healthy=URLS[one] in front.engines, **more)

    def raise_all(_: object, starts: Sequence[Staged], *__: object, **___: object) -> tuple[GangView, ...]:
        names = at([start.gang for start in starts])
        front.engines |= {URLS[one]: key for one in names}
        return tuple(view(one, run_id="r2") for one in names)

    def see(_: object, gangs: Sequence[GangSpec], **__: object) -> tuple[GangView, ...]:
        return tuple(map(view, at(gangs)))

    monkeypatch.setattr(restart_sequence, "see", see)
    monkeypatch.setattr(restart_sequence, "stop", stop)
    monkeypatch.setattr(raising, "raise_all", raise_all)
    request = StagingRequest(
        gang=name,
        run_id="r",
        node=name,
        node_rank=0,
        nnodes=1,
        leader=Endpoint(port=1),
        service=ServiceOrder(url=url),
    )
    return GangRestart(gang=spec, view=served, before=None, plan=Staged(gang=spec, requests={name: request}))


def sequence(front: Front, what: OperationKind) -> RestartSequence:
    SAID.clear()
    return RestartSequence(
        fleet=SimpleNamespace(),  # type: ignore[arg-type]
        router=router(front),
        front=None,
        watcher=SimpleNamespace(step=lambda _, words: SAID.append(words)),
        request=RestartRequest(verb=RestartVerb(what=what, rolls=True)),
        check=lambda _: None,
    )


def change(front: Front, monkeypatch: pytest.MonkeyPatch, name: str, what: OperationKind, key: str) -> None:
    """One gang's turn alone."""
    sequence(front, what).run([turn(front, monkeypatch, name, key)], {name: LOCK})


@pytest.mark.parametrize("what", [OperationKind.RESTART, OperationKind.ROLLING, OperationKind.MAINTENANCE])
def test_a_restart_keeps_the_key_so_that_it_is_refused_before_the_gang_goes_out(
    front: Front, monkeypatch: pytest.MonkeyPatch, what: OperationKind
) -> None:
    both_serve(front)
    old = key_of(front)
    rotate(front, "new")
    for name in URLS:
        with pytest.raises(KeyRefused, match="refuses it"):
            change(front, monkeypatch, name, what, old)
    assert front.serving == sorted(URLS.values()) and front.most_lost == 0


def test_both_serve_and_get_the_new_key_one_after_the_other(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    both_serve(front)
    rotate(front, "new")
    for name in URLS:
        change(front, monkeypatch, name, OperationKind.CHANGE, key_of(front))
        assert front.serving == sorted(URLS.values())
    assert {one["api_key"] for one in front.entries.values()} == {key_of(front)} and front.most_lost == 0


def test_one_that_is_out_with_the_old_key_is_not_added_with_the_new_one(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    both_serve(front)
    router(front).take_out(URLS["b"])
    rotate(front, "new")
    with pytest.raises(KeyRefused):
        router(front).take_in(URLS["b"], "r1")
    assert front.serving == [URLS["a"]]
    change(front, monkeypatch, "b", OperationKind.CHANGE, key_of(front))
    change(front, monkeypatch, "a", OperationKind.CHANGE, key_of(front))
    assert front.serving == sorted(URLS.values()) and front.most_lost == 0


def test_the_key_changes_while_one_restarts(front: Front, monkeypatch: pytest.MonkeyPatch) -> None:
    """It comes back with the key that it was started with; the other one is not taken out for it."""
    both_serve(front)
    old, drained = key_of(front), []

    def meanwhile(*_: object) -> None:
        drained.append(1)
        rotate(front, "new")

    monkeypatch.setattr(restart_sequence, "wait_until_drained", meanwhile)
    with pytest.raises(DeployError, match="refuses it"):
        change(front, monkeypatch, "a", OperationKind.RESTART, old)
    assert drained and front.serving == [URLS["b"]]
    with pytest.raises(KeyRefused):
        change(front, monkeypatch, "b", OperationKind.RESTART, old)
    assert front.serving == [URLS["b"]] and front.most_lost == 0


def test_a_router_that_passes_its_clients_key_on_gets_no_gang_with_a_newer_one(
    front: Front, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Seen of smg 1.13.0: the key of a worker's entry counts for nothing where a client sends one. The first gang waits
    outside, the last one that the router can reach is not taken out, and after the router's restart it has its turn."""
    front.clients = key_of(front)
    both_serve(front)
    rotate(front, "new")
    turns = [turn(front, monkeypatch, name, key_of(front)) for name in URLS]
    steps = sequence(front, OperationKind.CHANGE)
    with pytest.raises(KeyNotPassed, match="http://b is the last"):
        steps.run(turns, dict.fromkeys(URLS, LOCK))
    assert front.serving == [URLS["b"]] and front.most_lost == 0 and front.engines[URLS["a"]] == key_of(front)
    assert any("was not added" in words for words in SAID)
    front.restart()
    router(front).take_in(URLS["a"], "r2")
    with pytest.raises(KeyRefused, match="still has the key"):
        router(front).take_in(URLS["b"], "r1")
    change(front, monkeypatch, "b", OperationKind.CHANGE, key_of(front))
    assert front.serving == sorted(URLS.values()) and front.most_lost == 0


def test_a_gang_that_asks_for_no_key_is_added_whatever_the_router_passes_on(front: Front) -> None:
    front.clients, front.engines[URLS["a"]] = "sk-of-before", NO_KEY
    router(front).take_in(URLS["a"], "r1")
    assert list(front.entries) == [URLS["a"]]


def test_a_plan_that_was_started_with_another_key_is_refused_before_anything_stops(front: Front) -> None:
    """`rollback` takes a plan's key back with it, which the router would not send."""
    asked = router(front)
    asked.refuse_planned_key(None, "p")
    asked.refuse_planned_key(fingerprint(key_of(front)), "p")
    before = fingerprint(key_of(front))
    rotate(front, "new")
    with pytest.raises(KeyRefused, match="plan p was started with another one"):
        asked.refuse_planned_key(before, "p")
    asked.spec = replace(asked.spec, gang_key_file=None)
    with pytest.raises(KeyRefused, match="sends no key"):
        asked.refuse_planned_key(before, "p")
    asked.spec = replace(asked.spec, node=replace(asked.spec.node, api_key_file=str(front.file)))
    asked.refuse_planned_key(before, "p")  # it passes its clients' on


def test_a_recovered_gang_that_kept_its_key_keeps_its_entry(front: Front) -> None:
    both_serve(front)
    rotate(front, "new")
    with pytest.raises(KeyRefused, match="left as it is"):
        router(front).take_in(URLS["a"], "r2")
    assert front.serving == sorted(URLS.values()) and front.most_lost == 0


@pytest.mark.parametrize("there", [True, False])
def test_an_entry_that_is_taken_out_while_it_is_looked_at_is_left_out(
    front: Front, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    """Another command drains that gang. One that was not there before is added, as ever."""
    both_serve(front)
    url = URLS["a"]
    if not there:
        router(front).take_out(url)
    ask_from = front.ask_from

    def meanwhile(fleet: object, node: str, asks: Sequence[HttpRequest], **_: object) -> list[HttpAnswer]:
        if asks[0].url == f"{url}/health":
            front.entries.pop(url, None)
        return ask_from(fleet, node, asks)

    monkeypatch.setattr(client, "ask_from", meanwhile)
    router(front).take_in(url, "r1")
    assert front.serving == sorted(URLS.values() if not there else [URLS["b"]])
