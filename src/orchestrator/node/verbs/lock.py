"""Verb `lock`: which command holds a gang. The lock is a file on each of its nodes, written completely or not at all.

Beside it is the record of what its holder has begun and not finished; it stays when the holder is killed.

A holder renews its lock while it works. A lock that has not been renewed for STALE_S belongs to a dead controller and
may be taken; a lock may name another limit, as the claim on a router does.

The time is the node's since its boot, in a file beside the lock: setting a clock makes no lock old. Where
that file does not tell (an older release's lock, a reboot since), the lock's own time does.
That file stays when the lock is given back: it tells who had it last. `over` takes one lock whose token the caller
knows to be dead.
"""

from __future__ import annotations

import contextlib
import json
import os
import time
from dataclasses import replace
from typing import Any

from orchestrator.node import files, processes, viewers
from orchestrator.node.bounded_log import append_line
from orchestrator.node.requests import request_of
from orchestrator.protocol.errors import DeployError
from orchestrator.protocol.message import Unreadable
from orchestrator.protocol.run_files import Renewal
from orchestrator.protocol.verbs import GangRequest, LockAnswer, LockHolder, LockRequest

STALE_S = 60.0
AUDIT = "audit.jsonl"
RENEWED = "lock.renewed"
DAMAGED = "damaged"
"""The token of a lock file that can't be read (a full disk, a power cut): no one's, so it goes stale or is forced."""
ATTEMPTS = 3
"""Others may take and leave the lock between two of our steps."""
_HOLDER = ("token", "who", "host", "pid", "start", "boot", "pid_namespace", "command", "since", "why", "expires_s")
"""Of a lock's file; the age comes from other fields."""


def answer(request: dict[str, Any]) -> dict[str, Any]:
    """Who holds it, and whether that is the caller; `show` with what was begun and not finished."""
    asked = request_of(LockRequest, request)
    state = files.state_dir(asked.state_dir)
    with files.state_failures(state):
        return _answer(asked, files.gang_dir(state, asked.gang)).as_json()


_OPS = frozenset(("release", "renew", "begin", "finish"))


def _holder(asked: LockRequest) -> LockHolder:
    if asked.holder is None or not asked.holder.token:
        raise DeployError("acquire needs a holder with a token", where="request", fix="", kind="bad-request")
    return asked.holder


def _answer(asked: LockRequest, gang: str) -> LockAnswer:
    path = f"{gang}/lock"
    if asked.op != "show":
        viewers.refuse_changes(path.partition("/gangs/")[0])
    if asked.op == "acquire":
        return _acquire(path, _holder(asked), asked.over, asked.node)
    held = _read(path)
    mine = held is not None and held.token == asked.token
    if asked.op == "show":
        return LockAnswer(held=held, begun=files.read_json(f"{gang}/{files.BEGUN_FILE}") or None)
    if asked.op == "release" and held is not None and (mine or asked.force):
        files.remove(path)
        _note(path, _how_it_ended(asked, mine=mine), held)
        return LockAnswer()
    if asked.op not in _OPS:
        raise DeployError(f"lock has no op {asked.op!r}", where="request", fix="", kind="bad-request")
    if mine:  # else a command that took it over decides
        _go_on(asked, gang)
    return LockAnswer(held=held, mine=mine)


def _how_it_ended(asked: LockRequest, *, mine: bool) -> str:
    if not mine:
        return "released by force"
    return f"ends: {asked.ended}" if asked.ended else "ends"


def _go_on(asked: LockRequest, gang: str) -> None:
    if asked.op == "renew":
        os.utime(f"{gang}/lock")
        _renewed(f"{gang}/lock", asked.token)
    elif asked.op == "begin" and isinstance(asked.begun, dict):
        files.write_json(f"{gang}/{files.BEGUN_FILE}", asked.begun)
    else:
        files.remove(f"{gang}/{files.BEGUN_FILE}")


def holder_of(gang_folder: str) -> LockHolder | None:
    """The holder of a gang's lock; None if it is free."""
    return _read(f"{gang_folder}/lock")


def refuse_a_former_holder(asked: GangRequest, *, to_end: bool = False) -> None:
    """Raises DeployError for a request from a command that has lost the gang's lock.

    Paused or cut off, it must not act beside the command that took over, nor after it. to_end: a request that only
    stops things is refused only if another command has the lock, or had it last: what runs now belongs to that one.
    """
    if not asked.token:
        return
    path = f"{files.gang_dir(files.state_dir(asked.state_dir), asked.gang)}/lock"
    held = _read(path)
    last = held.token if held is not None else files.read_json(f"{os.path.dirname(path)}/{RENEWED}").get("token")
    if (held is None and not to_end) or last not in (None, asked.token):
        has = f"{held.who}@{held.host} holds it with `{held.command}`" if held else "no command holds it now"
        raise DeployError(
            f"the lock on this gang was taken over or released: {has}", where=path, fix="run it again", kind="lock-lost"
        )


def _acquire(path: str, holder: LockHolder, over: str, node: str) -> LockAnswer:
    """Raises DeployError where another node of the gang writes to this directory too: the command's lock is there."""
    os.makedirs(os.path.dirname(path), exist_ok=True)
    if _is_anothers(held := _read(path), holder, over):  # before a write, which a full disk refuses
        return LockAnswer(held=held)
    fresh = f"{path}.{os.getpid()}.new"
    kept = {"node": node, "taken": _now(holder.token).as_json(), **{name: getattr(holder, name) for name in _HOLDER}}
    files.write(fresh, json.dumps(kept) + "\n")
    try:
        for _ in range(ATTEMPTS):
            with contextlib.suppress(FileExistsError):  # a link never replaces a file
                os.link(fresh, path)
                _renewed(path, holder.token)
                _note(path, "begins", holder)
                return LockAnswer(held=_read(path), mine=True)
            if _is_anothers(held := _read(path), holder, over):
                break
            other = files.read_json(path).get("node") or node
            if held is not None and held.token == holder.token and other != node:
                raise DeployError(
                    f"{node} and {other} have the same state directory; is it in a shared home or on NFS?",
                    where=path.partition("/gangs/")[0],
                    fix="set l40s_state_dir to a directory on a local disk of each node, then run the command again",
                    kind="shared-state",
                )
            if held is not None:
                _take_away(path, held.token)
        return LockAnswer(held=_read(path))
    finally:
        files.remove(fresh)


def _is_anothers(held: LockHolder | None, holder: LockHolder, over: str) -> bool:
    return held is not None and not (held.stale or held.token in (over, holder.token))


def _note(path: str, action: str, holder: LockHolder) -> None:
    """Record who did what to this gang; a full disk prevents no work."""
    who = {name: getattr(holder, name) for name in _HOLDER if name != "token"}
    with contextlib.suppress(OSError):
        append_line(f"{os.path.dirname(path)}/{AUDIT}", json.dumps({"at": time.time(), "action": action, **who}))


def _take_away(path: str, token: str) -> None:
    """Move the dead lock aside; put it back should another one have taken its place in between."""
    aside = f"{path}.{os.getpid()}.old"
    with contextlib.suppress(FileNotFoundError):
        os.rename(path, aside)
        if _kept(aside).token != token:
            with contextlib.suppress(FileExistsError):
                os.link(aside, path)
        files.remove(aside)


def _renewed(path: str, token: str) -> None:
    """Now, by the clock that nobody sets (clock_gettime(2), CLOCK_BOOTTIME) and for this boot alone. A full disk takes
    no file; the lock's own time tells then."""
    beside = f"{os.path.dirname(path)}/{RENEWED}"
    try:
        files.write_json(beside, _now(token).as_json())
    except OSError:
        files.remove(beside)


def _now(token: str) -> Renewal:
    return Renewal(token=token, boot=processes.boot_id(), boottime_s=time.clock_gettime(time.CLOCK_BOOTTIME))


def _age(path: str, token: str) -> float:
    """Seconds since the lock was renewed. Raises FileNotFoundError where there is none."""
    by_the_wall = time.time() - os.stat(path).st_mtime
    renewed = files.read_as(Renewal, f"{os.path.dirname(path)}/{RENEWED}")
    if renewed is None or (renewed.token, renewed.boot) != (token, processes.boot_id()):
        return by_the_wall
    return time.clock_gettime(time.CLOCK_BOOTTIME) - renewed.boottime_s


def _read(path: str) -> LockHolder | None:
    kept = _kept(path)
    try:
        age = _age(path, kept.token)
    except FileNotFoundError:
        return None
    limit_s = STALE_S if kept.expires_s is None else kept.expires_s
    return replace(kept, age_s=age, stale=not -limit_s <= age <= limit_s)


def _kept(path: str) -> LockHolder:
    """The holder in the file; none if it can't be read."""
    raw = files.read_json(path)
    holder = LockHolder.read({name: raw.get(name) for name in _HOLDER})
    if isinstance(holder, Unreadable):
        return LockHolder(token=DAMAGED)
    taken, now = Renewal.read(raw.get("taken")), _now(holder.token)
    if isinstance(taken, Unreadable) or taken.boot != now.boot:
        return holder
    return replace(holder, held_s=max(0.0, now.boottime_s - taken.boottime_s))
