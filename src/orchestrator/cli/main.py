"""The console script: find the verb, import only its module, turn failures into one message and a code."""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from types import ModuleType

from orchestrator import __version__
from orchestrator.cli.arguments import (
    Parser,
    added,
    apart,
    arranged,
    as_now,
    described,
    in_groups,
    strange,
    without_quiet,
)
from orchestrator.cli.detaching import detaching
from orchestrator.cli.screen import Screen, answering
from orchestrator.loading.which import load_config
from orchestrator.model.lacks import lack_of
from orchestrator.protocol.errors import DeployError, Detached, Exit, InputError

GROUPS = {
    "most used": {
        "hosts.init": "write an inventory: asks for hosts, checks host keys, sudo and networks, runs doctor",
        "gang.doctor": "check the hardware and wiring: what is wrong, what it costs, how to fix it",
        "hosts.prepare": "set up the hosts: packages, user, limits, sudo rule, stack; --remove undoes it",
        "gang.up": "start a model on every gang: ready to serve, or one cause and nothing left behind",
        "gang.status": "show nodes, ranks, GPUs and service at a glance",
        "gang.why": "explain what is wrong now and the last failure: its cause, the log lines that show it,"
        " and the fix",
        "gang.restart": "restart a gang, all ranks, with its current plan; --rolling: one gang at a time behind"
        " the router",
        "gang.down": "stop gangs, each in the order that its engine needs",
    },
    "serve": {
        "gang.rollback": "return a gang to its previous plan",
        "gang.router": "one address in front of several gangs: start it, show its status, stop it",
        "gang.guard": "watch gangs and restart a gang that fails or hangs",
        "gang.lock": "show which command holds a gang; release a lock that a dead command left behind",
    },
    "inspect": {
        "monitoring.web": "serve a read-only page with status, GPUs, rails, failures and benchmarks",
        "gang.logs": "show the engines' log lines, node by node",
        "gang.history": "list past runs: who started them, when, with which command, and how they ended",
        "gang.plan": "show what would run where, and why; changes nothing",
        "checkpoint.models": "list the models that have a profile, and the layouts that fit this cluster",
        "doctor.discover": "show each node as a tree: NUMA domains, switches, GPUs, NICs, ports",
        "gang.version": "show the version of this program, and of the agents and stacks on the nodes",
    },
    "verify": {
        "nettest.nettest": "measure the network between GPUs and nodes with the stack's own libraries, and name"
        " what is slow",
        "bench.bench": "measure the speed with the engine's own benchmark, and compare it with the expected speed",
        "sweep.sweep": "measure layouts and settings one after the other, and show the best for each load",
        "golden.golden": "check that a gang still returns the answers that you accepted",
        "support.certify": "measure, start, bench, kill a rank and restart, and write what was found as one file"
        " without names",
    },
    "operate": {
        "monitoring.exporter": "metrics of gangs, ranks, GPUs and rails for Prometheus",
        "monitoring.export": "write the cluster for other programs: Prometheus and Grafana, compose",
        "monitoring.notify": "show who is notified when a gang fails; send a test message",
    },
    "set up": {
        "hosts.stack": "pack a stack's packages into one file, or check its kernels on the nodes",
        "checkpoint.checkpoint": "re-block, check, copy and verify checkpoints",
        "tuning.tuning": "show which tuned kernel configs a model needs and each node has; copy them between nodes",
    },
    "this program": {
        "completion": "print a script that completes commands in bash, zsh or fish",
        "support.support-bundle": "write one file for a bug report, without secrets, names and addresses",
    },
}
"""Verbs by what they are for, with their summaries. Before the dot: the package whose commands/ a verb stands in;
without one it stands beside this file. Each is a module with `configure(parser)` and `run(args, screen) -> exit code`.
"""
_HOME_OF = {key.rpartition(".")[2]: key.rpartition(".")[0] for verbs in GROUPS.values() for key in verbs}
VERBS = {key.rpartition(".")[2]: summary for verbs in GROUPS.values() for key, summary in verbs.items()}
APART = {"lab": "l40s-deploy-lab"}
"""Verbs of other distributions. Their modules, which have a SUMMARY too, stand in the entry points VERBS_OF_OTHERS."""
_USAGE = "l40s-deploy VERB [OPTION ...]"
VERBS_OF_OTHERS = "l40s_deploy.verbs"


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line, by default this process's own; returns its exit code."""
    words = sys.argv[1:] if argv is None else list(argv)
    screen = Screen(as_json="--json" in words)
    try:
        with answering():
            return _answered(words, screen)
    except DeployError as failure:
        with suppress(Detached):
            screen.error(failure)
        return failure.exit_code
    except KeyboardInterrupt:
        with suppress(Detached):
            screen.say("interrupted")
        return Exit.INTERRUPTED
    except BrokenPipeError:
        return Exit.DONE
    except (OSError, RuntimeError, MemoryError) as failure:
        if (lack := lack_of(failure)) is None:
            raise
        with suppress(Detached):
            screen.error(lack)
        return lack.exit_code


def _answered(words: list[str], screen: Screen) -> int:
    if os.path.expanduser("~") == "~":  # noqa: PTH111 - Path raises
        raise InputError("is not set, and this user has no entry in passwd", where="$HOME", fix="export HOME=/tmp")
    config = load_config()
    words, screen.quiet = without_quiet(words, config.quiet)
    words = arranged(words, {**VERBS, **APART})
    words, renamed = as_now(words)
    for former, now in renamed:
        screen.say(f"`{former}` is called `{now}` now; the next release no longer knows the former spelling")
    if not words:
        screen.verbatim(short_help().rstrip())
        return Exit.DONE
    verb = next((word for word in words if not word.startswith("-")), "")
    parser, modules = parser_of(verb)
    if verb in config.options and words[0] == verb:
        words = added(words, verbs_of(parser)[verb], config.options[verb], config.path)
    args, unknown = parser.parse_known_args(words)
    if unknown[:1] == ["--"] and "engine_args" in args:  # argparse knows only the first group of positions
        args.engine_args, unknown = [*args.engine_args, *unknown[1:]], []
    if unknown:
        raise strange(unknown, args.verb, every_action(verbs_of(parser)[args.verb]))
    args.typed = words
    with detaching():
        return int(modules[args.verb].run(args, screen))


def parser_of(verb: str | None) -> tuple[argparse.ArgumentParser, dict[str, ModuleType]]:
    """The command line with one verb's options, and that verb's module; None: with all of them."""
    others = {} if verb in VERBS else _verbs_of_others()
    if verb in APART and verb not in others:
        fix = f"pip install {APART[verb]}=={__version__} (in a clone: pip install -e ./lab)"
        raise InputError(f"{APART[verb]} is not installed", where=f"l40s-deploy {verb}", fix=fix)
    groups = _groups(others)
    parser = Parser(
        prog="l40s-deploy",
        usage=_USAGE,
        description="Serve one very large model on PCIe GPU servers, all ranks as one gang.",
        epilog=in_groups(groups, "l40s-deploy up --model DeepSeek-V3-0324-Block64x64"),
    )
    parser.add_argument("--version", action="version", version=f"l40s-deploy {__version__}")
    parser.add_argument("-q", "--quiet", action="store_true", help="print results and errors only; for every verb")
    verbs = parser.add_subparsers(
        dest="verb",
        required=True,
        metavar="VERB",
        help="what to do" if verb is None else argparse.SUPPRESS,  # --help has them in groups
        prog="l40s-deploy",
    )
    modules: dict[str, ModuleType] = {}
    summaries = {name: words for verbs in groups.values() for name, words in verbs.items()}
    for name, summary in {verb: summaries[verb]}.items() if verb in summaries else summaries.items():
        sub = verbs.add_parser(name, help=summary)
        if verb in (name, None):
            modules[name] = others.get(name) or importlib.import_module(module_of(name))
            modules[name].configure(sub)
            apart(sub)
    described(parser)
    return parser, modules


def short_help() -> str:
    """What a stranger needs first: the verbs that are used most, and how to see the others."""
    most_used = dict(list(_groups({}).items())[:1])
    example = "l40s-deploy doctor --example articles    # needs no inventory and no GPU"
    all_verbs = "`l40s-deploy --help` lists every verb."
    return Parser(
        prog="l40s-deploy", usage=_USAGE, add_help=False, epilog=f"{in_groups(most_used, example)}\n{all_verbs}"
    ).format_help()


def every_parser() -> argparse.ArgumentParser:
    """All verbs with all their options. A command itself builds only the verb that was typed."""
    return parser_of(None)[0]


def verbs_of(parser: argparse.ArgumentParser) -> dict[str, argparse.ArgumentParser]:
    """The parsers below this one, by name; empty where it has none."""
    below = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return {name: verb for action in below for name, verb in action.choices.items()}


def every_action(parser: argparse.ArgumentParser) -> Iterator[argparse.Action]:
    """Every option and argument of a parser and of those below it."""
    for action in parser._actions:
        if not isinstance(action, argparse._SubParsersAction):
            yield action
    for verb in verbs_of(parser).values():
        yield from every_action(verb)


def module_of(verb: str) -> str:
    """The name of the module that a verb of ours is."""
    home = f"{_HOME_OF[verb]}.commands" if _HOME_OF[verb] else "cli"
    return f"orchestrator.{home}.{verb.replace('-', '_')}"


def _groups(others: Mapping[str, ModuleType]) -> dict[str, dict[str, str]]:
    """The verbs that are there, with their summaries: a room may have been taken out."""
    there = [verb for verb, home in _HOME_OF.items() if importlib.util.find_spec(f"orchestrator.{home or 'cli'}")]
    names = {group: [key.rpartition(".")[2] for key in verbs] for group, verbs in GROUPS.items()}
    ours = {group: {name: VERBS[name] for name in verbs if name in there} for group, verbs in names.items()}
    rehearse = {name: str(module.SUMMARY) for name, module in others.items()}
    return {**ours, "rehearse": rehearse} if rehearse else ours


def _verbs_of_others() -> dict[str, ModuleType]:
    """By name, of whatever is installed beside us; what can't be imported is not."""
    from importlib.metadata import entry_points

    verbs: dict[str, ModuleType] = {}
    for entry in entry_points(group=VERBS_OF_OTHERS):
        with suppress(ImportError):
            verbs[entry.name] = entry.load()
    return verbs


if __name__ == "__main__":
    sys.exit(main())
