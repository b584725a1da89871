"""`lab`: an emulated cluster on this machine."""

from __future__ import annotations

import argparse
import time
from dataclasses import asdict, fields

from l40s_lab.commands import console, faults, rehearse
from orchestrator.cli.options import add_examples, add_json
from orchestrator.cli.screen import Screen
from orchestrator.model.words import counted

SUMMARY = "run an emulated cluster on this machine: real SSH, real processes"
_EXAMPLES = """examples:
  l40s-deploy lab up                          # 4 nodes with 8 L40S each, wired correctly
  l40s-deploy lab up --wiring wrong           # the same machines, with a card in the wrong slot and dead ports
  l40s-deploy lab up --gangs 3                # three gangs of four nodes
  l40s-deploy lab up --like inventory.yml     # your own cluster, to rehearse on
  l40s-deploy lab status
  l40s-deploy lab down"""


def configure(parser: argparse.ArgumentParser) -> None:
    """The words after `lab`."""
    parser.epilog = _EXAMPLES
    verbs = parser.add_subparsers(dest="lab_verb", required=True, metavar="VERB")
    up = verbs.add_parser("up", help="start a lab; does nothing if the same lab is already running")
    add_examples(
        up,
        "l40s-deploy lab up",
        "l40s-deploy lab up --wiring wrong --name rehearsal",
        "l40s-deploy lab up --engine sglang --ranks 8   # the real SGLang with 32 ranks, on CPU",
        "l40s-deploy lab up --gpus host --stack sglang-0.5.23 --nodes 2   # on a machine with GPUs",
    )
    _add_name(up)
    up.add_argument(
        "--nodes", type=int, metavar="N", help="total number of nodes (default: 4 per gang, or as the wiring says)"
    )
    up.add_argument("--gangs", type=int, metavar="N", help="number of gangs (default: 1)")
    up.add_argument(
        "--like", metavar="FILE", help="copy gangs, node names, GPU counts and settings from your inventory"
    )
    up.add_argument(
        "--wiring", default="right", metavar="NAME|FILE", help="a name from `lab wirings`, or a file (default: right)"
    )
    up.add_argument(
        "--from", dest="recorded", metavar="PATH", help="nodes with recorded hardware (from `discover --save`)"
    )
    up.add_argument(
        "--level",
        type=int,
        choices=(0, 1, 2),
        help="2: systemd in the nodes, on a root file system built once; 1: namespaces; 0: plain sshds, no root"
        " (default: the highest that needs no setup)",
    )
    up.add_argument(
        "--engine",
        choices=("standin", "sglang", "vllm", "none"),
        default="standin",
        help="standin: loads no model; sglang, vllm: the real one on CPU; none: nodes of level 2 with neither engine"
        " nor models, for `prepare` and `checkpoint` (default: standin)",
    )
    up.add_argument(
        "--ranks",
        type=int,
        default=1,
        metavar="N",
        help="with a real engine: ranks of each node, 1 to 8; each takes about 0.6 GB of memory (default: 1)",
    )
    up.add_argument(
        "--gpus",
        choices=("emulated", "host"),
        default="emulated",
        help="host: divide the real NVIDIA GPUs of this machine among the nodes and run the engine of --stack"
        " (default: emulated)",
    )
    up.add_argument(
        "--stack", metavar="NAME|FILE", help="with --gpus host: the stack to run; must be installed on this machine"
    )
    up.add_argument(
        "--deaths",
        choices=("plain", "cuda"),
        default="plain",
        help="how the stand-in's ranks die: plain: at once, unnoticed by the others; cuda: as observed with CUDA, the"
        " exit takes 0.2 to 0.4 s, and the other ranks fail after 20 to 40 ms (default: plain)",
    )
    add_json(up)
    down = verbs.add_parser("down", help="remove the lab, whatever its state")
    add_examples(down, "l40s-deploy lab down --name rehearsal")
    _add_name(down)
    status = verbs.add_parser("status", help="show the lab and which of its nodes answer")
    add_examples(status, "l40s-deploy lab status --json")
    _add_name(status)
    add_json(status)
    wirings = verbs.add_parser("wirings", help="list the built-in wirings for `lab up --wiring`")
    add_examples(wirings, "l40s-deploy lab wirings")
    add_json(wirings)
    console.configure(verbs, _add_name)
    faults.configure(verbs, _add_name)
    rehearse.configure(verbs, _add_name)


def _add_name(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--name", default="lab", help="name of the lab, if you run several (default: lab)")


def run(args: argparse.Namespace, screen: Screen) -> int:
    """Run the subcommand of `lab`."""
    verbs = {
        "up": _up,
        "down": _down,
        "status": _status,
        "wirings": _wirings,
        "shell": console.run_shell,
        "exec": console.run_exec,
        "break": faults.run_break,
        "heal": faults.run_heal,
        "faults": faults.run_faults,
        "rehearse": rehearse.run,
    }
    return verbs[args.lab_verb](args, screen)


def _up(args: argparse.Namespace, screen: Screen) -> int:
    from l40s_lab.life.request import Request
    from l40s_lab.life.up import up

    began = time.monotonic()
    request = Request(**{one.name: getattr(args, one.name) for one in fields(Request)})
    raised = up(request, screen.say)
    took = time.monotonic() - began
    level = raised.level
    shape = raised.blueprint
    gangs = f" in {len(shape.gangs)} gangs" if len(shape.gangs) > 1 else ""
    hardware = shape.wiring_name if shape.devices else f"wiring {shape.wiring_name}"
    what = f"{counted(len(shape.nodes), 'node')}{gangs}, {hardware}, engine {shape.engine}"
    if raised.fresh:
        screen.say(f"lab {args.name!r} is up after {took:.1f} s: {what}")
    else:
        screen.say(f"lab {args.name!r} is already running: {what}")
    screen.say("; ".join(filter(None, (f"level {level.number} ({level.reason})", level.cannot))))
    screen.say(f"inventory: {raised.home.inventory}")
    if screen.as_json:
        _status(args, screen)
    return 0


def _down(args: argparse.Namespace, screen: Screen) -> int:
    from l40s_lab.life.down import down

    began = time.monotonic()
    if down(args.name):
        screen.say(f"lab {args.name!r} was removed in {time.monotonic() - began:.1f} s")
    else:
        screen.say(f"there is no lab {args.name!r}")
    return 0


def _wirings(args: argparse.Namespace, screen: Screen) -> int:
    from l40s_lab.hardware.wiring import summaries

    found = summaries()
    if args.json:
        screen.json({"wirings": [{"name": name, "summary": summary} for name, summary in found.items()]})
        return 0
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("wiring", no_wrap=True)
    table.add_column("what it is")
    for name, summary in found.items():
        table.add_row(name, summary)
    screen.out.print(table)
    return 0


def _status(args: argparse.Namespace, screen: Screen) -> int:
    from l40s_lab.life.status import status

    found = status(args.name)
    if screen.as_json:
        screen.json(asdict(found))
        return 0
    from rich.table import Table

    screen.out.print(f"lab {found.name}: level {found.level}, wiring {found.wiring}, engine {found.engine}")
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("node", "address", "state", "faults"):
        table.add_column(column)
    for node in found.nodes:
        table.add_row(node.name, node.address, node.state, ", ".join(node.faults) or "-")
    screen.out.print(table)
    screen.say(f"inventory: {found.inventory}")
    return 0
