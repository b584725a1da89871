"""`l40s-deploy nettest`: measures the network in place of the engine, and names the link or node that is slow or
corrupts data."""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from rich.text import Text

from orchestrator.cli.options import add_timeout, add_usual_of_gangs, open_inventory
from orchestrator.cli.screen import Screen, printable
from orchestrator.cli.tables import cell, plain_table
from orchestrator.cli.transfers import counting
from orchestrator.cli.typed import command_line
from orchestrator.doctor.rules.support.registry import who
from orchestrator.gang.steps.operation import connected
from orchestrator.model.deadlines import NETTEST_S
from orchestrator.model.words import counted
from orchestrator.nettest.hooks import add_nettest_min
from orchestrator.nettest.nettest_report import NettestResult, findings
from orchestrator.nettest.rails import rails
from orchestrator.nettest.steps import nettest
from orchestrator.nettest.steps.nettest import TestedGang
from orchestrator.nettest.verdict import Expectation, LinkResult, NettestVerdict
from orchestrator.protocol.errors import Exit


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of this verb."""
    add_usual_of_gangs(
        parser,
        "l40s-deploy nettest",
        "l40s-deploy nettest --model DeepSeek-V3-0324-Block64x64 --json",
        "l40s-deploy nettest --verify     # only whether data arrives as it was sent: seconds",
        "l40s-deploy up --model DeepSeek-V3-0324-Block64x64 --nettest     # before every rank starts",
    )
    parser.add_argument(
        "--model", metavar="MODEL", help="model whose decode sizes to measure (default: the last one that ran)"
    )
    parser.add_argument(
        "--stack", metavar="STACK", help="stack whose torch and NCCL to use (default: as `plan` chooses)"
    )
    parser.add_argument("--verify", action="store_true", help="compare data between all ranks, and time nothing")
    add_nettest_min(parser)
    add_timeout(parser, "give up if the measurements of a gang take longer than this", NETTEST_S)


def run(args: argparse.Namespace, screen: Screen) -> int:
    """0 when nothing is slow or wrong, 7 when something is."""
    order = nettest.NettestOptions(
        gangs=tuple(args.gang),
        model=args.model,
        stack=args.stack,
        enough=args.nettest_min,
        command=command_line(),
        timeout_s=args.timeout,
        verify_only=args.verify,
    )
    with connected(open_inventory(args, screen)) as operation, counting(screen, "measurements") as at:
        tested = nettest.run_now(operation, order, at)
    if args.json:
        screen.json(nettest.nettest_json(tested))
    else:
        for gang in tested:
            show(gang, screen)
    bad = (NettestVerdict.SLOW, NettestVerdict.FAILED)
    return Exit.DIFFERS if any(gang.result.verdict in bad for gang in tested) else Exit.DONE


def show(tested: TestedGang, screen: Screen) -> None:
    """Figures, then what they mean."""
    say, result = screen.out.print, tested.result
    where = f"{counted(result.ranks, 'rank')} on {counted(len(result.nodes), 'node')}"
    say(printable(f"{result.gang}: {where}, {result.seconds:.1f} s"))
    for words in dict.fromkeys(result.transport.values()):
        nodes = [node for node, transport in result.transport.items() if transport == words]
        say(printable(f"  {who(nodes, len(result.nodes))}: {words}"))
    data = result.verification
    if not data.corrupt:
        size = f"{data.least >> 20} MiB" if data.least >> 20 else f"{data.least >> 10} KiB"
        words = f"data: right in {data.pairs} pairs, {size} and more each, and in every sum ({data.seconds:.1f} s)"
        say(printable(f"  {words}"))
    _tests(result, screen)
    _links(result, screen)
    _rails(result, screen)
    for finding in findings(result):
        say(printable(f"  {finding.id}: {finding.title}"))
        if finding.effect:
            say(printable(f"    cost: {finding.effect}"))
        say(printable(f"    fix: {finding.fix}"))
    verdict = f"verdict: {result.verdict.value}" if result.tests or findings(result) else "nothing was timed"
    say(printable(f"  {verdict}; kept in {tested.file}"))


def _tests(result: NettestResult, screen: Screen) -> None:
    table = plain_table("  all-reduce", "bytes", "us", "expected", "")
    for test in result.tests:
        where = "" if test.where == "all" else f", {test.where}"
        size = f"{test.bytes}" if test.bytes == test.wanted else f"{test.bytes} (of {test.wanted})"
        expected = f"{test.expected.value:.0f} {test.expected.basis}" if test.expected else "-"
        if test.captured:
            graph = " in CUDA graphs"
        else:
            graph = ", not in CUDA graphs" if test.uncaptured else ""
        name = cell(f"  {test.between.value}{where}{graph}")
        table.add_row(name, cell(size), cell(f"{test.us:.0f}"), cell(expected), _verdict(test.verdict))
    if result.tests:
        screen.out.print(table)


def _links(result: NettestResult, screen: Screen) -> None:
    """Of many links of a kind the slowest; each slow one."""
    table = plain_table("  link", "Gb/s", "expected", "")
    for kind in dict.fromkeys(link.between for link in result.links if not link.start.port):
        links = [link for link in result.links if link.between is kind]
        for link in _shown(links):
            name = cell(f"  {link.start} to {link.end}")
            table.add_row(name, cell(f"{link.best:.3g}"), _gbps(link.expected), _verdict(link.verdict))
        bests = [link.best for link in links]
        table.add_row(cell(f"  {kind.value}, {len(links)} links"), cell(f"{min(bests):.3g} to {max(bests):.3g}"))
    if result.links:
        screen.out.print(table)


def _rails(result: NettestResult, screen: Screen) -> None:
    """A row for each RDMA port: the slowest of its measurements in each direction."""
    table = plain_table("  RDMA port, by ib_write_bw", "sends Gb/s", "receives", "memory", "expected", "")
    for rail in rails(result.links):
        figures = (f"  {rail.end}", f"{rail.send:.3g}", f"{rail.receive:.3g}", "GPU" if rail.on_gpu else "host")
        table.add_row(*map(cell, figures), _gbps(rail.expected), _verdict(rail.verdict))
    if table.row_count:
        screen.out.print(table)
    if result.rails_note:
        screen.out.print(printable(f"  {result.rails_note}"))


def _gbps(expected: Expectation | None) -> Text:
    return cell(f"{expected.value:.3g} {expected.basis}" if expected else "-")


MOST_LINKS = 12


def _shown(links: Sequence[LinkResult]) -> Sequence[LinkResult]:
    if len(links) <= MOST_LINKS:
        return links
    slow = [link for link in links if link.verdict is NettestVerdict.SLOW]
    return (slow or [min(links, key=lambda link: link.best)])[:MOST_LINKS]


def _verdict(verdict: NettestVerdict) -> Text:
    words = "" if verdict is NettestVerdict.NONE else verdict.value
    return cell(words, "bold red" if verdict is NettestVerdict.SLOW else "")
