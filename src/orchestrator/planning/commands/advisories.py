"""Published vulnerabilities of the stacks that a command is about, as a note on the screen and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from orchestrator.cli.screen import Screen, printable
from orchestrator.model.profile import Stack


def known(stacks: Iterable[Stack]) -> tuple[Stack, ...]:
    """Each stack once, those that have any."""
    return tuple({stack.name: stack for stack in stacks if stack.advisories}.values())


def say_advisories(stacks: Sequence[Stack], screen: Screen) -> None:
    """One line a stack; docs/security.md has what each needs."""
    for stack in known(stacks):
        ids = ", ".join(one.id for one in stack.advisories)
        screen.out.print(
            printable(
                f"note: {stack.name} has {len(stack.advisories)} published vulnerabilities, looked up on "
                f"{stack.looked_up}: {ids}; see `doctor --json` and docs/security.md for when they matter"
            ),
            style="dim",
        )


def advisories_json(stacks: Iterable[Stack]) -> list[dict[str, Any]]:
    """[{stack, looked_up, known: [{id, published, package, what, when, source}]}]."""
    return [
        {
            "stack": stack.name,
            "looked_up": stack.looked_up,
            "known": [
                {key: getattr(one, key) for key in ("id", "published", "package", "what", "when", "source")}
                for one in stack.advisories
            ],
        }
        for stack in known(stacks)
    ]
