"""`l40s-deploy why`: the last failure's one cause, repeated; `--log`: the cause that logs of any engine show."""

from __future__ import annotations

import argparse

from orchestrator.cli.options import add_usual_of_gangs, open_cluster
from orchestrator.cli.screen import Screen, printable
from orchestrator.gang.history import FailureVerdict
from orchestrator.gang.steps.router.host import GANG
from orchestrator.gang.steps.status.history import Explanation, why, why_json
from orchestrator.gang.view import GangView
from orchestrator.model.errors import Exit
from orchestrator.model.gang_state import GangState


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of this verb."""
    add_usual_of_gangs(
        parser,
        "l40s-deploy why",
        "l40s-deploy why --all gang0",
        "l40s-deploy why --run 20261122-150405-3f2a    # of `l40s-deploy history`",
        "l40s-deploy why --log node0.log node1.log.gz",
        "kubectl logs --prefix -l app=engine | l40s-deploy why --log -",
        "l40s-deploy logs --around-failure",
    )
    parser.add_argument(
        "--all", action="store_true", help="also show later errors and the events of all nodes in order"
    )
    parser.add_argument("--run", default="", metavar="ID", help="explain this run, which `history` names")
    parser.add_argument(
        "--log",
        nargs="+",
        default=[],
        metavar="FILE",
        help="read these logs of SGLang, vLLM or NCCL instead, of one node each, and ask no node: text or gzip, with"
        " the prefixes of journald, docker, kubectl or mpirun, NODE=FILE to name the node, - for standard input",
    )


def run(args: argparse.Namespace, screen: Screen) -> int:
    """0 when every node answered, whether or not anything ever failed; 4 otherwise. With --log 3 where they show a
    cause, else 0."""
    if args.log:
        return _of_logs(args.log, screen, as_json=args.json)
    accounts = why(open_cluster(args, screen), tuple(args.gang), events=args.all, run=args.run)
    if args.json:
        screen.json(why_json(accounts))
    else:
        for account in accounts:
            show(account, screen, everything=args.all)
    return Exit.UNREACHABLE if any(account.failures for account in accounts) else 0


def _of_logs(names: list[str], screen: Screen, *, as_json: bool) -> int:
    from orchestrator.gang.commands.gangs import cause_lines
    from orchestrator.gang.steps.status.logs_read import log_files, read_logs

    told = read_logs(log_files(names))
    if as_json:
        screen.json(told.as_json())
        return Exit.FINDINGS if told.cause else 0
    nccl = f"NCCL {told.nccl}" if told.nccl else ""
    written = ", ".join(filter(None, (f"{told.engine} {told.version}".strip(), nccl, told.transport)))
    screen.out.print(printable(f"read: {written or 'no line of an engine or of NCCL was recognised'}"))
    for finding in told.findings:
        screen.out.print(printable(f"{finding.id} {finding.node}: {finding.title}"))
    for line in cause_lines(told.cause) if told.cause else ():
        screen.out.print(line)
    if told.cause is None:
        ending = f"; the engine's own last exception: {told.exception}" if told.exception else ""
        screen.out.print(printable(f"no cause is known{ending}"))
    for cause in told.secondary:
        screen.out.print(printable(f"  also {cause.node}: {cause.text}"))
    return Exit.FINDINGS if told.cause else 0


def show(account: Explanation, screen: Screen, *, everything: bool) -> None:
    from orchestrator.gang.commands.gangs import cause_lines

    for name, failure in account.failures.items():
        screen.say(f"{name}: {failure.what}")
    verdict, now = account.verdict, account.now
    if now is not None and now.state is GangState.DEGRADED:
        screen.out.print(printable(f"{now.name}: degraded now ({now.trouble}): {now.model} by {now.stack}"))
        for line in cause_lines(now.cause) if now.cause else [printable(f"  {remark}") for remark in now.remarks]:
            screen.out.print(line)
    if verdict is None:
        kept = "this run has not failed" if now is None else "no recorded run has failed"
        screen.out.print(printable(f"{account.gang}: {kept}"))
    else:
        _show_failure(account, verdict, screen, everything=everything)
    if now is not None and (back := _brings_back(now, verdict)):
        screen.out.print(printable(back))


def _show_failure(account: Explanation, verdict: FailureVerdict, screen: Screen, *, everything: bool) -> None:
    from orchestrator.gang.commands.gangs import cause_lines

    when = f", {ago(verdict.ago_s)} ago" if verdict.ago_s is not None else ""
    since = "" if verdict.newest else "; it was started again since"
    screen.out.print(printable(f"{account.gang}: {verdict.model} by {verdict.stack} failed{when}{since}"))
    for line in cause_lines(verdict.cause, folded=0 if everything else len(verdict.secondary)):
        screen.out.print(line)
    if everything:
        _show_all(account, verdict, screen)


def _brings_back(now: GangView, failed: FailureVerdict | None) -> str:
    """The command that has a gang serve again; '' where it does, or where no restart helps."""
    command = "router up" if now.name == GANG else f"restart {now.name}"
    if now.state.loads:
        return f"{now.name} is starting: l40s-deploy status --watch"
    down = now.state is GangState.FAILED or (now.state is GangState.ABSENT and failed is not None)
    if down or now.trouble in ("hung", "no-memory"):
        return f"to have it serve again: l40s-deploy {command}"
    return ""


def _show_all(account: Explanation, verdict: FailureVerdict, screen: Screen) -> None:
    for cause in verdict.secondary:
        screen.out.print(printable(f"  then {cause.node}: {cause.text}"))
    for event in account.events:
        after = event.at - account.events[0].at
        screen.out.print(printable(f"  {after:9.3f} s  {event.node}: {event.words}"))


def ago(seconds: float) -> str:
    """'42 s', '7 min', '3 h', '2 days'."""
    for unit, words in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {words}"
    return f"{seconds:.0f} s"
