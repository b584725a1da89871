"""`l40s-deploy web`: a page that shows what `status --watch` shows; read only."""

from __future__ import annotations

import argparse
import contextlib
import ipaddress
import json
import secrets
import time
from contextlib import AbstractContextManager
from pathlib import Path

from orchestrator.cli.options import add_examples, add_gangs, add_inventory, open_inventory
from orchestrator.cli.screen import Screen
from orchestrator.gang.steps.operation import connected
from orchestrator.gang.steps.status.live import Watching
from orchestrator.loading.secret_file import read_api_key
from orchestrator.monitoring.commands.exporter import add_listen
from orchestrator.monitoring.steps.http_server import LOCAL_NAMES, Page, serving
from orchestrator.monitoring.steps.last_hour import EVERY_S
from orchestrator.monitoring.steps.pages import Pages
from orchestrator.protocol.errors import Exit, InputError

PORT = 8090
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
    with (
        connected(inventory) as operation,
        Watching(operation, tuple(args.gang)) as source,
        contextlib.suppress(KeyboardInterrupt),
        serve(pages := Pages(inventory, tuple(args.gang), source), address, port, key) as listening,
    ):
        screen.say(f"page: http://{f'[{address}]' if ':' in address else address}:{listening}/ (press Ctrl-C to stop)")
        while True:
            with contextlib.suppress(Exception):  # a defect is told by the page that is asked for
                pages.remember()
            time.sleep(EVERY_S)
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
            fix="write a key with `(umask 077; openssl rand -hex 24 > web.key)` and add `--key-file web.key`, or listen"
            " on 127.0.0.1",
        )
    return read_api_key(Path(file).expanduser(), where="--key-file") if file else ""


def serve(pages: Pages, host: str, port: int, key: str) -> AbstractContextManager[int]:
    """Answer within; nothing that is asked changes anything. key: '' where none is asked for, of this machine alone.

    Raises InputError where it can't listen.
    """

    def page(_: str) -> Page:
        nonce = secrets.token_urlsafe(16)
        return _html(pages.page(nonce), f"'nonce-{nonce}'")

    def bench(_: str) -> Page:
        try:
            return _html(pages.bench())
        except InputError as none:
            return Page(f"{none.what}; {none.fix}\n", status=404, headers=_HEADERS)

    answers = {
        "/": page,
        "/part": lambda _: _html(pages.part()),
        "/live.json": lambda _: Page(json.dumps(pages.document()), "application/json", headers=_HEADERS),
        "/doctor": lambda _: _html(pages.doctor()),
        "/bench": bench,
    }
    return serving(answers, host, port, key=key, names=() if key else LOCAL_NAMES)


def _html(text: str, script: str = "'none'") -> Page:
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; img-src data:; script-src {script}; connect-src 'self';"
        " base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    )
    return Page(text, "text/html; charset=utf-8", headers={**_HEADERS, "Content-Security-Policy": policy})
