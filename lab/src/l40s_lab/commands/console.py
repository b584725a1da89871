"""`lab shell`, `lab exec`: a node's console, as root and without its network."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from orchestrator.cli.options import add_examples
from orchestrator.cli.screen import Screen


def configure(verbs: Any, add_name: Callable[[argparse.ArgumentParser], None]) -> None:
    """verbs: the subparsers of `lab`; add_name: its --name option."""
    shell = verbs.add_parser("shell", help="open a root shell on a node, over its console instead of its network")
    add_examples(shell, "l40s-deploy lab shell node0")
    shell.add_argument("node", metavar="NODE")
    add_name(shell)
    execute = verbs.add_parser("exec", help="run a command on a node, over its console; returns its exit code")
    add_examples(
        execute, "l40s-deploy lab exec node0 -- systemctl --failed", "l40s-deploy lab exec node1 -- ip address"
    )
    execute.add_argument("node", metavar="NODE")
    execute.add_argument("words", metavar="CMD", nargs="+", help="the command, after --")
    add_name(execute)


def run_shell(args: argparse.Namespace, _screen: Screen) -> int:
    """A login shell."""
    from l40s_lab.node.inside import shell

    return shell(args.name, args.node)


def run_exec(args: argparse.Namespace, _screen: Screen) -> int:
    """One command."""
    from l40s_lab.node.inside import execute

    return execute(args.name, args.node, args.words)
