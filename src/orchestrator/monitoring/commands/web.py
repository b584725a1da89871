"""`l40s-deploy web`: a page that shows what `status --watch` shows; read only."""

from __future__ import annotations

import argparse
import base64
import gzip
import hmac
import ipaddress
import json
import secrets
from collections.abc import Callable
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIServer

from orchestrator.cli.options import add_examples, add_gangs, add_inventory, add_listen, open_inventory
from orchestrator.cli.screen import Screen
from orchestrator.gang.steps.status.live import Watching
from orchestrator.loading.secret_file import read_api_key
from orchestrator.model.errors import Exit, InputError
from orchestrator.monitoring.steps.http_server import listen
from orchestrator.monitoring.steps.pages import Pages

PORT = 8090
_LOCAL_NAMES = ("localhost", "127.0.0.1", "[::1]")
_PRESSED = 3
"""gzip's level: a tenth of the bytes for some 0.5 ms."""
_HEADERS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of this verb."""
    add_examples(
        parser,
        "l40s-deploy web   # then open http://127.0.0.1:8090",
        "ssh -L 8090:127.0.0.1:8090 controller   # the page of another machine",
        "l40s-deploy web --listen 10.0.0.1 --key-file ~/.config/l40s-deploy/web.key   # password: the key",
    )
    add_inventory(parser)
    add_gangs(parser)
    add_listen(parser, PORT)
    parser.add_argument(
        "--key-file",
        metavar="FILE",
        help="file of mode 0600 with the key to ask for; needed beyond loopback",
    )


def run(args: argparse.Namespace, screen: Screen) -> int:
    """Serve until Ctrl-C."""
    address, port = args.listen
    key = _key(address, args.key_file)
    inventory = open_inventory(args, screen)
    with Watching(inventory, tuple(args.gang)) as source:
        server = serve(Pages(inventory, tuple(args.gang), source), address, port, key)
        screen.say(f"page: http://{address}:{server.server_port}/ (press Ctrl-C to stop)")
        try:
            server.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            return Exit.DONE
        finally:
            server.server_close()
    return Exit.DONE


def _key(address: str, file: str | None) -> str:
    try:
        local = ipaddress.ip_address(address).is_loopback
    except ValueError:
        local = address == "localhost"
    if not local and not file:
        raise InputError(
            f"{address} is reached by other machines, and no key was given",
            where="--listen",
            fix="add --key-file FILE (`openssl rand -hex 24 > FILE; chmod 600 FILE`), or listen on 127.0.0.1",
        )
    return read_api_key(Path(file).expanduser(), where="--key-file") if file else ""


def serve(pages: Pages, host: str, port: int, key: str) -> WSGIServer:
    """A server that listens already. key: '' where none is asked for. Raises InputError where it can't listen."""
    return listen(application(pages, key), host, port)


def application(pages: Pages, key: str) -> Callable[..., Any]:
    """The WSGI application: GET only, and nothing that changes anything."""
    import bottle

    app = bottle.Bottle()

    @app.hook("before_request")  # type: ignore[untyped-decorator]
    def allowed() -> None:
        if key and not _has_key(bottle.request.headers.get("Authorization", ""), key):
            raise bottle.HTTPResponse("the key is missing or wrong\n", 401, {"WWW-Authenticate": "Basic realm=l40s"})
        # a name that leads to loopback is how another site's page would read this one (DNS rebinding)
        if not key and bottle.request.headers.get("Host", "").rpartition(":")[0] not in _LOCAL_NAMES:
            raise bottle.HTTPResponse("ask for it by 127.0.0.1 or localhost\n", 403)

    def html(text: str, script: str = "'none'") -> Any:
        policy = (
            f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {script}; connect-src 'self';"
            " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
        )
        return bottle.HTTPResponse(
            text, 200, {**_HEADERS, "Content-Type": "text/html; charset=utf-8", "Content-Security-Policy": policy}
        )

    @app.get("/")  # type: ignore[untyped-decorator]
    def page() -> Any:
        nonce = secrets.token_urlsafe(16)
        return html(pages.page(nonce), f"'nonce-{nonce}'")

    @app.get("/part")  # type: ignore[untyped-decorator]
    def part() -> Any:
        answer = html(pages.part())
        if "gzip" in bottle.request.headers.get("Accept-Encoding", ""):  # a forwarded port may be slow
            answer.body = gzip.compress(answer.body.encode(), _PRESSED)
            answer.set_header("Content-Encoding", "gzip")
        return answer

    @app.get("/live.json")  # type: ignore[untyped-decorator]
    def document() -> Any:
        text = json.dumps(pages.document())
        return bottle.HTTPResponse(text, 200, {**_HEADERS, "Content-Type": "application/json"})

    @app.get("/doctor")  # type: ignore[untyped-decorator]
    def doctor() -> Any:
        return html(pages.doctor())

    @app.get("/bench")  # type: ignore[untyped-decorator]
    def bench() -> Any:
        try:
            return html(pages.bench())
        except InputError as none:
            return bottle.HTTPResponse(f"{none.what}; {none.fix}\n", 404, {**_HEADERS, "Content-Type": "text/plain"})

    return app  # type: ignore[no-any-return]


def _has_key(header: str, key: str) -> bool:
    """Basic, as a browser asks for it, with any user name; or Bearer."""
    kind, _, value = header.partition(" ")
    if kind.lower() == "basic":
        try:
            value = base64.b64decode(value, validate=True).decode("utf-8").partition(":")[2]
        except ValueError:
            return False
    elif kind.lower() != "bearer":
        return False
    return hmac.compare_digest(value.encode("utf-8", "replace"), key.encode())
