"""`l40s-deploy completion SHELL`: a script that completes verbs, options, files, and names of the inventory."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from contextlib import suppress

from orchestrator.cli.main import every_action, every_parser
from orchestrator.cli.options import add_examples
from orchestrator.cli.screen import Screen
from orchestrator.loading.inventory import load_inventory
from orchestrator.loading.profiles import profile_names
from orchestrator.loading.which import choose_inventory
from orchestrator.protocol.errors import DeployError, Exit

SHELLS = ("bash", "zsh", "fish")
NAMES = ("gangs", "nodes", "models")
_NAMED = {"GANG": "gangs", "NODE": "nodes", "NAME -- FLAGS": "gangs models"}
"""What words of a metavar name."""
_FILES = ("FILE", "HOOK", "PLAN", "PATH")
_FOLDERS = ("DIR", "FOLDER")


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of this verb."""
    add_examples(
        parser,
        "l40s-deploy completion bash > ~/.local/share/bash-completion/completions/l40s-deploy",
        'l40s-deploy completion zsh > "${fpath[1]}/_l40s-deploy"',
        "l40s-deploy completion fish > ~/.config/fish/completions/l40s-deploy.fish",
    )
    parser.add_argument("shell", nargs="?", default=SHELLS[0], choices=SHELLS, help="the shell that will read it")
    parser.add_argument("--names", nargs="+", choices=NAMES, metavar="KIND", help="print names, for the script")


def run(args: argparse.Namespace, screen: Screen) -> int:
    """Write the script to stdout, or the names."""
    if args.names:
        for name in _names(args.names):
            screen.verbatim(name)
        return Exit.DONE
    import shtab

    parser = every_parser()
    for action in every_action(parser):
        if action.metavar in _FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.metavar in _FOLDERS:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
        elif what := "models" if action.dest == "model" else _NAMED.get(str(action.metavar), ""):
            action.complete = _asking(what)  # type: ignore[attr-defined]
    functions = {
        "bash": "\n".join(f"{_function(kind)}() {{ compgen -W '$({_command(kind)})' -- $1; }}" for kind in _WHAT)
    }
    screen.verbatim(shtab.complete(parser, shell=args.shell, preamble=functions))  # type: ignore[arg-type]
    return Exit.DONE


_WHAT = ("models", *_NAMED.values())


def _asking(what: str) -> dict[str, str]:
    """How each shell asks this program for names at the moment of completion."""
    return {"bash": _function(what), "zsh": f"($({_command(what)}))", "fish": f"({_command(what)})"}


def _function(what: str) -> str:
    return f"_l40s_deploy_{what.replace(' ', '_')}"


def _command(what: str) -> str:
    return f"l40s-deploy completion --names {what} 2>/dev/null"


def _names(kinds: Sequence[str]) -> Iterator[str]:
    """Of the inventory that a command would use; of models alone where there is none."""
    with suppress(DeployError):
        if {"gangs", "nodes"} & {*kinds}:
            inventory = load_inventory(choose_inventory(None).path)
            yield from (gang.name for gang in inventory.gangs if "gangs" in kinds)
            yield from (node.name for node in inventory.nodes if "nodes" in kinds)
    yield from profile_names() if "models" in kinds else ()
