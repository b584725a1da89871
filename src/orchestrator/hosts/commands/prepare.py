"""`l40s-deploy prepare`: make hosts ready for `up`; run again, it changes nothing."""

from __future__ import annotations

import argparse
import getpass
import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from orchestrator.cli.options import add_timeout, add_usual, open_inventory
from orchestrator.cli.progress import LivePicture
from orchestrator.cli.screen import Screen, printable
from orchestrator.model.per_node import collected
from orchestrator.protocol.errors import Exit, InputError, Unreachable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from rich.table import Table
    from typing_extensions import Self

    from orchestrator.hosts.steps.prepare import PrepareRequest, PrepareResult
    from orchestrator.hosts.steps.runner import HostEvent

_LINE_EVERY_S = 10.0
"""Of a task that takes longer, where stderr is no terminal."""

_EXAMPLES = (
    "l40s-deploy prepare --check                       # show what would change, as a diff; changes nothing",
    "l40s-deploy prepare                               # packages, user, limits, sudo rule, kernel, the stack",
    "l40s-deploy prepare --bundle stack.bundle         # the stack from a file of `stack build`, without a network",
    "l40s-deploy prepare --bundle stack.bundle --bundle router.bundle     # and the router's host from its own",
    "l40s-deploy prepare --node l40s-2 --tags limits   # one node, one role",
    "l40s-deploy prepare --tags firewall               # close the gang's own ports to all but its nodes",
    "l40s-deploy prepare --remove                      # undo what prepare changed, and only that",
)


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of this verb."""
    from orchestrator.hosts.steps.prepare import ON_REQUEST, TAGS

    add_usual(parser, *_EXAMPLES)
    parser.add_argument("--node", action="append", default=[], metavar="NODE", help="only this node (repeatable)")
    parser.add_argument(
        "--tags",
        default="",
        metavar="T,...",
        help=f"only these: {', '.join(TAGS)}; and on request only: {', '.join(ON_REQUEST)}",
    )
    parser.add_argument("--stack", metavar="STACK", help="the stack to install (default: the inventory's l40s_stack)")
    parser.add_argument(
        "--bundle",
        type=Path,
        action="append",
        default=[],
        metavar="FILE",
        help="install the stack from this file of `stack build`; repeat for the router's file of `stack build router`",
    )
    parser.add_argument("--find-links", default="", metavar="PLACE", help="extra package location for pip on the nodes")
    parser.add_argument(
        "--install-containers",
        action="store_true",
        help="for a stack in a container: install Docker (or podman) and NVIDIA's toolkit where missing",
    )
    parser.add_argument("--become", action="store_true", help="use sudo even if the inventory does not ask for it")
    parser.add_argument(
        "-K", "--ask-become-pass", action="store_true", help="prompt for the sudo password; use with --become"
    )
    parser.add_argument("--remove", action="store_true", help="undo what prepare changed, as recorded on each node")
    parser.add_argument("--check", "--dry-run", action="store_true", help="show what would change; change nothing")
    add_timeout(parser, "give up after this time")


def run(args: argparse.Namespace, screen: Screen) -> int:
    """0 when every node is ready; 4 where one can't be reached, 3 where one failed."""
    from orchestrator.hosts.steps.prepare import prepare, tasks_of

    inventory = open_inventory(args, screen)
    request = _request(args)
    if inventory.router is not None and request.bundle and not request.router_bundle and not request.remove:
        screen.say("the router's packages are not in this bundle: l40s-deploy stack build router --out router.bundle")
    with _PrepareProgress(screen, lambda: tasks_of(inventory, request)) as progress:
        outcome = prepare(inventory, request, progress)
    if screen.as_json:
        screen.json(_document(outcome, request.check, progress))
    else:
        _show(outcome, request, progress, screen)
    failures = outcome.results.failures.values()
    if any(isinstance(failure, Unreachable) for failure in failures):
        return Exit.UNREACHABLE
    return Exit.FINDINGS if failures else Exit.DONE


def _request(args: argparse.Namespace) -> PrepareRequest:
    from orchestrator.hosts.steps.prepare import PrepareRequest, sorted_bundles

    bundle, router_bundle = sorted_bundles(args.bundle)
    return PrepareRequest(
        nodes=tuple(args.node),
        tags=tuple(tag.strip() for tag in args.tags.split(",") if tag.strip()),
        check=args.check,
        remove=args.remove,
        stack=args.stack,
        bundle=bundle,
        router_bundle=router_bundle,
        install_containers=args.install_containers,
        become=args.become or args.ask_become_pass,
        become_password=_sudo_password() if args.ask_become_pass else None,
        find_links=args.find_links,
        timeout_s=args.timeout,
    )


def _sudo_password() -> str:
    try:
        return getpass.getpass("sudo's password on the nodes: ")
    except EOFError:
        raise InputError(
            "no password was given", where="--ask-become-pass", fix="enter the password, or omit -K if sudo needs none"
        ) from None


@dataclass
class _HostProgress:
    """What a node has come to so far."""

    task: str = ""
    count: int = 0
    since: float = 0.0
    changes: list[dict[str, str]] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    failure: str = ""

    def passed_s(self) -> float:
        """Seconds in this task."""
        return time.monotonic() - self.since


class _PrepareProgress(LivePicture):
    """Ansible's events as they come: a live table on a terminal, else a line for every change and for a long task.

    count: how many tasks each node has; it takes seconds, and is asked once Ansible runs
    """

    def __init__(self, screen: Screen, count: Callable[[], Mapping[str, int]] = dict) -> None:
        self._count = count
        self.nodes: dict[str, _HostProgress] = {}
        self.tasks: dict[str, int] = {}
        self._over = threading.Event()
        super().__init__(screen)

    def __enter__(self) -> Self:
        super().__enter__()
        if self._live is None:
            threading.Thread(target=self._tell_of_long_tasks, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        super().__exit__()

    def __call__(self, step: HostEvent) -> None:
        if not self.nodes:
            # no daemon: where we end before it does, its files would stay
            threading.Thread(target=lambda: self.tasks.update(self._count())).start()
        seen = self.nodes.setdefault(step.host, _HostProgress())
        if step.outcome == "started":
            seen.task, seen.count, seen.since = step.task, seen.count + 1, time.monotonic()
        elif step.outcome == "changed":
            seen.changes.append({"task": step.task, "role": step.role, "diff": step.diff})
            self._say(f"{self._place(step.host)}: {step.task} ({step.seconds:.1f} s)")
        elif step.outcome == "remark":
            seen.remarks.append(step.message)
        elif step.outcome in ("failed", "unreachable"):
            seen.failure = step.message
            self._say(f"{self._place(step.host)}: {step.outcome}: {step.task}")
        if self._live is not None:
            self._live.update(self)

    def _place(self, name: str) -> str:
        """'node0: task 12 of 41', as far as that is known."""
        count, of = self.nodes[name].count, self.tasks.get(name, 0)
        return f"{name}: task {count} of {max(of, count)}" if of else f"{name}: task {count}"

    def _tell_of_long_tasks(self) -> None:
        while not self._over.wait(_LINE_EVERY_S):
            for name, seen in list(self.nodes.items()):
                if seen.task and not seen.failure and (passed := seen.passed_s()) >= _LINE_EVERY_S:
                    self._say(f"{self._place(name)}: {seen.task}, {passed:.0f} s so far")

    def _say(self, words: str) -> None:
        if self._live is None:
            self._screen.say(words)

    def __rich__(self) -> Table:
        """Drawn again at each refresh of the display, so that the clock of a long task keeps running."""
        from rich.table import Table
        from rich.text import Text

        table = Table(box=None, pad_edge=False)
        for column in ("node", "changed", "task", "time", "at"):
            table.add_column(column)
        for name, seen in sorted(self.nodes.items()):
            at = Text(printable(seen.failure[:100]), style="bold red") if seen.failure else Text(printable(seen.task))
            of = self.tasks.get(name, 0)
            place = f"{seen.count}/{max(of, seen.count)}" if of else str(seen.count)
            time_here = "" if seen.failure else f"{seen.passed_s():.0f} s"
            table.add_row(Text(printable(name)), str(len(seen.changes)), place, time_here, at)
        return table


def _document(outcome: PrepareResult, check: bool, progress: _PrepareProgress) -> dict[str, Any]:
    results, failures = outcome.results.values, outcome.results.failures
    nodes = [
        {
            "name": name,
            "result": asdict(results[name]) if name in results else None,
            "changes": seen.changes,
            "remarks": seen.remarks,
            "error": failures[name].as_json() if name in failures else None,
        }
        for name, seen in ((name, progress.nodes.get(name, _HostProgress())) for name in outcome.nodes)
    ]
    return {"check": check, "seconds": round(outcome.seconds, 3), "nodes": nodes}


def _show(outcome: PrepareResult, request: PrepareRequest, progress: _PrepareProgress, screen: Screen) -> None:
    _show_progress(outcome, request.check, progress, screen)
    for name in outcome.nodes:
        if (failure := outcome.results.failures.get(name)) is not None:
            screen.out.print(printable(f"{name}: {failure.what}"), style="bold red")
            screen.show(f"  fix: {failure.fix}")
        elif result := outcome.results.values.get(name):
            would = "would change" if request.check else "changed"
            screen.show(f"{name}: {would}={result.changed} ok={result.ok} skipped={result.skipped}")
    done = len(outcome.results.values)
    if request.check:
        verb = "checked"
    else:
        verb = "restored" if request.remove else "ready"
    screen.out.print(f"{done} of {len(outcome.nodes)} nodes {verb} after {outcome.seconds:.1f} s")
    if not request.remove and not request.check and done:
        screen.say("check what still needs a reboot or a BIOS setting: l40s-deploy doctor")


def _show_progress(outcome: PrepareResult, check: bool, progress: _PrepareProgress, screen: Screen) -> None:
    """Remarks, and in a rehearsal what would change, each once with the nodes that it is of."""
    seen = {name: progress.nodes[name] for name in outcome.nodes if name in progress.nodes}
    changes = ((f"{change['task']}\n{change['diff']}", name) for name, host in seen.items() for change in host.changes)
    for text, names in collected(changes if check else ()).items():
        task, *diff = text.splitlines()
        screen.out.print(printable(f"{', '.join(names)}: {task}"), style="bold")
        screen.show(*(f"    {line}" for line in diff))
    for text, names in collected((text, name) for name, host in seen.items() for text in host.remarks).items():
        screen.show(f"{', '.join(names)}: {text}")
