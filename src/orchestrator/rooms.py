"""Where the core meets the rooms: what each of them offers at a hook. A room that was taken out offers nothing.

A room's hooks.py has those of these functions that it needs:

options(verb, parser)           more options for `up`, `restart`, `guard` or `doctor`
actions(verb, parsers)          more words below `stack`
instead(verb, args, screen)     an exit code, where the options ask for something else than the verb does; else None
before_go(args)                 a BeforeGoCheck of gang/steps/up_operation.py between *armed* and *go*, or None
gate(args)                      a GangGate of gang/steps/up_operation.py for the first gang that `up` changes, or None
after_ready(operation, views, args, screen)   what became of a check of gangs that serve now, or None
guard_event(args)               a GuardCheck of gang/steps/guard/guard.py, which asks a serving gang now and then
notifier(inventory, say)        who is told of events: a context manager with look(view) and tell(notice)
metrics(args, newest)           a context in which metrics are served, or None; newest(): the inventory of now
"""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

ROOMS = ("tuning", "nettest", "golden", "monitoring")
"""Those with hooks, in the order in which they are asked."""


def answers(hook: str, *given: object) -> list[Any]:
    """Call this function of every room that is there and has it; what they answer, without None."""
    answers_of = []
    for room in ROOMS:
        if find_spec(f"orchestrator.{room}") is not None:
            offer = getattr(importlib.import_module(f"orchestrator.{room}.hooks"), hook, None)
            answers_of.append(offer(*given) if offer is not None else None)
    return [answer for answer in answers_of if answer is not None]
