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
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from orchestrator.model.deadlines import HOOK_S
from orchestrator.model.notice import said
from orchestrator.model.secret_text import shown_hook
from orchestrator.node.network import http_connection
from orchestrator.protocol.errors import InputError


@dataclass(frozen=True, slots=True)
class Hook:
    """A command line, or an http(s) address that gets a POST with JSON; '' for neither. Either may hold a secret."""

    target: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        """Raises InputError for a blank command line, one whose quotes are open, or an address without a host."""
        if self.is_address:
            with suppress(ValueError):
                parts = urlsplit(self.target)
                if parts.hostname and parts.port != 0:
                    return
            raise InputError("the address has no host", where="hook", fix="http(s)://HOST[:PORT]/PATH")
        try:
            if self.target and not shlex.split(self.target):
                raise InputError("it is blank", where="hook", fix="name a program, or leave the option out")
        except ValueError as wrong:
            raise InputError(f"can't be parsed: {wrong}", where="hook", fix="close the quotes") from None

    @property
    def is_address(self) -> bool:
        """It is called over HTTP."""
        return self.target.startswith(("http://", "https://"))


def run_hook(hook: Hook, event: str, *, gang: str, why: str, deadline_s: float = HOOK_S) -> str:
    """'' if it worked, else why not: a hook that fails or hangs must not end its caller.

    The text shows no more of the hook than `secret_text.shown_hook`, since it may hold a secret. A command gets
    L40S_EVENT, L40S_GANG and L40S_WHY in its environment; it runs without a shell.
    """
    if not hook.target:
        return ""
    facts = {"event": event, "gang": gang, "why": said(why), "at": time.time()}
    try:
        if hook.is_address:
            return _post(hook.target, facts, deadline_s)
        about = {f"L40S_{name.upper()}": str(value) for name, value in facts.items()}
        status, last = run_command(hook.target, about, deadline_s)
        if status is None:
            return f"{shown_hook(hook.target)}: did not end within {deadline_s:g} s"
        return f"status {status} {last}".strip() if status else ""
    except OSError as error:
        return f"{shown_hook(hook.target)}: {type(error).__name__}: {error.strerror or 'timed out'}"
    except (ValueError, http.client.HTTPException) as error:
        return f"{shown_hook(hook.target)}: {type(error).__name__}"


def run_command(
    command: str, about: Mapping[str, str], deadline_s: float, *, keep: int = 300, stdout_too: bool = False
) -> tuple[int | None, str]:
    """Run a command without a shell, with these variables beside ours. (its exit status, the last that it said, of so
    many bytes); None where it did not end in time, and was ended with what it had started. Raises OSError."""
    wanted = (subprocess.PIPE, subprocess.STDOUT) if stdout_too else (subprocess.DEVNULL, subprocess.PIPE)
    process = subprocess.Popen(
        shlex.split(command),
        env={**os.environ, **about},
        stdin=subprocess.DEVNULL,
        stdout=wanted[0],
        stderr=wanted[1],
        start_new_session=True,
    )
    last = bytearray()
    listening = threading.Thread(target=_keep_last, args=(process.stdout or process.stderr, last, keep), daemon=True)
    listening.start()
    try:
        status: int | None = process.wait(deadline_s)
    except BaseException as ended:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        if not isinstance(ended, subprocess.TimeoutExpired):
            raise
        status = None
    listening.join(1.0)  # what it left running may hold the other end
    return status, last.decode("utf-8", "replace")


def _keep_last(stream: io.BufferedReader, last: bytearray, most: int) -> None:
    with stream:
        while chunk := stream.read1(1 << 16):
            last += chunk
            del last[:-most]


def _post(url: str, facts: dict[str, object], deadline_s: float) -> str:
    headers = {"Content-Type": "application/json"}
    status, _ = http_connection.ask("POST", url, json.dumps(facts), headers, deadline_s, longest=0)
    return "" if 200 <= status < 300 else f"HTTP {status}"
