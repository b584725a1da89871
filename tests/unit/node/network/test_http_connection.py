"""TLS to the holder of one certificate: no other server is believed, whatever name it has. No peer holds a client."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from tests.support.certificates import certified_key
from tests.support.hostile import HOSTILE, talker
from tests.support.waiting import slack, until

from orchestrator.gang.steps.guard.notice_hook import Hook, run_hook
from orchestrator.node import files
from orchestrator.node.engine.service import Service
from orchestrator.node.network import http_connection
from orchestrator.node.verbs import ask
from orchestrator.protocol.staging import Canary, Endpoint, ProbeOrder, ServiceOrder, StagingRequest
from orchestrator.protocol.verbs import AskRequest, HttpRequest


class Answers(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        text = f"{self.path} {self.headers.get('Authorization')}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def gang_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "gangs" / "router"
    folder.mkdir(parents=True)
    for name, (cert, key) in (("ours", certified_key("router.example")), ("other", certified_key("router.example"))):
        (folder / f"{name}.pem").write_text(cert)
        (folder / f"{name}.key").write_text(key)
    (folder / "secrets.json").write_text('{"authorization": "Bearer admin", "files": ["ours.pem"]}')
    return folder


@pytest.fixture
def url(gang_dir: Path) -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Answers)
    shown = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    shown.load_cert_chain(gang_dir / "ours.pem", gang_dir / "ours.key")
    server.socket = shown.wrap_socket(server.socket, server_side=True)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"https://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def asked(gang_dir: Path, url: str, certificate: str, path: str = "/workers") -> tuple[int | None, str, str]:
    """A path of the service that a gang was staged with, at this URL and with this certificate."""
    run = StagingRequest(
        gang="router",
        run_id="r1",
        node="front",
        node_rank=0,
        nnodes=1,
        argv=("router",),
        leader=Endpoint(address="127.0.0.1", port=1),
        service=ServiceOrder(url=url, certificate=certificate),
    )
    (gang_dir / "runs" / "r1").mkdir(parents=True, exist_ok=True)
    (gang_dir / "current").write_text("r1")
    (gang_dir / "runs" / "r1" / files.RUN_FILE).write_text(json.dumps(run.kept()))
    request = HttpRequest(url=path)
    whole = AskRequest(state_dir=str(gang_dir.parent.parent), gang="router", asks=(request,)).as_json()
    (answer,) = ask.answer(whole)["answers"]
    return answer["status"], answer["body"], answer["error"]


def test_the_one_certificate_is_accepted_and_gets_the_gangs_key(gang_dir: Path, url: str) -> None:
    assert asked(gang_dir, url, "ours.pem", "/workers?a=1")[:2] == (200, "/workers?a=1 Bearer admin")


def test_another_server_is_not_believed_for_the_gangs_certificate(gang_dir: Path, url: str) -> None:
    status, _, error = asked(gang_dir, "http://127.0.0.1:1", "ours.pem", f"{url}/workers")
    assert not status and error


def test_where_nothing_was_started_nothing_is_asked(gang_dir: Path) -> None:
    whole = AskRequest(state_dir=str(gang_dir.parent.parent), gang="router", asks=(HttpRequest(url="/workers"),))
    (answer,) = ask.answer(whole.as_json())["answers"]
    assert answer["error"] == "nothing was started there that serves"


@pytest.mark.parametrize("certificate", ["other.pem", "absent.pem", ""])
def test_any_other_is_an_error_before_anything_is_said(gang_dir: Path, url: str, certificate: str) -> None:
    status, body, error = asked(gang_dir, url, certificate)
    assert not status and not body and error


def test_what_is_no_web_address() -> None:
    with pytest.raises(ValueError, match="not an HTTP URL"):
        http_connection.connection("file:///etc/passwd", 1.0)
    assert http_connection.target("http://a:1") == "/" and http_connection.target("http://a/b?c=d") == "/b?c=d"


def of_hook(port: int) -> str:
    return run_hook(Hook(f"http://127.0.0.1:{port}/"), "failed", gang="g", why="", deadline_s=0.3)


def of_ask(port: int) -> str:
    request = AskRequest(asks=(HttpRequest(url=f"http://127.0.0.1:{port}/", timeout_s=0.3),))
    return str(ask.answer(request.as_json())["answers"])


def of_service(port: int) -> str:
    """Until the canary, where a peer's first answer is one."""
    canary = Canary(prompt="x", max_tokens=1, expect_any=("y",))
    service = Service(f"http://127.0.0.1:{port}", {"alive": "/"}, canary, "m", ProbeOrder(answer_s=0.3))
    service.start()
    try:
        heard = until(service.take)
        return str(heard if not heard[0].answered else until(lambda: [*heard, *service.take()][1:]))
    finally:
        service.stop()


@pytest.mark.parametrize("client", [of_hook, of_ask, of_service])
@pytest.mark.parametrize("hostile", HOSTILE)
def test_no_peer_holds_or_ends_a_client(
    hostile: str, client: Callable[[int], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("orchestrator.node.engine.service.GRACE_S", 0.0)
    monkeypatch.setattr("orchestrator.node.engine.service.CANARY_TIMEOUT_S", 0.3)
    told: list[str] = []
    with talker(*HOSTILE[hostile]) as port:
        asking = threading.Thread(target=lambda: told.append(client(port)), daemon=True)
        asking.start()
        asking.join(10.0 * slack())
    assert told
