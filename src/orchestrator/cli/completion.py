"""`l40s-deploy completion SHELL`: a script that completes verbs, options and files."""

from __future__ import annotations

import argparse

from orchestrator.cli.every_parser import every_action, every_parser
from orchestrator.cli.options import add_examples
from orchestrator.cli.screen import Screen
from orchestrator.model.errors import Exit

SHELLS = ("bash", "zsh", "fish")
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
    parser.add_argument("shell", choices=SHELLS, help="the shell that will read the script")


def run(args: argparse.Namespace, screen: Screen) -> int:
    """Write the script to stdout."""
    import shtab

    parser = every_parser()
    for action in every_action(parser):
        if action.metavar in _FILES:
            action.complete = shtab.FILE  # type: ignore[attr-defined]
        elif action.metavar in _FOLDERS:
            action.complete = shtab.DIRECTORY  # type: ignore[attr-defined]
    screen.verbatim(shtab.complete(parser, shell=args.shell))
    return Exit.DONE
