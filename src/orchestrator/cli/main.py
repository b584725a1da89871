"""The console script: find the verb, import only its module, turn failures into one message and a code."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from contextlib import suppress
from types import ModuleType

from orchestrator import __version__
from orchestrator.cli.arguments import Parser, arranged, in_groups, strange
from orchestrator.cli.detaching import detaching, forget
from orchestrator.cli.screen import Screen
from orchestrator.model.errors import DeployError, Detached
from orchestrator.model.exit_codes import Exit

GROUPS = {
    "serve": {
        "up": "start a model on every gang: ready to serve, or one cause and nothing left behind",
        "down": "stop every gang, in the order its engine needs",
        "restart": "a gang as a whole, with the plan that it has; gang by gang behind the router with --rolling",
        "rollback": "the plan that a gang had before the one that it has",
        "router": "the one address before several gangs: start, look, stop",
        "guard": "watch gangs, and restart one as a whole when it failed or hangs",
        "lock": "who works on a gang; give back a lock that a dead command has left",
    },
    "look": {
        "status": "nodes, ranks, GPUs and service at a glance",
        "logs": "the engines' log lines, node by node",
        "history": "the runs that the nodes have kept: who, when, what, how it ended",
        "audit": "who worked on a gang, when, with which command",
        "why": "the last failure's one cause, with the lines that show it and the fix",
        "plan": "what would run where, and why; changes nothing",
        "models": "every model that there is a profile for, and the layouts that fit this cluster",
        "doctor": "what is wrong with the wiring, what it costs, how to fix it",
        "discover": "each node as a tree: NUMA, switches, GPUs, NICs, ports",
    },
    "prove": {
        "golden": "is it still the right text: answers that were accepted, asked for again",
    },
    "prepare": {
        "prepare": "make hosts ready: packages, user, limits, sudo rule, the stack; or take it back",
        "stack": "a stack's packages as one file, for nodes that reach no package index",
        "checkpoint": "re-block an FP8 checkpoint to finer blocks; look at one before it is served",
        "tuning": "tuned kernel configs: which a model needs, what each node has; from one node onto all",
    },
    "rehearse": {
        "lab": "an emulated cluster on this machine: real SSH, real processes",
    },
}
VERBS = {name: summary for verbs in GROUPS.values() for name, summary in verbs.items()}
"""Every verb is a module of this package with `configure(parser)` and `run(args, screen) -> exit code`."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; returns its exit code."""
    words = list(sys.argv[1:] if argv is None else argv)
    screen = Screen(as_json="--json" in words)
    try:
        words = arranged(words, VERBS)
        parser, modules = _parser(next((word for word in words if not word.startswith("-")), ""))
        args, unknown = parser.parse_known_args(words)
        if unknown:
            raise strange(unknown, args.verb)
        with detaching():
            code = int(modules[args.verb].run(args, screen))
        sys.stdout.flush()
    except DeployError as failure:
        with suppress(Detached):
            screen.error(failure)
        return failure.exit_code
    except KeyboardInterrupt:
        with suppress(Detached):
            screen.say("interrupted")
        return Exit.INTERRUPTED
    except BrokenPipeError:
        forget(sys.stdout)
        return Exit.DONE
    return code


def _parser(verb: str) -> tuple[argparse.ArgumentParser, dict[str, ModuleType]]:
    parser = Parser(
        prog="l40s-deploy",
        usage="l40s-deploy VERB [OPTION ...]",
        description="Serve one very large model on PCIe GPU servers, all ranks as one gang.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog=in_groups(GROUPS, "l40s-deploy up --model DeepSeek-V3-0324-Block64x64"),
    )
    parser.add_argument("--version", action="version", version=f"l40s-deploy {__version__}")
    verbs = parser.add_subparsers(
        dest="verb", required=True, metavar="VERB", help=argparse.SUPPRESS, prog="l40s-deploy"
    )
    modules: dict[str, ModuleType] = {}
    for name, summary in VERBS.items():
        sub = verbs.add_parser(name, description=summary, formatter_class=argparse.RawDescriptionHelpFormatter)
        if name == verb:
            modules[name] = importlib.import_module(f"orchestrator.cli.{name}")
            modules[name].configure(sub)
    return parser, modules


if __name__ == "__main__":
    sys.exit(main())
