"""`l40s-deploy certify`: what this cluster is worth with this model, as one file that its owner can show."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from orchestrator.cli.options import add_layout, add_timeout, add_usual
from orchestrator.cli.questions import Questions
from orchestrator.cli.screen import Screen
from orchestrator.cli.transfers import counting
from orchestrator.cli.typed import command_line
from orchestrator.gang.commands.cluster import open_cluster
from orchestrator.gang.commands.outcome import RisingProgress
from orchestrator.model.chosen import the_one_gang
from orchestrator.model.profile import Load
from orchestrator.planning.steps.plan import PlanRequest
from orchestrator.protocol.errors import Exit

EPILOG = """
exit status: 0 all is right, 3 a step could not be run, 7 something is wrong, slow or not as planned; an error's own
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Options of this verb."""
    add_usual(
        parser,
        "l40s-deploy certify --model DeepSeek-V3-0324-Block64x64",
        "l40s-deploy certify gang1 --model DeepSeek-R1-Channel-INT8 --yes --out l40s.json",
    )
    parser.epilog = f"{parser.epilog}\n{EPILOG}"
    parser.add_argument("gang", nargs="*", default=[], metavar="GANG", help="which gang, where there are several")
    parser.add_argument("--model", required=True, metavar="NAME", help="a profile's name or .yml file")
    parser.add_argument("--stack", metavar="NAME", help="a stack's name or .yml file (default: as `plan` chooses)")
    add_layout(parser)
    parser.add_argument(
        "--out", type=Path, metavar="FILE", help="the file (default: l40s-deploy-certificate-DATE-TIME.json)"
    )
    parser.add_argument("--yes", action="store_true", help="do not ask before the gang is started and a rank killed")
    add_timeout(parser, "give up if a start or a benchmark takes longer than this")


def run(args: argparse.Namespace, screen: Screen) -> int:
    """0 all is right, 3 a step could not be run, 7 something is wrong, slow or not as planned; an error's own."""
    from orchestrator.support.steps import certify

    inventory = open_cluster(args, screen)
    gang = the_one_gang(inventory, args.gang, command="certify")
    out = args.out or Path(time.strftime("l40s-deploy-certificate-%Y%m%d-%H%M%S.json"))
    certify.refuse_to_begin(inventory, gang, out)
    words = (
        f"test the kernels and the network of {gang.name}, start it, send it requests, kill one of its ranks, stop it?"
    )
    if not args.yes and not Questions(screen, "certify").agreed(words, "--yes"):
        screen.say("nothing was done")
        return Exit.INPUT
    options = certify.CertifyOptions(
        plan=PlanRequest(model=args.model, stack=args.stack, **args.layout, gangs=(gang.name,)),
        out=out,
        command=command_line(),
        timeout_s=args.timeout,
        load=Load(),
    )
    certify_screen = certify.CertifyScreen(
        say=screen.say,
        ended=partial(_say, screen),
        counting=partial(counting, screen),
        rising=lambda: RisingProgress(screen),
    )
    document, failure = certify.certify(inventory, gang, options, certify_screen)
    if args.json:
        screen.json(document)
    else:
        screen.show(f"{out}: {document['verdict']}, sha256 {document['digest']}")
        if document["stand_in"]:
            screen.show("  something stood in for GPUs or the engine: these figures say nothing about a GPU")
        for line in prediction_lines(document["steps"]):
            screen.show(f"  {line}")
        screen.say("secrets, names and addresses were replaced; read it before you send it")
    if failure is not None:
        raise failure
    return certify.exit_code(certify.StepVerdict(document["verdict"]))


def prediction_lines(steps: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """What was measured beside what was predicted before; nothing where the case is another."""
    results = [step["result"] for step in steps if step["name"] == "bench" and step["result"]]
    for forecast in (result.get("prediction") for result in results):
        for point in forecast["points"] if forecast else ():
            where = "within" if point["within"] else "outside"
            yield (
                f"{point['requests']} requests: {point['tok_s']:.0f} tokens/s ({point['source']}), {where} the"
                f" prediction of {forecast['made']}: {point['predicted']:.0f}"
                f" ({point['low']:.0f} to {point['high']:.0f})"
            )


def _say(screen: Screen, step: Mapping[str, Any]) -> None:
    why = f": {step['error']['what']}" if step["error"] else ""
    screen.say(f"{step['name']}: {step['verdict']} ({step['seconds']:.0f} s){why}")
