"""What this room adds to verbs of the core: `up --nettest`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING

from orchestrator.cli.options import share
from orchestrator.model.deadlines import TEST_BEFORE_GO_S
from orchestrator.model.inventory import GangSpec
from orchestrator.protocol.errors import FindingsError, VerificationDiffers
from orchestrator.protocol.staging import StagingRequest

if TYPE_CHECKING:
    from orchestrator.gang.steps.up_operation import BeforeGoCheck, UpOperation


def options(verb: str, parser: argparse.ArgumentParser) -> None:
    """Of `up`."""
    if verb == "up":
        parser.add_argument(
            "--nettest",
            action="store_true",
            help="test the network of each gang before its ranks start; refuse if it is slow (exit code 7) or "
            "data arrives wrong (3)",
        )
        add_nettest_min(parser)


def add_nettest_min(parser: argparse.ArgumentParser) -> None:
    """--nettest-min PERCENT."""
    from orchestrator.nettest.verdict import ENOUGH

    parser.add_argument(
        "--nettest-min",
        type=partial(share, least_percent=1),
        default=ENOUGH,
        metavar="PERCENT",
        help=f"a figure below this share of the expected one is slow ({ENOUGH * 100:g}%%)",
    )


def before_go(args: argparse.Namespace) -> BeforeGoCheck | None:
    """Where it is asked for."""
    from orchestrator.gang.steps.up_operation import BeforeGoCheck

    if not args.nettest:
        return None
    return BeforeGoCheck(TEST_BEFORE_GO_S, partial(tested_before, args.nettest_min))


def tested_before(
    enough: float, operation: UpOperation, gang: GangSpec, requests: Mapping[str, StagingRequest]
) -> None:
    """Between *armed* and *go*: a slow network, or wrong data, keeps the ranks from starting. enough: the share of the
    expected speed that must be reached."""
    from orchestrator.nettest.nettest_report import findings
    from orchestrator.nettest.steps import nettest
    from orchestrator.nettest.verdict import NettestVerdict

    if sum(len(request_of.tp_ranks) for request_of in requests.values()) < 2:
        return
    operation.watcher.step(gang.name, "testing the network in the engine's place")
    asked = nettest.NettestOptions(model=operation.request.plan.model, enough=enough)
    setup = nettest.NettestSetup(gang, requests, operation.topologies, asked)
    result = nettest.test(operation.fleet, setup, lambda *_: None).result
    if result.verdict is NettestVerdict.FAILED:
        wrong = findings(result)[0]
        what = f"no rank was started: {wrong.id}: {wrong.title}"
        raise FindingsError(what, where=f"gang {gang.name}", fix=wrong.fix)
    if result.verdict is NettestVerdict.SLOW:
        why = "; ".join(f"{finding.id}: {finding.title}" for finding in findings(result)[:2])
        raise VerificationDiffers(
            f"the network is slow, so no rank was started: {why}",
            where=f"gang {gang.name}",
            fix="run l40s-deploy nettest to see every figure; without --nettest the gang starts anyway",
        )
    ok = "the network is ok, its data right"
    unknown = "data is right; the speed was measured and not judged: nobody knows what to expect of this network"
    words = ok if result.verdict is NettestVerdict.OK else unknown
    operation.watcher.step(gang.name, f"{words} ({result.seconds:.0f} s)")
