"""How many requests a gang has at once, and how many more may wait in it. Pure."""

from __future__ import annotations

from collections.abc import Sequence

from orchestrator.engines.engine import Engine, QueueLimit
from orchestrator.model.inventory import AUTO
from orchestrator.model.plan import Memory
from orchestrator.planning.memory import Flags
from orchestrator.protocol.errors import InputError
from orchestrator.protocol.planned import Layout

REQUEST_TOKENS = 2048
"""Prompt and answer of the request that is reckoned with: an assumption, as no two services have the same."""
_VARIABLE = "l40s_max_queued"


def at_once(engine: Engine, memory: Memory, layout: Layout, flags: Flags) -> int | None:
    """Requests of REQUEST_TOKENS that the KV cache of a gang holds, of all its attention groups, and that its flags let
    run; None where neither is known."""
    asked = flags.get(engine.names.max_running, ("",))[-1]
    limits = [int(asked)] if asked.isdecimal() else []
    if memory.kv_tokens is not None:
        limits.append(memory.kv_tokens * layout.attention_data_parallel // REQUEST_TOKENS)
    return max(1, min(limits)) if limits else None


def queue_limit(asked: str, engine: Engine, flags: Flags, running: int | None, where: str) -> QueueLimit | None:
    """Of a gang that may run so many requests; as many as these may wait where the plan is to choose: a burst that a
    free gang could run passes through its queue first, and who waits does so for about one answer's time.

    asked: `l40s_max_queued`; flags: those that others ask for. Raises InputError where the engine has no such limit, a
    flag sets it too, or there is nothing to choose it by.
    """
    if not asked:
        return None
    if engine.names.max_queued not in engine.flags():
        raise InputError(
            f"{engine.product} {engine.version} has no limit for its queue",
            where=where,
            fix=f"remove {_VARIABLE}, or put the router before the gang and set l40s_router_max_requests",
        )
    if engine.names.max_queued in flags:
        fix = f"remove {_VARIABLE}, or that flag"
        raise InputError(f"{_VARIABLE} and {engine.names.max_queued} set the same", where=where, fix=fix)
    if asked != AUTO:
        return QueueLimit(waiting=int(asked), running=running, source=f"{_VARIABLE} in the inventory")
    if running is None:
        raise InputError(
            f"{_VARIABLE}: {AUTO} goes by the KV tokens, which are not calculated here",
            where=where,
            fix=f"write a number, as `{_VARIABLE}: 64`",
        )
    return QueueLimit(waiting=running, running=running, source=f"{_VARIABLE}: {AUTO}: as many as run at once")


def words(running: int | None, queue: QueueLimit | None) -> tuple[str, ...]:
    """What a plan says of it; nothing where the number is not known."""
    if running is None:
        return ()
    further = "further ones wait, any number" if queue is None else f"{queue.waiting:,} more may wait"
    return (f"requests: {running:,} of {REQUEST_TOKENS:,} tokens run at once by KV tokens and flags; {further}",)


def routers_limit(running: Sequence[int | None]) -> int | None:
    """`l40s_router_max_requests` for gangs that run so many requests at once: as many more may wait. None where it is
    not known of all of them, or there is none."""
    known = [each for each in running if each is not None]
    return 2 * sum(known) if known and len(known) == len(running) else None


def limit_at_start(asked: str, running: Sequence[int | None]) -> int | None:
    """Most requests that a router lets in which starts now; None for any number.

    asked: `l40s_router_max_requests`; running: what each of its gangs runs at once. A gang that does not tell (nothing
    was started there) counts as the largest one that does, so that it has its share once it serves.
    """
    if asked != AUTO:
        return int(asked) if asked else None
    largest = max((each for each in running if each is not None), default=None)
    return routers_limit([largest if each is None else each for each in running])


def router_words(asked: str, most: int | None) -> tuple[str, ...]:
    """What a plan says of the router before all of its gangs; nothing where nothing is known. asked:
    `l40s_router_max_requests`; most: of `routers_limit`"""
    limit = limit_at_start(asked, ()) if asked != AUTO else most
    if limit is None and asked:
        return ("router: at its start it lets in twice what all gangs run at once, further requests get 429",)
    if limit is not None:
        beside = "" if most is None else f"; all gangs run {most // 2:,} at once"
        return (f"router: at most {limit:,} requests at once, further ones get 429{beside}",)
    if most is None:
        return ()
    advice = f"with l40s_router_max_requests: auto ({most:,}) as many wait as all gangs run at once, others get 429"
    return (f"router: any number of requests is let in; {advice}",)
