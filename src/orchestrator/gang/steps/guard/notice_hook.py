"""What an operator wants to be run, or called, when something has happened."""

from __future__ import annotations

import http.client
import io
import json
import os
import shlex
import signal
import subprocess
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from orchestrator.model.deadlines import HOOK_S
from orchestrator.model.errors import InputError
from orchestrator.model.notice import said
from orchestrator.model.secret_text import shown_hook
from orchestrator.node.network import http_connection


@dataclass(frozen=True, slots=True)
class Hook:
    """A command line, or an http(s) address that gets a POST with JSON; '' for neither. Either may hold a secret."""

    target: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        """Raises InputError for a command line whose quotes are open, or an address without a host."""
        if self.is_address:
            with suppress(ValueError):
                parts = urlsplit(self.target)
                if parts.hostname and parts.port != 0:
                    return
            raise InputError("the address has no host", where="hook", fix="http(s)://HOST[:PORT]/PATH")
        try:
            shlex.split(self.target)
        except ValueError as wrong:
            raise InputError(f"can't be parsed: {wrong}", where="hook", fix="close the quotes") from None

    @property
    def is_address(self) -> bool:
        """It is called over HTTP."""
        return self.target.startswith(("http://", "https://"))


def run_hook(hook: Hook, event: str, *, gang: str, why: str, deadline_s: float = HOOK_S) -> str:
    """'' if it worked, else why not: a hook that fails or hangs must not end its caller.

    The text shows no more of the hook than `planning.typed.shown_hook`, since it may hold a secret. A command gets
    L40S_EVENT, L40S_GANG and L40S_WHY in its environment; it runs without a shell.
    """
    if not hook.target:
        return ""
    facts = {"event": event, "gang": gang, "why": said(why), "at": time.time()}
    try:
        if hook.is_address:
            return _post(hook.target, facts, deadline_s)
        return _run(hook.target, facts, deadline_s)
    except subprocess.TimeoutExpired:
        return f"{shown_hook(hook.target)}: did not end within {deadline_s:g} s"
    except OSError as error:
        return f"{shown_hook(hook.target)}: {type(error).__name__}: {error.strerror or 'timed out'}"
    except (ValueError, http.client.HTTPException) as error:
        return f"{shown_hook(hook.target)}: {type(error).__name__}"


def _run(command: str, facts: dict[str, object], deadline_s: float) -> str:
    environment = {**os.environ, **{f"L40S_{name.upper()}": str(value) for name, value in facts.items()}}
    words, quiet = shlex.split(command), subprocess.DEVNULL
    hook = subprocess.Popen(
        words, env=environment, stdin=quiet, stdout=quiet, stderr=subprocess.PIPE, start_new_session=True
    )
    last = bytearray()
    listening = threading.Thread(target=_keep_last, args=(hook.stderr, last), daemon=True)
    listening.start()
    try:
        status = hook.wait(deadline_s)
    except subprocess.TimeoutExpired:
        os.killpg(hook.pid, signal.SIGKILL)
        hook.wait()
        raise
    listening.join(1.0)  # what it left running may hold the other end
    return f"status {status} {last.decode('utf-8', 'replace')}".strip() if status else ""


def _keep_last(stream: io.BufferedReader, last: bytearray) -> None:
    with stream:
        while chunk := stream.read1(1 << 16):
            last += chunk
            del last[:-300]


def _post(url: str, facts: dict[str, object], deadline_s: float) -> str:
    headers = {"Content-Type": "application/json"}
    status, _ = http_connection.ask("POST", url, json.dumps(facts), headers, deadline_s, longest=0)
    return "" if 200 <= status < 300 else f"HTTP {status}"
