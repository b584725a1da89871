"""`l40s-deploy why`: the last failure's one cause, repeated; `--log`: the cause that logs of any engine show."""

from __future__ import annotations

import argparse
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.console import RenderableType

from orchestrator.cli.options import add_usual_of_gangs
from orchestrator.cli.screen import Screen
from orchestrator.gang.commands.cluster import connected_cluster
from orchestrator.gang.commands.gangs import cause_lines
from orchestrator.gang.remarks import sentence
from orchestrator.gang.steps.status.history import Explanation, why, why_json
from orchestrator.gang.timeline import TimelineEvent
from orchestrator.gang.view import GangView
from orchestrator.model.gang_state import GangState
from orchestrator.model.inventory import ROUTER_GANG
from orchestrator.model.per_node import collected
from orchestrator.protocol.errors import Exit

if TYPE_CHECKING:  # only --log reads logs
    from orchestrator.gang.steps.status.logs_read import LogsSummary


_PEER = re.compile(r"(?:[Pp]eer|[Cc]onnect to) [\[(]?(?P<peer>(?=[\w.:%-]*\d)(?=\w*[.:A-Za-z-])[\w.:%-]{1,64}\w)")


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of this verb."""
    add_usual_of_gangs(
        parser,
        "l40s-deploy why",
        "l40s-deploy why --all gang0",
        "l40s-deploy why --run 20261122-150405-3f2a    # of `l40s-deploy history`",
        "l40s-deploy why --log node0.log node1.log.gz",
        "l40s-deploy why --log logs/    # a folder of one log a node",
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
        help="read these logs of SGLang, vLLM or NCCL instead, of one node each (or a folder of them), and ask no node:"
        " text or gzip, with the prefixes of journald, docker, kubectl or mpirun, NODE=FILE to name the node, - for"
        " standard input",
    )


def run(args: argparse.Namespace, screen: Screen) -> int:
    """0 when every node answered, whether or not anything ever failed; 4 otherwise. With --log 3 where they show a
    cause, else 0."""
    if args.log:
        from orchestrator.gang.steps.status.logs_read import log_files, read_logs

        summary = read_logs(log_files(args.log))
        screen.json(summary.as_json()) if args.json else screen.show(*_of_logs(summary))
        return Exit.FINDINGS if summary.cause else Exit.DONE
    with connected_cluster(args, screen, asks_lost=False) as operation:
        accounts = why(operation, tuple(args.gang), events=args.all, run=args.run)
    if args.json:
        screen.json(why_json(accounts))
    else:
        alike = _said_alike(accounts)
        screen.show(*_of_several(alike))
        for account in accounts:
            show(account, screen, everything=args.all, told=alike)
    return Exit.UNREACHABLE if any(account.failures for account in accounts) else Exit.DONE


def _of_logs(summary: LogsSummary) -> Iterator[RenderableType]:
    yield f"read: {_written_by(summary)}"
    yield from (f"{finding.id} {finding.node}: {finding.title}" for finding in summary.findings)
    if summary.cause:
        yield from cause_lines(summary.cause)
    else:
        yield "no cause is known"
        if summary.nccl_warning:
            yield f"  NCCL's first warning: {summary.nccl_warning}"
        if summary.exception:
            yield f"  the engine's own last exception: {summary.exception}"
        if summary.error:
            yield f"  the first line that tells of an error: {summary.error}"
        yield from _look_next(summary)
    yield from (f"  also {cause.node}: {cause.text}" for cause in summary.secondary)


def _written_by(summary: LogsSummary) -> str:
    """Whose lines were read, as far as they say it."""
    nccl = f"NCCL {summary.nccl}" if summary.nccl else ""
    written = ", ".join(filter(None, (f"{summary.engine} {summary.version}".strip(), nccl, summary.transport)))
    if written:
        return written
    if summary.nccl_warning or summary.lines_of == "NCCL":
        return "lines of NCCL; none tells its version"
    if summary.lines_of or summary.exception or summary.cause or summary.secondary or summary.error:
        return "lines that do not tell which engine wrote them"
    return "no line of an engine or of NCCL was recognised"


def _peers(lines: Sequence[str]) -> Collection[str]:
    return dict.fromkeys(match["peer"] for match in map(_PEER.search, lines) if match)


def _look_next(summary: LogsSummary) -> Iterator[str]:
    """Whose logs to ask for, where these show echoes alone, and what has NCCL tell more."""
    echoes = [line for cause in summary.secondary for line in cause.lines if line]
    own = [words for words in (summary.exception, summary.nccl_warning, summary.error) if words]
    if echoes and all(any(_says(line, words) for line in echoes) for words in own):
        others = ", ".join(_peers(echoes)) or "every other node and rank, and of the kernel"
        yield f"  these are echoes of a failure elsewhere: look before it in the logs of {others}"
    if summary.next_log:
        yield f"  next: {summary.next_log}"


def _says(line: str, words: str) -> bool:
    return words in line or words.startswith(line)


def _said_alike(accounts: Sequence[Explanation]) -> dict[str, dict[str, str]]:
    """What is remarked on more than one gang: for each of them, the nodes that it is remarked on."""
    everything: dict[str, dict[str, str]] = {}
    for account in accounts:
        for remark in _remarks_of(account.now):
            nodes, words = _parted(remark, account.now)
            everything.setdefault(words, {})[account.gang] = nodes
    return {words: gangs for words, gangs in everything.items() if len(gangs) > 1}


def _parted(remark: str, now: GangView | None) -> tuple[str, str]:
    """'node0, node1: words' of a gang's nodes as both; without nodes '' and the remark."""
    names, colon, words = remark.partition(": ")
    nodes = {node.name for node in now.nodes} if now is not None else set()
    return (names, words) if colon and nodes.issuperset(names.split(", ")) else ("", remark)


def _of_several(alike: Mapping[str, Mapping[str, str]]) -> Iterator[RenderableType]:
    for gangs, remarks in collected((", ".join(nodes_of), words) for words, nodes_of in alike.items()).items():
        yield f"{gangs}: worth knowing of each:"
        for words in remarks:
            nodes = ", ".join(dict.fromkeys(filter(None, alike[words].values())))
            yield f"  {nodes}: {words}" if nodes else f"  {words}"


def show(account: Explanation, screen: Screen, *, everything: bool, told: Collection[str] = ()) -> None:
    """What is wrong now, the last failure, and the command that helps. everything: with what followed from it; told:
    remarks that were shown already."""
    for name, failure in account.failures.items():
        screen.say(f"{name}: {failure.what}")
    screen.show(*_told(account, everything, told))


def _remarks_of(now: GangView | None) -> list[str]:
    """Of a gang that runs: what is wrong about it first, and what else is worth knowing of it now."""
    if now is None or now.state in (GangState.ABSENT, GangState.FAILED):
        return []
    return list(dict.fromkeys([*map(sentence, now.findings), *now.remarks]))


def _standing(now: GangView | None, told: Collection[str]) -> Iterator[RenderableType]:
    wrong = [sentence(finding) for finding in now.findings] if now is not None else []
    remarks = [remark for remark in _remarks_of(now) if _parted(remark, now)[1] not in told]
    if now is not None and remarks:
        yield f"{now.name}: {now.state.value} now, {'and not well' if wrong else 'worth knowing'}:"
        yield from (f"  {remark}" for remark in remarks)


def _course(events: Sequence[TimelineEvent]) -> Iterator[str]:
    for event in events:
        yield f"  {event.at - events[0].at:9.3f} s  {event.node}: {event.words}"


def _told(account: Explanation, everything: bool, told: Collection[str] = ()) -> Iterator[RenderableType]:
    verdict, now = account.verdict, account.now
    yield from _standing(now, told)
    if now is not None and now.state is GangState.DEGRADED:
        yield f"{now.name}: degraded now ({now.trouble}): {now.model} by {now.stack}"
        yield from cause_lines(now.cause) if now.cause else ()
    if verdict is None:
        yield f"{account.gang}: {_no_failure(account)}"
    else:
        when = f", {ago(verdict.ago_s)} ago" if verdict.ago_s is not None else ""
        since = "" if verdict.newest else "; it was started again since"
        yield f"{account.gang}: {verdict.model} by {verdict.stack} failed{when}{since}"
        yield from cause_lines(verdict.cause, folded=0 if everything else len(verdict.secondary))
        if everything:
            yield from (f"  then {cause.node}: {cause.text}" for cause in verdict.secondary)
            yield from _course(account.events)
    if back := _brings_back(account):
        yield back


def _no_failure(account: Explanation) -> str:
    """Only what was read says that nothing failed."""
    if account.now is None:
        return "this run has not failed"
    if not account.failures:
        return "no recorded run has failed"
    if len(account.failures) == len(account.now.nodes):
        return "whether a run has failed is not known: no node was read"
    unread = ", ".join(account.failures)
    return f"no run that the nodes which answered have recorded has failed; not read: {unread}"


def _brings_back(account: Explanation) -> str:
    """The command that has a gang serve again, and that an operator is needed for it where this user only looks; ''
    where it serves, or where no restart helps."""
    now = account.now
    if now is None:
        return ""
    command = "l40s-deploy router up" if now.name == ROUTER_GANG else f"l40s-deploy restart {now.name}"
    if now.state.loads:
        return f"{now.name} is starting: l40s-deploy status --watch"
    down = now.state is GangState.FAILED or (now.state is GangState.ABSENT and account.verdict is not None)
    if not down and now.trouble not in ("hung", "no-memory"):
        return ""
    who = ", an operator runs" if account.only_looks else ""
    return f"to have it serve again{who}: {command}"


def ago(seconds: float) -> str:
    """'42 s', '7 min', '3 h', '2 days'."""
    for unit, words in ((86400, "days"), (3600, "h"), (60, "min")):
        if seconds >= 2 * unit:
            return f"{seconds / unit:.0f} {words}"
    return f"{seconds:.0f} s"
