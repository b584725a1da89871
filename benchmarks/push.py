"""`checkpoint push` over slow links: onto one node, onto three, and the three at once without a chain.

Four nodes of a lab of our own; what every node sends is limited (tc, htb), as a network card does it. The peer is what
people do without a chain: three copies from the source at the same time.

    python benchmarks/push.py [--mib 288] [--files 72] [--rate MIB_PER_S] [--json]
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from common import command, lab, report

NAME = "push-benchmark"
OTHERS = ("node1", "node2", "node3")
END = 1.2
"""What the project promises: three nodes in at most this many times the seconds of one."""


def on(node: str, text: str) -> str:
    """A shell line on a lab's node, over its console and not its network."""
    words = command("lab", "exec", "--name", NAME, node, "--", "sh", "-c", text)
    return subprocess.run(words, check=True, timeout=300, capture_output=True, text=True).stdout


def sent() -> int:
    """Bytes that node0's network side has sent so far."""
    return int(on("node0", "cat /sys/class/net/bond0/statistics/tx_bytes"))


def start(inventory: Path, to: Sequence[str], name: str) -> subprocess.Popen[str]:
    """A push from node0, beside us."""
    nodes = [f"--node={node}" for node in to]
    words = ("checkpoint", "push", "node0:/workspace/source", "--as", name, *nodes, "--json")
    return subprocess.Popen(
        command(*words, "-i", str(inventory)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def timed(inventory: Path, *pushes: tuple[Sequence[str], str]) -> tuple[float, int]:
    """Wall seconds of whole processes side by side until the last has ended, and bytes that left node0."""
    before, began = sent(), time.monotonic()
    running = [start(inventory, to, name) for to, name in pushes]
    for process in running:
        out, err = process.communicate(timeout=1800)
        if process.returncode:
            raise SystemExit(f"push ended with {process.returncode}\n{out}{err}")
    seconds = time.monotonic() - began
    return seconds, sent() - before


def main() -> int:
    """Print seconds and ratios; exit 1 where three nodes take longer than promised."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=288)
    parser.add_argument("--files", type=int, default=72)
    parser.add_argument("--rate", type=int, default=8, help="MiB a second that each node may send")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    each = args.mib * 2**20 // args.files
    with lab(NAME, "--level", "1") as inventory:
        for node in ("node0", *OTHERS):
            limit = f"htb rate {args.rate * 8 * 2**20}bit burst 64k"
            on(node, "tc qdisc replace dev bond0 root handle 1: htb default 1")
            on(node, f"tc class replace dev bond0 parent 1: classid 1:1 {limit}")
        make = f"for i in $(seq -w {args.files}); do head -c {each} /dev/urandom >shard-$i.bin; done"
        on("node0", f"mkdir /workspace/source && cd /workspace/source && {make} && echo '{{}}' >config.json")
        timed(inventory, (("node3",), "warm"))  # the node application is there, the source's digests are known
        runs = {
            "one node": timed(inventory, (OTHERS[:1], "one")),
            "three nodes, down the chain": timed(inventory, (OTHERS, "chain")),
            "three nodes, each from the source": timed(inventory, *(((node,), f"star-{node}") for node in OTHERS)),
        }
    one = runs["one node"][0]
    ratio = runs["three nodes, down the chain"][0] / one
    if args.json:
        table = {name: {"seconds": seconds, "left_the_source": count} for name, (seconds, count) in runs.items()}
        print(json.dumps({"mib": args.mib, "files": args.files, "rate_mib": args.rate, "runs": table, "ratio": ratio}))
    else:
        mib = {
            name: f"{seconds / one:.2f} of one, {count / 2**20:.0f} MiB sent" for name, (seconds, count) in runs.items()
        }
        title = f"{args.mib} MiB in {args.files} files, {args.rate} MiB/s a link; at most {END} of one"
        report(title, [(name, seconds, mib[name]) for name, (seconds, _) in runs.items()])
    return 0 if ratio <= END else 1


if __name__ == "__main__":
    sys.exit(main())
