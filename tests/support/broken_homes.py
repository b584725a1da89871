"""Homes, and limits of a process, that commands meet on a stranger's machine; every verb as a line that gets beyond its
arguments. `python -m tests.support.broken_homes FOLDER KIND` plays all verbs under one of them.

It prints one JSON line each: {"verb", "code", "output"}.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import resource
import select
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.support.dripping_node import drips, make_ready
from tests.support.waiting import slack

from orchestrator.cli.main import every_parser, main, verbs_of

RIGHTS_COUNT = ("setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-dac_override,-dac_read_search")
"""For root, who reads everything otherwise."""
ENDS_S = 2.0
"""For a verb that goes on for ever."""
SEES_S = 6.0
"""The same where it is counted what a verb would wait for, without waiting."""
MOST_SLACK = 10.0
"""How many times longer a busy machine gives it."""
AT_ONCE = 4
INVENTORY = {
    "all": {
        "vars": {"ansible_user": "nobody", "ansible_port": 1, "ansible_host": "127.0.0.1"},
        "children": {
            "gangs": {"children": {"gang0": {"hosts": {"node0": {}, "node1": {"ansible_host": "127.0.0.2"}}}}}
        },
    }
}


def _file(home: Path, name: str, text: bytes = b"", mode: int = 0o600) -> None:
    path = home / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text)
    path.chmod(mode)


def _folder(home: Path, name: str, mode: int = 0o700) -> None:
    path = home / name
    path.mkdir(parents=True, exist_ok=True)
    path.chmod(mode)


def _is_file(home: Path) -> None:
    home.rmdir()
    home.write_text("")


def _loop(home: Path) -> None:
    home.rmdir()
    home.symlink_to(home)


def _state_is_odd(home: Path) -> None:
    """Of each kind of record a file with nothing that we write, and one that nobody may read."""
    for kind in ("doctor", "health", "told", "unheard", "bench", "golden", "nettest", "sweep", "plans", "runs"):
        _file(home, f".local/state/l40s-deploy/{kind}/a-gang0.json", b"\xff[")
        _file(home, f".local/state/l40s-deploy/{kind}/b-gang0.json", b"{}", 0)
    _file(home, ".local/state/l40s-deploy/audit.jsonl", b"\xff\n{\n", 0)


def _keys_are_odd(home: Path) -> None:
    _folder(home, ".ssh/known_hosts")
    _file(home, ".ssh/id_ed25519", b"\xff", 0)


HOMES: dict[str, Callable[[Path], object]] = {
    "sound": lambda home: None,
    "missing": lambda home: home.rmdir(),
    "a file": _is_file,
    "a loop": _loop,
    "unreadable": lambda home: home.chmod(0),
    "read-only": lambda home: home.chmod(0o500),
    "config folder unreadable": lambda home: _folder(home, ".config", 0),
    "our config folder unreadable": lambda home: _folder(home, ".config/l40s-deploy", 0),
    "config unreadable": lambda home: _file(home, ".config/l40s-deploy/config.yml", b"{}", 0),
    "config is a folder": lambda home: _folder(home, ".config/l40s-deploy/config.yml"),
    "config folder is a file": lambda home: _file(home, ".config"),
    "config is no text": lambda home: _file(home, ".config/l40s-deploy/config.yml", b"\xff\xfe\0["),
    "state is a file": lambda home: _file(home, ".local/state"),
    "state unreadable": lambda home: _folder(home, ".local/state/l40s-deploy", 0),
    "state read-only": lambda home: _folder(home, ".local/state/l40s-deploy", 0o500),
    "state is odd": _state_is_odd,
    "cache is a file": lambda home: _file(home, ".cache"),
    "lab folder unreadable": lambda home: _folder(home, ".local/share/l40s-lab", 0),
    "ssh unreadable": lambda home: _folder(home, ".ssh", 0),
    "ssh config is a folder": lambda home: _folder(home, ".ssh/config"),
    "ssh keys are odd": _keys_are_odd,
}


def _no_thread(*_: object) -> None:
    raise RuntimeError("can't start new thread")


def _none() -> None:
    """All that there is."""


LIMITS: dict[str, Callable[[], object]] = {
    "no threads": lambda: setattr(threading.Thread, "start", _no_thread),
    "few descriptors": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (9, 9)),
    "no file grows": lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)),
}
ODD_HOME: dict[str, str] = {"empty": "", "relative": "odd", "too long": "/" + "x" * 5000, "odd name": "/a\nb\x1b[2J"}
DRIPPING = "a node that drips"
"""A machine that lacks nothing, beside such a node."""
KINDS = (*HOMES, *LIMITS, *ODD_HOME)


def command_lines(parser: argparse.ArgumentParser | None = None) -> Iterator[list[str]]:
    """A command line for every verb, with what it must be given."""
    parser = parser or every_parser()
    below = verbs_of(parser)
    words = [word for action in parser._actions for word in _given(action)]
    if not below:
        yield words
    for name, one in below.items():
        for rest in command_lines(one):
            yield [*words, name, *rest]


def _given(action: argparse.Action) -> list[str]:
    if isinstance(action, argparse._SubParsersAction) or not action.required:
        return []
    values = action.choices or ("DeepSeek-V3-0324-Block64x64", "node0", "1", "1m", "a=b")
    value = next(one for one in values if _is_taken(action, str(one)))
    return [*action.option_strings[-1:], str(value)]


def _is_taken(action: argparse.Action, value: str) -> bool:
    try:
        return not callable(action.type) or action.type(value) is not None
    except (argparse.ArgumentTypeError, ValueError, TypeError):
        return False


def play(folder: Path, kind: str, lines: Sequence[list[str]]) -> None:
    """These verbs; a few at a time, each in a process of its own."""
    home = folder / "home"
    home.mkdir()
    inventory = folder / "hosts.yml"
    inventory.write_text(json.dumps(INVENTORY))
    HOMES.get(kind, HOMES["sound"])(home)
    environment = {
        "HOME": ODD_HOME.get(kind, str(home)),
        "PATH": os.environ["PATH"],
        "TMPDIR": os.environ.get("TMPDIR", "/tmp"),
        "L40S_INVENTORY": str(inventory),
    }
    ends_s, limit = ENDS_S, LIMITS.get(kind, _none)
    if kind == DRIPPING:
        make_ready()
        ends_s, limit = SEES_S, drips
    waiting: list[tuple[list[str], dict[str, int], float]] = []
    for line in (*lines, None):
        while len(waiting) >= AT_ONCE or (line is None and waiting):
            waiting = [one for one in waiting if not _has_ended(*one, ends_s * min(slack(), MOST_SLACK))]
        if line is not None:
            waiting.append((line, *_begin(line, environment, folder, limit)))


def _begin(
    line: list[str], environment: dict[str, str], folder: Path, limit: Callable[[], object]
) -> tuple[dict[str, int], float]:
    out, to_us = os.pipe()
    sys.stdout.flush()
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            os.close(out)
            os.setsid()
            for stream in (1, 2):
                os.dup2(to_us, stream)
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            os.environ.clear()
            os.environ.update(environment)
            (folder / "work").mkdir(exist_ok=True)
            os.chdir(folder / "work")
            limit()
            sys.argv = ["l40s-deploy", *line]
            code = int(main(line))
        except SystemExit as ended:
            code = int(ended.code or 0)
        except BaseException:
            import traceback

            with contextlib.suppress(BaseException):
                os.write(2, traceback.format_exc().encode("utf-8", "replace"))
        finally:
            with contextlib.suppress(BaseException):
                sys.stdout.flush()
            os._exit(code)
    os.close(to_us)
    return {"pid": pid, "out": out}, time.monotonic()


_OUTPUT: dict[int, bytearray] = {}


def _has_ended(line: list[str], child: dict[str, int], begun: float, ends_s: float) -> bool:
    heard = _OUTPUT.setdefault(child["pid"], bytearray())
    while select.select([child["out"]], [], [], 0.02)[0]:
        if not (more := os.read(child["out"], 1 << 16)):
            break
        heard += more
    if time.monotonic() - begun > ends_s:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child["pid"], signal.SIGTERM if time.monotonic() - begun < ends_s + 3 * ENDS_S else signal.SIGKILL)
    pid, status = os.waitpid(child["pid"], os.WNOHANG)
    if not pid:
        return False
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child["pid"], signal.SIGKILL)
    os.close(child["out"])
    code = os.waitstatus_to_exitcode(status)
    told = {"verb": " ".join(line), "code": code, "output": bytes(_OUTPUT.pop(child["pid"])).decode("utf-8", "replace")}
    print(json.dumps(told), flush=True)
    return True


if __name__ == "__main__":
    play(Path(sys.argv[1]), sys.argv[2], json.loads(sys.argv[3]))
