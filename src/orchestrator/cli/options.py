"""Options that several verbs share."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

from orchestrator.cli.screen import Screen
from orchestrator.loading.which import choose_inventory
from orchestrator.model.deadlines import UNITS, seconds_of
from orchestrator.model.inventory import Inventory


def add_examples(parser: argparse.ArgumentParser, *lines: str) -> None:
    """Lines at the end of --help that a user can copy."""
    parser.epilog = "\n".join(["examples:" if len(lines) > 1 else "example:", *(f"  {line}" for line in lines)])


def add_usual(parser: argparse.ArgumentParser, *examples: str) -> None:
    """What most verbs have: examples, --inventory and --json."""
    add_examples(parser, *examples)
    add_inventory(parser)
    add_json(parser)


def add_usual_of_gangs(parser: argparse.ArgumentParser, *examples: str) -> None:
    """The same, and GANG ..."""
    add_usual(parser, *examples)
    add_gangs(parser)


def add_usual_of_stopped(parser: argparse.ArgumentParser, *examples: str) -> None:
    """The same of a verb that stops gangs: several at once only where that is said."""
    add_usual(parser, *examples)
    add_gangs(parser, "all; where several would stop at once, --all asks for it")
    parser.add_argument("--all", action="store_true", help="all gangs; needed to stop several without naming them")


def add_inventory(parser: argparse.ArgumentParser) -> None:
    """--inventory FILE, an option of every verb that uses a cluster."""
    parser.add_argument(
        "-i",
        "--inventory",
        metavar="FILE",
        help="Ansible inventory (default: $L40S_INVENTORY, ./inventory/hosts.yml, the running lab's)",
    )


def add_from(parser: argparse.ArgumentParser) -> None:
    """--from: files instead of nodes."""
    parser.add_argument(
        "--from",
        dest="saved",
        nargs="+",
        action="extend",
        metavar="FILE",
        help="read files instead of nodes, - for standard input, NAME=FILE to name the node, or a folder: saved"
        " snapshots, an hwloc-gather-topology tarball, a copy of /sys, NCCL's topology XML, or what people paste"
        " (nvidia-smi topo -m, lspci -vvv or -tv, NCCL's log, ibv_devinfo -v, ibstat, show_gids, ip -br addr,"
        " nvidia-smi, numactl -H, lscpu, ...)",
    )


def add_json(parser: argparse.ArgumentParser) -> None:
    """--json: one document on stdout, nothing else."""
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def open_inventory(args: argparse.Namespace, screen: Screen | None) -> Inventory:
    """Read the command's inventory, and print on stderr which one it is (screen None: where that is said already)."""
    choice = choose_inventory(args.inventory)
    if screen is not None:
        screen.say(f"cluster: {choice.path} ({choice.reason})")
    return read_again(choice.path)


def read_again(path: str | Path) -> Inventory:
    """The inventory in this file, as it is written now."""
    from orchestrator.loading.inventory import load_inventory  # a verb without a cluster reads no YAML

    return load_inventory(path)


TIMEOUT_S = 3600.0


def seconds(text: str) -> float:
    """5s, 10m, 2h, or bare seconds."""
    if (length_s := seconds_of(text)) is None:
        raise argparse.ArgumentTypeError(f"found {text!r}, wanted a duration such as 90, 5s, 10m or 2h")
    return length_s


def add_duration(parser: argparse.ArgumentParser, option: str, what: str, default_s: float | None = None) -> None:
    """An option with a TIME."""
    parser.add_argument(option, type=seconds, default=default_s, metavar="TIME", help=what)


def count(text: str, least: int = 1) -> int:
    """The type of an option that takes a number from `least` up."""
    number = int(text)
    if number < least:
        raise argparse.ArgumentTypeError(f"found {number}, wanted {least} or more")
    return number


def share(text: str, *, least_percent: float = 0.0) -> float:
    """`5%`, or bare 5, is 0.05: the type of an option that takes a percentage of at most 100."""
    number = text.removesuffix("%")
    if not re.fullmatch(r"\d{1,3}(\.\d{1,3})?", number, re.ASCII) or not least_percent <= float(number) <= 100:
        raise argparse.ArgumentTypeError(f"found {text!r}, wanted a percentage from {least_percent:g} to 100, as in 5%")
    return float(number) / 100


def add_timeout(
    parser: argparse.ArgumentParser,
    what: str = "give up if a gang takes longer than this to start",
    default_s: float = TIMEOUT_S,
) -> None:
    """--timeout TIME."""
    parser.add_argument(
        "--timeout", type=_patience, default=default_s, metavar="TIME", help=f"{what} ({duration(default_s)})"
    )


def duration(length_s: float) -> str:
    """As it is typed."""
    unit = next(unit for unit in ("h", "m", "s") if length_s % UNITS[unit] == 0)
    return f"{length_s / UNITS[unit]:.0f}{unit}"


def add_hung_after(parser: argparse.ArgumentParser) -> None:
    """--hung-after TIME."""
    parser.add_argument(
        "--hung-after",
        type=_patience,
        metavar="TIME",
        help="an engine that this command starts counts as hung after this long without any progress; kept by later "
        "restarts (default: 3 unanswered probes, 60s)",
    )


def add_accept(parser: argparse.ArgumentParser) -> None:
    """--accept ID[@NODE], repeatable."""
    parser.add_argument(
        "--accept",
        action="append",
        default=[],
        metavar="ID[@NODE]",
        help="ignore this finding of `doctor` (repeatable)",
    )


def _patience(text: str) -> float:
    length_s = seconds(text)
    if length_s <= 0:
        raise argparse.ArgumentTypeError(f"found {text!r}, wanted more than 0 s")
    return length_s


def add_gangs(parser: argparse.ArgumentParser, default: str = "all") -> None:
    """GANG ... default: what no name means."""
    parser.add_argument("gang", nargs="*", default=[], metavar="GANG", help=f"only these gangs (default: {default})")


def add_gang_option(parser: argparse.ArgumentParser) -> None:
    """--gang GANG, repeatable, of a verb in which a position would be taken for something else: a pack, an action,
    a flag of the engine."""
    parser.add_argument("--gang", action="append", default=[], metavar="GANG", help="only this gang (repeatable)")


_DEGREE = re.compile(r"(tp|pp|ep|dp)([1-9]\d*)")
_FIELDS = {"tp": "tp", "pp": "pp", "ep": "ep", "dp": "attn_dp"}


def add_layout(parser: argparse.ArgumentParser) -> None:
    """--layout NAME|DEGREES, as fields of a request."""
    parser.add_argument(
        "--layout",
        type=layout,
        default={},
        metavar="NAME|DEGREES",
        help="a layout that the model's profile names (`models` lists them), or its degrees: pp4,tp8; tp32,ep2; "
        "tp32,dp4 (dp: attention data parallel)",
    )


def layout(text: str) -> dict[str, str | int]:
    """'pp4,tp8' as its degrees; any other text is a name."""
    degrees = dict(_DEGREE.findall(text.lower()))
    if ",".join(name + number for name, number in degrees.items()) == text.lower():
        return {_FIELDS[name]: int(number) for name, number in degrees.items()}
    return {"layout": text}


def add_nodes(parser: argparse.ArgumentParser, what: str = "only this node (repeatable)") -> None:
    """--node NODE, repeatable; none named means what `what` says."""
    parser.add_argument("--node", action="append", default=[], metavar="NODE", help=what)


def add_time_limit(parser: argparse.ArgumentParser) -> None:
    """--timeout TIME of a verb that can take hours and be run again: none by default."""
    add_duration(parser, "--timeout", "give up after this time; run it again to resume", 0.0)


def add_install(parser: argparse.ArgumentParser, what: str = "write a systemd unit that runs this command") -> None:
    """--install, of a verb that keeps running."""
    parser.add_argument("--install", action="store_true", help=f"{what}, and exit")
