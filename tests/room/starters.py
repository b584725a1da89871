"""Functions that start a thread or a process, found in the code itself, and what comes of them where none is to be had.

{part of FILE:FUNCTION: what comes of it}; the unit tests that play it are named where there are some."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from functools import cache

from tests.room.writers import trees

_MAKERS = {"Thread", "Timer", "ThreadPoolExecutor", "Popen"}
_CALLS = {"os.fork", "guardian.fork", "subprocess.run", "subprocess.check_output"}
ENDS = "the command ends; `lack_of` in cli/main.py has the words"
IN_THE_GUARD = "this look ends; the guard's loop tells it, and looks again"
ON_A_NODE = "the verb ends; `used_up` in node/os_errors.py has the words, on its node alone"
PLAYED: Mapping[str, str] = {
    "gang/steps/locks.py:GangLock.__enter__": "played: the lock is given back, and the command ends (test_locks.py)",
    "monitoring/steps/pages.py:CachedValue.value": "played: the page says so; the next request tries again"
    " (test_pages.py)",
    "node/dispatch.py:_answer_in_a_child": "played: that verb is answered with the words, the session stays"
    " (test_dispatch.py)",
    "node/engine/ras.py:Inquiry.follow": "played: the agent goes on, and asks again later (test_ras.py)",
}
"""By the whole name."""
OTHERS: Mapping[str, str] = {
    "checkpoint/on_node/": ON_A_NODE,
    "gang/steps/guard/": IN_THE_GUARD,
    "jobs/on_node/": ON_A_NODE,
    "nettest/on_node/": ON_A_NODE,
    "node/look/": ON_A_NODE,
    "node/verbs/": ON_A_NODE,
    "node/agent/preflight.py": "the check ends before the engine starts; the agent reports why",
    "node/agent/agent.py": "the start ends; the agent reports why",
    "node/agent/record.py": "the start ends; the agent reports why",
    "node/engine/guardian.py": "the start ends; the agent reports why",
    "node/engine/service.py": "the start ends; the agent reports why",
    "node/engine/engine_container.py": "the start ends; the agent reports why",
    "node/engine/hang_inquiry.py": "the agent goes on; nothing is looked at",
    "node/engine/hang_look.py": "the look goes on, and leaves out what it could not ask",
    "node/line_child.py": "the agent goes on; whoever asks tries again",
    "checkpoint/steps/": ENDS,
    "cli/": ENDS,
    "gang/steps/status/": ENDS,
    "hosts/": ENDS,
    "loading/": ENDS,
    "monitoring/": ENDS,
    "remote/": ENDS,
    "tuning/": ENDS,
}
"""By the beginning of the name."""


def _starts(call: ast.Call) -> bool:
    name = ast.unparse(call.func)
    return name in _CALLS or name.rpartition(".")[2] in _MAKERS


def _within(node: ast.AST, scope: str) -> Iterator[str]:
    for child in ast.iter_child_nodes(node):
        inner = f"{scope}.{child.name}".lstrip(".") if isinstance(child, (ast.FunctionDef, ast.ClassDef)) else scope
        if isinstance(child, ast.Call) and _starts(child):
            yield scope
        yield from _within(child, inner)


@cache
def starters() -> tuple[str, ...]:
    """Every one, as FILE:FUNCTION."""
    return tuple(sorted({f"{name}:{scope}" for name, tree in trees().items() for scope in _within(tree, "")}))


def outcome_of(starter: str) -> str:
    """'' for one that nobody has looked at."""
    others = (words for part, words in OTHERS.items() if starter.startswith(part))
    return PLAYED.get(starter) or next(others, "")


SECTION = """
## No thread and no process

Written from the functions in src/ that start one (RLIMIT_NPROC, TasksMax, pids.max); what is not played is read in the
code.

| starter | where none is to be had |
|---|---|
"""


def section() -> str:
    """Of the page."""
    return SECTION + "".join(f"| `{starter}` | {outcome_of(starter)} |\n" for starter in starters())
